"""`regard export --to argos`: the package that Argos Translate installs, and LibreTranslate serves."""

from __future__ import annotations

import json
import math
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch

from regard.data.text.languages import language_name
from regard.data.text.tokenizer import SPACE_MARK
from regard.decoding.config import SearchSettings
from regard.errors import UserError
from regard.interop.ctranslate2 import POSITIONS, UNKNOWN, to_ctranslate2
from regard.interop.lengths import longest_input
from regard.interop.sentencepiece import to_sentencepiece
from regard.interop.verification import BEAM, TOLERANCE, GeneratorPeer, Tokens, check, compare, has_ended
from regard.pipelines.ctranslate2 import CTranslate2Generator
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator
from regard.runtime import import_optional

ENDING = ".argosmodel"
METADATA, MODEL, PIECES = "metadata.json", "model", "sentencepiece.model"
VERSIONS = {"package_version": "1.0", "argos_version": "1.9"}
SEARCH = SearchSettings(beam=BEAM, alpha=0.2, stop="first", n_best=BEAM, min_length=1)
"""How Argos Translate searches; the engine never writes nothing unless it is told to."""
WRITTEN = 256
"""Tokens that the engine writes at the most unless it is told otherwise, which Argos Translate does not do."""
_CODE = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")


class ArgosPackage:
    """An unpacked package at work, by the calls that Argos Translate makes."""

    def __init__(self, folder: Path) -> None:
        self.pieces = import_optional("sentencepiece", "export").SentencePieceProcessor(model_file=str(folder / PIECES))
        self._engine = import_optional("ctranslate2", "export").Translator(str(folder / MODEL), device="cpu")

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The translation of each text."""
        return [self.join(pieces) for pieces in self.write(texts)]

    def write(self, texts: Sequence[str]) -> list[list[str]]:
        """The pieces of each translation."""
        results = self._engine.translate_batch(
            [self.pieces.encode(text, out_type=str) for text in texts],
            replace_unknowns=True,
            max_batch_size=32,
            batch_type="tokens",
            beam_size=BEAM,
            num_hypotheses=1,
            length_penalty=SEARCH.alpha,
            return_scores=True,
        )
        return [result.hypotheses[0] for result in results]

    def join(self, pieces: Sequence[str]) -> str:
        """The text of a translation; an underscore in it becomes a space over there."""
        return _without_marks(self.pieces.decode_pieces(list(pieces))).removeprefix(" ")


def write_argos(translator: Translator, folder: Path, sources: Sequence[Tokens], quantization: str | None) -> list[str]:
    """Writes the package and says how far Argos Translate would agree with our model.

    Raises:
        UserError: the package cannot express the model, its tokenizer or its languages, or does not say the same.
    """
    if len(translator.models) > 1:
        raise UserError("Argos Translate has no models that vote; give one")
    config = translator.model.config
    if config.positions == "learned" and config.max_length < WRITTEN:
        raise UserError(
            f"Argos Translate lets a model write {WRITTEN} tokens, and this one's learned positions end at "
            f"{config.max_length}"
        )
    name = f"translate-{'_'.join(_codes(translator))}-{VERSIONS['package_version'].replace('.', '_')}"
    pieces = to_sentencepiece(translator.vocabularies.source)
    said = []
    for numbers in dict.fromkeys(("float32", quantization or "float32")):
        archive = folder / f"{name}{ENDING}"
        _pack(translator, pieces, numbers, name, archive)
        with tempfile.TemporaryDirectory() as room:
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(room)
            said += _verify(translator, Path(room) / name, sources, exact=numbers == "float32")
    return said


def _codes(translator: Translator) -> tuple[str, str]:
    for code, usual in zip(translator.languages, ("source", "target"), strict=True):
        if code == usual or not _CODE.fullmatch(code):
            raise UserError(
                f"a package of Argos Translate is found by its languages, and this model's {usual} is {code!r}; "
                "write codes such as en and de into config.json, under languages"
            )
    return translator.languages


def _pack(translator: Translator, pieces: bytes, quantization: str, name: str, archive: Path) -> None:
    """Writes the archive: one folder with everything in it."""
    source, target = translator.languages
    about = VERSIONS | {
        "from_code": source,
        "from_name": language_name(source),
        "to_code": target,
        "to_name": language_name(target),
    }
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / name
        (folder / MODEL).mkdir(parents=True)
        to_ctranslate2(translator.model, _names(translator), folder / MODEL, quantization)
        (folder / PIECES).write_bytes(pieces)
        (folder / METADATA).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        made = shutil.make_archive(str(Path(room) / "package"), "zip", room, name)
        shutil.copyfile(made, archive)


def _names(translator: Translator) -> tuple[list[str], list[str]]:
    """The pieces of both sides as SentencePiece writes them."""
    source, target = translator.vocabularies.tokens
    return [piece.replace(" ", SPACE_MARK) for piece in source], [piece.replace(" ", SPACE_MARK) for piece in target]


def _verify(translator: Translator, folder: Path, sources: Sequence[Tokens], exact: bool) -> list[str]:
    package, names = ArgosPackage(folder), _names(translator)
    texts = [translator.vocabularies.source.decode(source) for source in sources]
    texts = [text for text in texts if text.strip()]
    read = translator.vocabularies.source.encode_batch(texts)
    _check_pieces(package, texts, read, names[0])
    longest = longest_input(translator.model.config, POSITIONS)
    generator = CTranslate2Generator(folder / MODEL, names, torch.device("cpu"), longest)
    agreement = compare(translator, GeneratorPeer(generator), read)
    if not exact:
        return [agreement.as_quantised]
    check(agreement, "the package of Argos Translate")
    return [str(agreement), _compare_texts(translator, package, texts, read)]


def _check_pieces(package: ArgosPackage, texts: Sequence[str], read: Sequence[Tokens], names: Sequence[str]) -> None:
    """Refuses a tokenizer that cuts texts otherwise than ours."""
    unknown = package.pieces.id_to_piece(package.pieces.unk_id())
    known = set(names)
    for text, tokens in zip(texts, read, strict=True):
        cut = package.pieces.encode(text, out_type=str)
        if [piece if piece in known else unknown for piece in cut] != [names[token] for token in tokens]:
            raise UserError(f"in SentencePiece's form the tokenizer cuts {text!r} otherwise, so nothing was written")


def _compare_texts(translator: Translator, package: ArgosPackage, texts: Sequence[str], read: Sequence[Tokens]) -> str:
    """From text to text, as over there; what has ended by itself must be the same, or be worth as much over there.

    Raises:
        UserError: it is not.
    """
    ours, theirs = translator.hypotheses(texts, SEARCH), package.write(texts)
    ids = {piece: number for number, piece in enumerate(_names(translator)[1])}
    at_once = translator.score_tokens(read, [[] for _ in read])
    ended = [i for i, beam in enumerate(ours) if has_ended(beam, read[i], SEARCH, WRITTEN)]
    ties = 0
    for i in ended:
        best = ours[i][0]
        if package.join(theirs[i]) != _without_marks(best.text):
            tokens = [ids.get(piece, ids[UNKNOWN]) for piece in theirs[i]]  # unknown words are taken from the source
            (other,) = translator.score_tokens([read[i]], [tokens], SEARCH)
            end = at_once[i].token_log_probs[0]
            if _worth(other, end) < _worth(best, end) - TOLERANCE:
                raise UserError(
                    f"the package of Argos Translate writes {package.join(theirs[i])!r} where our model writes "
                    f"{best.text!r}, so nothing was written"
                )
            ties += 1
    same, tied = len(ended) - ties, f" and {ties} worth as much" if ties else ""
    return f"from text to text as Argos Translate asks for it, {same} of {len(ended)} translations are the same{tied}"


def _worth(one: Hypothesis, end: float) -> float:
    """A score as the engine has it, which gives the others what END, forbidden at the first place, has there."""
    share = -math.log1p(-min(math.exp(end), 1 - TOLERANCE))
    return one.score + share / SEARCH.length_normaliser(float(len(one.tokens) + 1))


def _without_marks(text: str) -> str:
    return text.replace(SPACE_MARK, " ").replace("_", " ")
