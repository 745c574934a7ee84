"""Translation of documents: the segments of a file in windows, a journal of what is done, and a report."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.documents.document import Document, Segment, Untranslated
from regard.data.documents.marked_text import Part, align_tokens
from regard.data.documents.segment_translation import (
    AlignedTranslation,
    Requests,
    SegmentGroup,
    SentenceRequest,
    TranslatedSegment,
    explain,
    translate_segment,
)
from regard.data.text.sentences import LengthWarnings
from regard.decoding.settings import DecodingSettings
from regard.errors import UserError
from regard.files import MissingFileError, read_bytes, report_unwritable
from regard.pipelines.constraints import Constraints
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator

WINDOW = 64
"""Segments that are translated together; as many are translated again after an interruption."""
SHOWN = 8
"""Untranslated texts that the report names on a terminal."""
Translate = Callable[[Requests], list[AlignedTranslation]]


@dataclass
class DocumentReport:
    """What was translated and what was not.

    Attributes:
        segments: Number of segments.
        sentences: Number of sentences that the model translated.
        resumed: Number of segments that were translated before an interruption.
        untranslated: Texts that are not translated, with the reason.
        placed: Segments with placeholders that the model did not keep, and that were put back by the alignment.
    """

    segments: int = 0
    sentences: int = 0
    resumed: int = 0
    untranslated: list[Untranslated] = field(default_factory=list)
    placed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, segment: Segment, result: TranslatedSegment) -> None:
        """Add the result of a segment."""
        self.segments += 1
        self.sentences += result.sentences
        if result.placed:
            self.placed.append({"where": segment.where, "placeholders": result.placed})
        self.untranslated += explain(segment, result)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield sentences for a terminal."""
        before = f", {self.resumed} of them before the interruption" if self.resumed else ""
        yield f"{self.segments} segments translated ({self.sentences} sentences){before}"
        if self.placed:
            first = self.placed[0]
            yield (
                f"placeholders placed by the alignment in {len(self.placed)} segments, the first in {first['where']}: "
                f"{' '.join(first['placeholders'])}"
            )
        counts = Counter(one.reason for one in self.untranslated)
        for reason, count in counts.most_common():
            found = [one for one in self.untranslated if one.reason == reason]
            places = ", ".join(dict.fromkeys(one.where for one in found[:SHOWN]))
            more = " …" if count > SHOWN else ""
            yield f"not translated, {reason}: {count} ({places}{more})"


class SegmentCache:
    """Translations of segments by their content, for repeated segments and after an interruption."""

    def __init__(self) -> None:
        self._results: dict[str, TranslatedSegment] = {}

    def __len__(self) -> int:
        return len(self._results)

    def find(self, segment: Segment) -> TranslatedSegment | None:
        """Return the translation of a segment with the same content."""
        return self._results.get(_key(segment))

    def add(self, segment: Segment, result: TranslatedSegment) -> None:
        """Store a translation."""
        self._results[_key(segment)] = result

    def flush(self) -> None:
        """Write what is stored."""


