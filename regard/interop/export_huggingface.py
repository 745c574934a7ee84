"""`regard export --to huggingface` for models that translate: a folder that transformers loads with its own classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.decoding.config import SearchSettings
from regard.decoding.stepper import pad_batch
from regard.errors import UserError
from regard.interop.fast_tokenizer import SETTINGS, to_fast_tokenizer
from regard.interop.marian import CLASSES, choose_kind, describe_marian, to_marian
from regard.interop.marian_tokenizer import to_marian_tokenizer
from regard.interop.optional import need
from regard.interop.verification import Tokens, check, compare
from regard.pipelines.translator import Translator

TARGET = "target_tokenizer"
"""Where the target's tokenizer lies if it is not the source's: transformers has one a folder."""
UNKNOWN = ("source", "target")
"""The languages of a model that does not say them."""
_FOLLOWING = ("embed_positions.weight", "lm_head.weight", "embed_tokens.weight")
"""Ends of the names of their tensors that are computed or shared, and so need not be given."""


class HuggingFacePeer:
    """A model of transformers, as verification wants it. It must have been trained to end what it reads with END."""

    def __init__(self, model: Any) -> None:
        self.model, self.config = model.eval(), model.config
        self.longest: int | None = self.config.max_position_embeddings

    @torch.no_grad()
    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        beam: dict[str, Any] = {}
        if settings.beam_width > 1:
            beam["early_stopping"] = True if settings.stop == "first" else "never"  # which is our "exact"
            beam["length_penalty"] = 0.0 if settings.length_penalty == "none" else settings.alpha
        limits = [settings.max_target_length(len(source)) for source in sources]
        if self.longest is not None:
            limits = [min(limit, self.longest) for limit in limits]
        ends = _EndsAtLimits(limits, settings.beam_width, self.config.eos_token_id)
        rows = self.model.generate(
            **self._read(sources),
            num_beams=settings.beam_width,
            do_sample=False,
            max_new_tokens=max(limits),  # END counts, the decoder's first token does not
            logits_processor=need("transformers", "hf").LogitsProcessorList([ends]),
            **beam,
        )
        return [self._up_to_end(row[1:]) for row in rows.tolist()]  # each begins with the decoder's first token

    @torch.no_grad()
    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        start, end = self.config.decoder_start_token_id, self.config.eos_token_id
        said, _ = pad_batch([[start, *target] for target in targets], self.config.pad_token_id, self.model.device)
        logp = self.model(**self._read(sources), decoder_input_ids=said).logits.log_softmax(-1)
        rows = zip(logp, ([*target, end] for target in targets), strict=True)
        return [row[torch.arange(len(said)), torch.tensor(said)].tolist() for row, said in rows]

    def _read(self, sources: Sequence[Tokens]) -> dict[str, torch.Tensor]:
        end = self.config.eos_token_id
        ids, layout = pad_batch([[*source, end] for source in sources], self.config.pad_token_id, self.model.device)
        return {"input_ids": ids, "attention_mask": layout.real().long()}

    def _up_to_end(self, row: list[int]) -> list[int]:
        end = self.config.eos_token_id
        return row[: row.index(end)] if end in row else row


class _EndsAtLimits:
    """Lets only END stand at the limit of a sentence, END counted, as our own search does.

    Of itself `generate` cuts what has not ended, with one token in the place of END, and knows one limit for a batch.
    Its `forced_eos_token_id` knows one as well, and takes END for certain where our search counts its probability.
    """

    def __init__(self, limits: Sequence[int], width: int, end: int) -> None:
        self.end = end
        self.rows: dict[int, list[int]] = {}  # of hypotheses, by the limit of their sentence
        for sentence, limit in enumerate(limits):
            self.rows.setdefault(limit, []).extend(range(sentence * width, (sentence + 1) * width))

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # One token short of the limit, and with the decoder's first one, that many stand there.
        rows = self.rows.get(input_ids.shape[1])
        if rows is None:
            return scores
        ended = scores.clone()
        ended[rows] = -torch.inf
        ended[rows, self.end] = scores[rows, self.end]
        return ended


def build_huggingface(translator: Translator) -> Any:
    """Their model with our weights.

    Raises:
        UserError: transformers has no such model, or is not installed.
    """
    if len(translator.models) > 1:
        raise UserError("transformers has no models that vote; give one")
    config = translator.model.config
    kind, values = choose_kind(config), describe_marian(config)
    library = need("transformers", "hf")
    theirs_class = getattr(library, CLASSES[kind])
    theirs = theirs_class(theirs_class.config_class(**values))
    lacking, unknown = theirs.load_state_dict(to_marian(translator.model.state_dict(), config), strict=False)
    theirs.tie_weights()
    if unknown or any(not name.endswith(_FOLLOWING) for name in lacking):
        raise UserError(f"this release of transformers ({library.__version__}) names tensors otherwise: {unknown[:1]}")
    theirs.generation_config.forced_eos_token_id = None
    return theirs.eval()


def write_huggingface(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> list[str]:
    """Writes the files and says how far transformers agrees with our model when it loads them.

    Raises:
        UserError: transformers cannot express the model, or does not agree with it.
    """
    theirs = build_huggingface(translator)
    with without_bars():
        theirs.save_pretrained(folder)
    vocabularies, longest = translator.vocabularies, theirs.config.max_position_embeddings
    source, target = vocabularies.source, vocabularies.target
    if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
        to_marian_tokenizer(source, target, folder, longest)
    else:
        to_fast_tokenizer(source, longest).save_pretrained(folder)
        if not vocabularies.joint:
            to_fast_tokenizer(target, longest).save_pretrained(folder / TARGET)
    _say_languages(translator.languages, folder / SETTINGS)
    library = need("transformers", "hf")
    with without_bars():
        loaded = type(theirs).from_pretrained(folder)
    agreement = compare(translator, HuggingFacePeer(loaded), sources)
    check(agreement, f"{type(theirs).__name__} of transformers")
    _check_tokenizer(translator, library, folder, sources)
    return [f"as {type(theirs).__name__}, {agreement}"]


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the bars that transformers draws while it writes and loads weights."""
    log = need("transformers", "hf").utils.logging
    shown = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            log.enable_progress_bar()


def _say_languages(languages: tuple[str, str], path: Path) -> None:
    """Adds them to the tokenizer's settings, where transformers' own models have them, unless they are unknown."""
    if languages == UNKNOWN:
        return
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings |= {"source_lang": languages[0], "target_lang": languages[1]}
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_tokenizer(translator: Translator, library: Any, folder: Path, sources: Sequence[Tokens]) -> None:
    """Refuses a tokenizer that cuts texts otherwise, or joins them otherwise, than ours."""
    source, target = translator.vocabularies.source, translator.vocabularies.target
    theirs = library.AutoTokenizer.from_pretrained(folder)
    joining = target if isinstance(source, SentencePieceTokenizer) else source  # MarianTokenizer joins what was written
    for tokens in sources:
        text = source.decode(tokens)
        if theirs(text).input_ids != [*source.encode(text), translator.model.config.eos]:
            raise UserError(f"transformers' tokenizer cuts {text!r} otherwise than ours, so nothing was written")
        joined = joining.encode(text)
        if theirs.decode(joined, skip_special_tokens=True) != joining.decode(joined):
            raise UserError(f"transformers' tokenizer joins {text!r} otherwise than ours, so nothing was written")
