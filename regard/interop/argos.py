"""Export packages for Argos Translate and LibreTranslate."""

import math
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.data.text.languages import has_spaces, language_name
from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.subwords import SPACE_MARK
from regard.data.text.tokenizer import is_unspaced
from regard.decoding.settings import SearchSettings
from regard.errors import UserError, import_optional
from regard.interop.ctranslate2 import POSITIONS, UNKNOWN, to_ctranslate2
from regard.interop.files import write_json
from regard.interop.sentencepiece import to_sentencepiece
from regard.interop.verification import (
    BEAM,
    TOLERANCE,
    Tokens,
    check_agreement,
    compare,
    ended_before_limit,
    longest_input,
)
from regard.pipelines.external import CTranslate2Generator
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator

SUFFIX = ".argosmodel"
METADATA, MODEL, SENTENCEPIECE = "metadata.json", "model", "sentencepiece.model"
VERSIONS = {"package_version": "1.0", "argos_version": "1.9"}
SEARCH = SearchSettings(beam=BEAM, alpha=0.2, stop="first", n_best=BEAM, min_length=1)
"""Search settings of Argos Translate. CTranslate2 never returns an empty translation by default."""
MAX_TARGET = 256
"""CTranslate2's default limit of target tokens, which Argos Translate does not change."""
_LANGUAGE_CODE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")


