"""`regard export --to ctranslate2`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.generator import Generator
from regard.interop.verification import SEARCHES, Tokens, check, compare
from regard.pipelines.ctranslate2 import CTranslate2Generator
from regard.pipelines.translator import Translator


class EnginePeer:
    """CTranslate2 at work, as verification wants it."""

    def __init__(self, generator: Generator) -> None:
        assert isinstance(generator, CTranslate2Generator)
        self.generator, self.longest = generator, generator.longest

    def write(self, sources: Sequence[Tokens], settings: SearchSettings) -> list[list[int]]:
        return [
            best[0].tokens
            for best in self.generator.generate([DecodingRequest(source) for source in sources], settings)
        ]

    def score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        return [one.token_log_probs for one in self.generator.score(sources, targets, SEARCHES["greedy"])]


def write_ctranslate2(
    translator: Translator, folder: Path, sources: Sequence[Tokens], quantization: str | None
) -> list[str]:
    """Writes the files and says how far the engine agrees with our model.

    The weights as they are must agree exactly; how much quantised ones differ is told.

    Raises:
        UserError: CTranslate2 cannot express the model, or does not agree with it.
    """
    translator.save_engine(folder, quantization or "float32")
    if quantization in (None, "float32"):
        return [_verify(translator, folder, sources)]
    with tempfile.TemporaryDirectory() as room:
        translator.save_engine(Path(room))
        exact = _verify(translator, Path(room), sources)
    quantised = compare(translator, EnginePeer(Translator.load(folder).generator), sources)
    return [exact, quantised.as_quantised]


def _verify(translator: Translator, folder: Path, sources: Sequence[Tokens]) -> str:
    agreement = compare(translator, EnginePeer(Translator.load(folder).generator), sources)
    check(agreement, "the model in CTranslate2")
    return str(agreement)
