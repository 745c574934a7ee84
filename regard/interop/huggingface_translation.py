"""Export translation models to transformers, and run them there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.errors import UserError, import_optional
from regard.interop.files import read_json_object, write_json
from regard.interop.huggingface_marian import CLASSES, choose_kind, describe_marian, to_marian
from regard.interop.huggingface_tokenizers import TOKENIZER_CONFIG, to_fast_tokenizer, to_marian_tokenizer
from regard.interop.verification import Tokens, check_agreement, compare
from regard.pipelines.external import TransformersGenerator
from regard.pipelines.translator import Translator

TARGET_TOKENIZER = "target_tokenizer"
"""Subfolder of the target's tokenizer if it differs from the source's; transformers has one tokenizer per folder."""
UNKNOWN_LANGUAGES = ("source", "target")
"""Languages of a `Translator` if they are unknown."""
_DERIVED = ("embed_positions.weight", "lm_head.weight", "embed_tokens.weight")
"""Suffixes of parameters that are computed or tied, and therefore not given."""


def build_huggingface(translator: Translator) -> Any:
    """Build the transformers model with a translator's weights."""
    if len(translator.models) > 1:
        raise UserError("transformers has no ensembles of translation models; give one model")
    config = translator.model.config
    kind, values = choose_kind(config), describe_marian(config)
    library = import_optional("transformers", "hf")
    version = library.__version__
    if config.source_vocab != config.target_vocab and tuple(map(int, version.split(".")[:2])) < (5, 18):
        raise UserError(f"transformers {version} has no beam search for two vocabulary sizes; install 5.18 or later")
    model_class = getattr(library, CLASSES[kind])
    built = model_class(model_class.config_class(**values))
    missing, unknown = built.load_state_dict(to_marian(translator.model.state_dict(), config), strict=False)
    built.tie_weights()
    if unknown or not all(name.endswith(_DERIVED) for name in missing):
        raise UserError(f"transformers {version} has other parameter names: {unknown[:1]}")
    built.generation_config.forced_eos_token_id = None
    return built.eval()


def load_in_transformers(path: Path, device: torch.device) -> Translator:
    """Load a translator whose model runs in transformers."""
    translator = Translator.load(path)
    generator = TransformersGenerator(build_huggingface(translator).to(device))
    return Translator(
        translator.model,
        translator.vocabularies,
        translator.languages,
        generator=generator,
        longest_source=translator.longest_source,
    )


def export_huggingface(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Write and verify a folder that transformers loads as a translation model, with its tokenizer.

    Args:
        translator: The model.
        folder: An existing folder.
        sources: Tokenised sources without END, with which the model and its tokenizer are verified.

    Returns:
        Lines that describe the model and its agreement with regard.
    """
    built = build_huggingface(translator)
    with hide_progress_bars():
        built.save_pretrained(folder)
    _save_tokenizers(translator, folder, built.config.max_position_embeddings)
    with hide_progress_bars():
        loaded = type(built).from_pretrained(folder)
    agreement = compare(translator, TransformersGenerator(loaded), sources)
    check_agreement(agreement, f"{type(built).__name__} of transformers")
    _check_tokenizer(translator, folder, sources)
    return [f"as {type(built).__name__}, {agreement}"]


def _save_tokenizers(translator: Translator, folder: Path, max_length: int) -> None:
    """Write the tokenizers of both sides and the languages of the model."""
    vocabularies = translator.vocabularies
    source, target = vocabularies.source, vocabularies.target
    if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
        to_marian_tokenizer(source, target, folder, max_length)
    else:
        to_fast_tokenizer(source, max_length).save_pretrained(folder)
        if not vocabularies.joint:
            to_fast_tokenizer(target, max_length).save_pretrained(folder / TARGET_TOKENIZER)
    if translator.languages != UNKNOWN_LANGUAGES:  # as in Marian models
        languages = dict(zip(("source_lang", "target_lang"), translator.languages, strict=True))
        write_json(folder / TOKENIZER_CONFIG, read_json_object(folder / TOKENIZER_CONFIG) | languages)


@contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Hides the progress bars that transformers shows while it saves and loads weights."""
    log = import_optional("transformers", "hf").utils.logging
    enabled = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            log.enable_progress_bar()


def _check_tokenizer(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> None:
    """Check that the exported tokenizer encodes and decodes the sources like the regard tokenizer."""
    source, target = translator.vocabularies.source, translator.vocabularies.target
    exported = import_optional("transformers", "hf").AutoTokenizer.from_pretrained(folder)
    decoding = target if isinstance(source, SentencePieceTokenizer) else source  # MarianTokenizer decodes the target
    for tokens in sources:
        text = source.decode(tokens)
        if exported(text).input_ids != [*source.encode(text), translator.model.config.eos]:
            raise UserError(f"the exported tokenizer encodes {text!r} differently, so nothing was written")
        encoded = decoding.encode(text)
        if exported.decode(encoded, skip_special_tokens=True) != decoding.decode(encoded):
            raise UserError(f"the exported tokenizer decodes {text!r} differently, so nothing was written")