class ArgosPackage:
    """Translates with an unpacked package, using the same calls as Argos Translate."""

    def __init__(self, folder: Path) -> None:
        library = import_optional("sentencepiece", "export")
        self.tokenizer = library.SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE))
        self._engine = import_optional("ctranslate2", "export").Translator(str(folder / MODEL), device="cpu")

    def generate(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the tokens of each translation."""
        results = self._engine.translate_batch(
            [self.tokenizer.encode(text, out_type=str) for text in texts],
            replace_unknowns=True,
            max_batch_size=32,
            batch_type="tokens",
            beam_size=BEAM,
            num_hypotheses=1,
            length_penalty=SEARCH.alpha,
            return_scores=True,
        )
        return [result.hypotheses[0] for result in results]

    def decode(self, tokens: Sequence[str]) -> str:
        """Return the text of a translation. Argos Translate replaces underscores by spaces."""
        return _replace_marks(self.tokenizer.decode_pieces(list(tokens))).removeprefix(" ")


def export_argos(
    translator: Translator, folder: Path, sources: Sequence[Tokens], quantization: str | None
) -> list[str]:
    """Write and verify a package, and return a summary of the verification."""
    if len(translator.models) > 1:
        raise UserError("Argos Translate has no ensembles; give one model")
    config = translator.model.config
    if config.max_positions is not None and config.max_positions < MAX_TARGET:
        raise UserError(
            f"Argos Translate generates up to {MAX_TARGET} tokens, but this model has {config.max_positions} "
            f"{config.positions} positions"
        )
    name = f"translate-{'_'.join(_language_codes(translator))}-{VERSIONS['package_version'].replace('.', '_')}"
    texts = _select_texts(translator, sources)
    sentencepiece_model = to_sentencepiece(translator.vocabularies.source, has_spaces(translator.languages[0]))
    archive = folder / f"{name}{SUFFIX}"
    summary = []
    for data_type in dict.fromkeys(("float32", quantization or "float32")):
        _write_package(translator, sentencepiece_model, data_type, name, archive)
        with tempfile.TemporaryDirectory() as temporary:
            with zipfile.ZipFile(archive) as package:
                package.extractall(temporary)
            summary += _verify(translator, Path(temporary) / name, texts, quantised=data_type != "float32")
    return summary


def _language_codes(translator: Translator) -> tuple[str, str]:
    for code, side in zip(translator.languages, ("source", "target"), strict=True):
        is_unnamed = code == side  # the default of `Translator.languages`
        if is_unnamed or not _LANGUAGE_CODE.fullmatch(code):
            raise UserError(
                f"Argos Translate needs language codes, but the {side} language of this model is {code!r}; "
                "set languages in config.json, for example to en and de"
            )
    return translator.languages


def _write_package(translator: Translator, sentencepiece_model: bytes, data_type: str, name: str, path: Path) -> None:
    source, target = translator.languages
    metadata = VERSIONS | {
        "from_code": source,
        "from_name": language_name(source),
        "to_code": target,
        "to_name": language_name(target),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        (folder / MODEL).mkdir(parents=True)
        to_ctranslate2(translator.model, _sentencepiece_tokens(translator), folder / MODEL, data_type)
        (folder / SENTENCEPIECE).write_bytes(sentencepiece_model)
        write_json(folder / METADATA, metadata)
        archive = shutil.make_archive(str(Path(temporary) / "package"), "zip", temporary, name)
        shutil.copyfile(archive, path)


def _sentencepiece_tokens(translator: Translator) -> tuple[list[str], list[str]]:
    """Return the tokens of both vocabularies with SentencePiece's space mark."""
    source, target = translator.vocabularies.tokens
    return [token.replace(" ", SPACE_MARK) for token in source], [token.replace(" ", SPACE_MARK) for token in target]


def _select_texts(translator: Translator, sources: Sequence[Tokens]) -> list[str]:
    """Return the texts of sources that start in a script of the source language.

    A converted SentencePiece model adds a leading space to all texts or to none, depending on the language.
    """
    tokenizer, language = translator.vocabularies.source, translator.languages[0]
    texts = [text for text in map(tokenizer.decode, sources) if text.strip()]
    if not isinstance(tokenizer, SentencePieceTokenizer):
        texts = [text for text in texts if is_unspaced(text) != has_spaces(language)]
    if not texts:
        raise UserError(
            f"no sentence of the sample starts in a script of {language_name(language)}; give other sentences"
        )
    return texts


def _verify(translator: Translator, folder: Path, texts: Sequence[str], quantised: bool) -> list[str]:
    package, vocabularies = ArgosPackage(folder), _sentencepiece_tokens(translator)
    encoded = translator.vocabularies.source.encode_batch(texts)
    _check_tokenizer(package, texts, encoded, vocabularies[0])
    longest = longest_input(translator.model.config, POSITIONS)
    generator = CTranslate2Generator(folder / MODEL, vocabularies, torch.device("cpu"), longest)
    agreement = compare(translator, generator, encoded)
    if quantised:
        return [agreement.quantised_summary]
    check_agreement(agreement, "the Argos Translate package")
    return [str(agreement), _compare_texts(translator, package, texts, encoded)]


def _check_tokenizer(
    package: ArgosPackage, texts: Sequence[str], encoded: Sequence[Tokens], vocabulary: Sequence[str]
) -> None:
    unknown = package.tokenizer.id_to_piece(package.tokenizer.unk_id())
    known = set(vocabulary)
    for text, ids in zip(texts, encoded, strict=True):
        tokens = package.tokenizer.encode(text, out_type=str)
        if [token if token in known else unknown for token in tokens] != [vocabulary[index] for index in ids]:
            raise UserError(f"the SentencePiece model tokenises {text!r} differently, so nothing was written")


def _compare_texts(
    translator: Translator, package: ArgosPackage, texts: Sequence[str], encoded: Sequence[Tokens]
) -> str:
    """Compare translated texts. Translations that ended before the limit must be equal or have equal scores."""
    beams, package_tokens = translator.hypotheses(texts, SEARCH, split=False), package.generate(texts)
    ids = {token: index for index, token in enumerate(_sentencepiece_tokens(translator)[1])}
    empty_targets = translator.score_tokens(encoded, [[] for _ in encoded])
    ended = [i for i, beam in enumerate(beams) if ended_before_limit(beam, encoded[i], SEARCH, MAX_TARGET)]
    ties = 0
    for i in ended:
        best, package_text = beams[i][0], package.decode(package_tokens[i])
        if package_text != _replace_marks(best.text):
            # Unknown words are copied from the source, so their tokens may not be in the vocabulary.
            tokens = [ids.get(token, ids[UNKNOWN]) for token in package_tokens[i]]
            (scored,) = translator.score_tokens([encoded[i]], [tokens], SEARCH)
            end_log_prob = empty_targets[i].token_log_probs[0]
            if _package_score(scored, end_log_prob) < _package_score(best, end_log_prob) - TOLERANCE:
                raise UserError(
                    f"the Argos Translate package translates to {package_text!r}, but the regard model to "
                    f"{best.text!r}, so nothing was written"
                )
            ties += 1
    tied = f" and {ties} with equal scores" if ties else ""
    return f"translated texts with the settings of Argos Translate: {len(ended) - ties} of {len(ended)} identical{tied}"


def _package_score(hypothesis: Hypothesis, end_log_prob: float) -> float:
    """Return the score in CTranslate2, which renormalises the first token's distribution after excluding END."""
    renormalisation = -math.log1p(-min(math.exp(end_log_prob), 1 - TOLERANCE))
    return hypothesis.score + renormalisation / SEARCH.length_normaliser(float(len(hypothesis.tokens) + 1))


def _replace_marks(text: str) -> str:
    return text.replace(SPACE_MARK, " ").replace("_", " ")
