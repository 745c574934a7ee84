"""Translation memories: earlier translations that are taken over, or shown next to new ones."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from regard.data.text.interchange import SUFFIXES, TmxWriter
from regard.data.text.readers import find_shards, format_suffix, read_parallel
from regard.errors import UserError, import_optional
from regard.files import report_unwritable
from regard.pipelines.hypothesis import Hypothesis, MemoryMatch
from regard.pipelines.sentence_translator import SourceRequest

MAX_PAIRS = 5_000_000
SHOWN = 3
"""Number of similar entries that are shown."""


class TranslationMemory:
    """Sentences with their translations, which are found by the sentence or a similar one.

    Sentences are compared without regard to white space. Of several translations of a sentence, the last one is used.

    Examples:
        >>> memory = TranslationMemory([("I love apples", "我喜欢苹果")], threshold=0.7)
        >>> memory.find("I love  apples")
        [MemoryMatch(source='I love apples', target='我喜欢苹果', similarity=1.0)]

    Args:
        pairs: Sentences and their translations.
        threshold: Minimum similarity, 0 to 1, of similar sentences.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]], threshold: float = 0.75) -> None:
        if not 0 < threshold <= 1:
            raise UserError(
                f"the threshold {threshold:g} of the memory is no similarity; choose 0.75, or 1 for equal ones"
            )
        self.threshold = threshold
        self._targets: dict[str, tuple[str, str]] = {}
        for source, target in pairs:
            if source.strip() and target.strip():
                self._targets[_key(source)] = source, target
            if len(self._targets) > MAX_PAIRS:
                raise UserError(f"a translation memory has at most {MAX_PAIRS:,} sentences")
        self._keys = list(self._targets)
        self._process = import_optional("rapidfuzz.process", "documents") if threshold < 1 else None
        self._ratio = import_optional("rapidfuzz.fuzz", "documents").ratio if threshold < 1 else None

    @classmethod
    def read(cls, path: Path, languages: tuple[str, str], threshold: float = 0.75) -> TranslationMemory:
        """Read a .tmx, XLIFF, .tsv, .jsonl or .parquet file; of a .tmx file, the texts in these languages."""
        keys = ("source", "target")
        if format_suffix(path) in SUFFIXES:
            stated = find_shards(path)[0].languages()
            keys = keys if stated is None or languages == keys else languages
        return cls(read_parallel(path, keys=keys), threshold)

    def __repr__(self) -> str:
        return f"TranslationMemory({len(self):,} sentences)"

    def __len__(self) -> int:
        return len(self._targets)

    def find(self, sentence: str) -> list[MemoryMatch]:
        """Return the entry of the sentence, or the entries of the most similar sentences, best first."""
        key = _key(sentence)
        if key in self._targets:
            return [MemoryMatch(*self._targets[key], 1.0)]
        if self._process is None:
            return []
        cutoff = 100 * self.threshold
        found = self._process.extract(key, self._keys, scorer=self._ratio, score_cutoff=cutoff, limit=SHOWN)
        return [MemoryMatch(*self._targets[other], round(score / 100, 4)) for other, score, _ in found]

    def take_over(
        self,
        requests: Sequence[SourceRequest],
        search: Callable[[Sequence[SourceRequest]], list[list[Hypothesis]]],
    ) -> list[list[Hypothesis]]:
        """Take over the translations of sentences with an equal entry, and search for those of the others."""
        entries = [tuple(self.find(request.sentence.text)) for request in requests]
        new = [request for request, found in zip(requests, entries, strict=True) if not _is_exact(found)]
        searched = iter(search(new))
        return [
            [
                replace(hypothesis, source=request.sentence.text, memory=found)
                for hypothesis in ([Hypothesis(found[0].target, 0.0)] if _is_exact(found) else next(searched))
            ]
            for request, found in zip(requests, entries, strict=True)
        ]


class MemoryFile:
    """Writes the sentences of translations to a new .tmx file, which exists when all are written."""

    def __init__(self, path: Path, languages: tuple[str, str]) -> None:
        if path.suffix.lower() != ".tmx" or path.exists() or not path.parent.is_dir():
            raise UserError(f"{path}: the new translation memory needs a name that ends in .tmx and does not exist yet")
        self._path, self._part, self._languages = path, path.with_name(f"{path.name}.part"), languages

    def __enter__(self) -> Self:
        with report_unwritable(self._path):
            self._file = self._part.open("w", encoding="utf-8", newline="\n")
        self._writer = TmxWriter(self._file.write, self._languages)
        return self

    def add(self, hypothesis: Hypothesis) -> None:
        """Write the sentences of a translation."""
        with report_unwritable(self._path):
            for sentence in hypothesis.sentences:
                if sentence.source.strip() and sentence.text.strip():
                    self._writer.add(sentence.source, sentence.text)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with report_unwritable(self._path):
                    self._writer.close()
                    self._file.close()
                    self._part.rename(self._path)
        finally:
            with suppress(OSError):
                self._file.close()
            self._part.unlink(missing_ok=True)


def _is_exact(found: Sequence[MemoryMatch]) -> bool:
    return bool(found) and found[0].similarity == 1


def _key(sentence: str) -> str:
    return " ".join(unicodedata.normalize("NFC", sentence).split())