class Journal(SegmentCache):
    """Translations of segments in a file, with which an interrupted translation continues.

    Args:
        path: The file.
        conditions: What the translations depend on. A journal with other conditions is not used.
    """

    def __init__(self, path: Path, conditions: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = path
        self._lines = [_add_checksum(json.dumps({"conditions": conditions}, sort_keys=True).encode())]
        self.discarded, self._length = False, 0
        with suppress(MissingFileError):
            self._read(read_bytes(path))

    def _read(self, data: bytes) -> None:
        complete = data[: data.rfind(b"\n") + 1]  # the last line may be incomplete
        head, *records = complete.splitlines(keepends=True) or [b""]
        if head != self._lines[0]:
            self.discarded = True
            return
        for record in records:
            content = record.partition(b" ")[2].rstrip(b"\n")
            if record == _add_checksum(content):  # not a damaged line
                values = json.loads(content)
                key = values.pop("key")
                self._results[key] = TranslatedSegment(**values)
        self._lines, self._length = [], len(complete)

    def add(self, segment: Segment, result: TranslatedSegment) -> None:
        super().add(segment, result)
        self._lines.append(_add_checksum(json.dumps({"key": _key(segment), **asdict(result)}).encode()))

    def flush(self) -> None:
        if self._lines:
            data = b"".join(self._lines)
            try:
                with report_unwritable(self.path), self.path.open("r+b" if self._length else "wb") as file:
                    file.truncate(self._length)
                    file.seek(self._length)
                    file.write(data)
            except UserError:
                if not self._length:
                    self.remove()
                raise
            self._lines, self._length = [], self._length + len(data)

    def remove(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def _add_checksum(content: bytes) -> bytes:
    """Return a line of the journal."""
    return b"%08x %s\n" % (zlib.crc32(content), content)


def _key(segment: Segment) -> str:
    """Return a checksum of the content of a segment."""
    content = segment.content
    written = repr((content.text, content.elements, content.protected))
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def translate_document(
    document: Document,
    translate: Translate,
    fits: Callable[[str], bool] = lambda sentence: True,
    cache: SegmentCache | None = None,
    on_progress: Callable[[int], object] | None = None,
    deferring: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> tuple[bytes, DocumentReport]:
    """Return a document with its text translated, and a report.

    Args:
        document: The document.
        translate: Translates sentences, see `translate_with`.
        fits: Returns whether a sentence is short enough for the model.
        cache: Translations that exist already; new ones are added.
        on_progress: Called with the number of new segments after each window.
        deferring: Context manager in which the cache is written without an interruption.
    """
    cache = SegmentCache() if cache is None else cache
    before = len(cache)
    report = DocumentReport()
    translations: dict[int, Sequence[Part]] = {}
    numbered = iter(enumerate(document.segments))
    while window := list(islice(numbered, WINDOW)):
        new = {_key(segment): segment for _, segment in window if cache.find(segment) is None}
        group = SegmentGroup([translate_segment(one.content, fits) for one in new.values()])
        requests = group.advance()
        while requests:
            requests = group.advance(translate(requests))
        for segment, result in zip(new.values(), group.results, strict=True):
            cache.add(segment, result)
        with deferring():
            cache.flush()
        for number, segment in window:
            found = cache.find(segment)
            assert found is not None
            report.add(segment, found)
            translations[number] = found.parts
        if on_progress is not None:
            on_progress(len(window))
    report.resumed = min(before, report.segments)
    data = document.render(translations)  # may add to the untranslated texts
    report.untranslated = [*document.untranslated, *report.untranslated]
    return data, report


def translate_with(
    translator: Translator,
    settings: DecodingSettings | None = None,
    constraints: Constraints | None = None,
    warnings: LengthWarnings | None = None,
) -> Translate:
    """Return a function that translates sentences with a model, with alignments where they are needed."""
    done = 0

    def translate(requests: Requests) -> list[AlignedTranslation]:
        nonlocal done
        results: list[AlignedTranslation] = [AlignedTranslation("")] * len(requests)
        for aligned in (False, True):
            chosen = [i for i, request in enumerate(requests) if request.needs_alignment is aligned]
            texts = [requests[i].text for i in chosen]
            alignments = aligned and translator.generator.has_attention
            found = (
                translator.hypotheses(texts, settings, constraints, alignments=alignments, first=done + 1, split=False)
                if texts
                else []
            )
            for i, (best, *_) in zip(chosen, found, strict=True):
                results[i] = _to_aligned(translator, requests[i], best)
                if warnings is not None:
                    warnings.add(done + i + 1, best.warning)
        done += len(requests)
        return results

    return translate


def _to_aligned(translator: Translator, request: SentenceRequest, hypothesis: Hypothesis) -> AlignedTranslation:
    """Return a hypothesis with the source span that is aligned with each target token."""
    if hypothesis.alignment is None:
        return AlignedTranslation(hypothesis.text)
    vocabularies = translator.vocabularies
    sources = vocabularies.source.char_spans(vocabularies.source.encode(request.text))
    targets = vocabularies.target.char_spans(hypothesis.tokens)
    return AlignedTranslation(hypothesis.text, align_tokens(hypothesis.alignment, sources, targets))
