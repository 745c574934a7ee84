"""Cleaning of a folder of shards, with the result of cleaning all its pairs in order.

Repeated pairs and the rules that are learned concern the whole corpus, so that each part is read up to three times:
workers apply the rules that need one pair and compute fingerprints; the main process then finds repeated pairs in the
order of the shards and chooses the sample, whose pairs workers read; finally workers apply what is learned from it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from regard.data.text.cleaning.cleaner import NAMES, Cleaner, RuleNumbers, mark, mark_repeated
from regard.data.text.cleaning.corpus_rules import Learned, ModelRule
from regard.data.text.cleaning.fingerprints import MAX_SAMPLE_CHARACTERS, Fingerprints, FingerprintSet, Sample
from regard.data.text.cleaning.pair_rules import check_pairs
from regard.data.text.cleaning.report import MAX_EXAMPLES, Report
from regard.data.text.cleaning.settings import CleaningSettings, ModelCleaningSettings
from regard.data.text.cleaning.texts import Pairs, either
from regard.data.text.readers import Pair, PairRecord, read_texts
from regard.pipelines.executors import Executor
from regard.pipelines.pair_scores import PairScorer
from regard.pipelines.shard_jobs import TranslatorSource
from regard.pipelines.shards import PARTS, Folder, Job, Part, Results, Rows, ShardRun, read_rows

SAMPLE = f"{PARTS}/sample.json"
KEYS = ("source", "target")


@dataclass(frozen=True)
class Cleaning:
    """What a folder of shards is cleaned with.

    Attributes:
        settings: Thresholds of the rules.
        languages: Language codes of both sides; "" if a language is unknown.
        models: Models for the last rule: none, one, or one for each direction.
    """

    settings: CleaningSettings
    languages: tuple[str, str]
    models: tuple[TranslatorSource, ...] = ()


def scan_name(part: Part) -> str:
    """Return the name of the file with the fingerprints of a part."""
    return f"{PARTS}/{part.shard}.{part.number:06d}.npz"


def decisions_name(part: Part) -> str:
    """Return the name of the file with the rules that removed the pairs of a part so far."""
    return f"{PARTS}/{part.shard}.{part.number:06d}.npy"


def read_pairs(rows: Rows) -> list[Pair]:
    """Return the pairs of some rows."""
    return [Pair(*texts) for texts in zip(*(rows.texts(key) for key in KEYS), strict=True)]


@dataclass(frozen=True)
class ScanWork:
    """Applies the rules that need only the pair, and writes the fingerprints of each part."""

    cleaning: Cleaning
    source: Folder
    target: Folder

    def open(self) -> Callable[[Part], int]:
        settings = self.cleaning.settings
        excluded = Cleaner(settings, excluded=(text for path in settings.exclude for text in read_texts(path))).excluded

        def scan(part: Part) -> int:
            columns: list[list[np.ndarray[Any, Any]]] = [[], [], [], []]
            for rows in read_rows(self.source, part):
                texts = read_pairs(rows)
                pairs, numbers = Pairs(texts), np.zeros(len(rows), np.uint8)
                for rule, broken in check_pairs(pairs, settings):
                    mark(numbers, rule, broken)
                if excluded.size:
                    mark(numbers, "overlap", either([excluded.contains(one.folded_hashes) for one in pairs.texts]))
                lengths = np.array([len(source) + len(target) for source, target in texts], np.int64)
                found: list[np.ndarray[Any, Any]] = [numbers, pairs.raw_hashes(), pairs.folded_hashes(), lengths]
                for column, values in zip(columns, found, strict=True):
                    column.append(values)
            kinds = np.uint8, np.uint64, np.uint64, np.int64
            joined = [
                np.concatenate([np.empty(0, kind), *column]).astype(kind)
                for kind, column in zip(kinds, columns, strict=True)
            ]
            with self.target.create(scan_name(part)) as path, path.open("wb") as file:
                np.savez(file, numbers=joined[0], raw=joined[1], folded=joined[2], lengths=joined[3])
            return len(joined[0])

        return scan


@dataclass(frozen=True)
class SampleWork:
    """Reads the pairs of the sample: those not removed with fingerprints up to `largest`."""

    source: Folder
    target: Folder
    largest: int

    def open(self) -> Callable[[Part], tuple[Part, list[Pair], Fingerprints]]:
        def read(part: Part) -> tuple[Part, list[Pair], Fingerprints]:
            numbers = load_decisions(self.target, part)
            folded = load_scan(self.target, part)["folded"]
            chosen = (numbers == 0) & (folded <= np.uint64(self.largest))
            pairs, first = [], 0
            if chosen.any():
                for rows in read_rows(self.source, part):
                    wanted = np.flatnonzero(chosen[first : first + len(rows)]).tolist()
                    texts = read_pairs(rows) if wanted else []
                    pairs += [texts[index] for index in wanted]
                    first += len(rows)
            return part, pairs, folded[chosen]

        return read


@dataclass(frozen=True)
class CleanJob(Job):
    """Keeps the rows whose pairs break no rule, unchanged."""

    cleaning: Cleaning
    target: Folder

    def load(self) -> Callable[[Part, Rows], Results]:
        learned, model = learn(self.cleaning, load_sample(self.target))
        current: tuple[Part, RuleNumbers] | None = None
        first = 0
        shown: Counter[str] = Counter()

        def clean(part: Part, rows: Rows) -> Results:
            nonlocal current, first
            if current is None or current[0] != part:
                current, first = (part, load_decisions(self.target, part)), 0
                shown.clear()
            numbers = current[1][first : first + len(rows)].copy()
            texts = read_pairs(rows)
            details = Cleaner.apply_learned(texts, numbers, learned, model)
            removed = np.flatnonzero(numbers).tolist()
            examples = []
            for index in removed:
                rule = NAMES[int(numbers[index])]
                shown[rule] += 1
                if shown[rule] <= MAX_EXAMPLES:
                    examples.append([rule, first + index, *texts[index], details.get(index, "")])
            first += len(rows)
            counts = Counter(NAMES[int(numbers[index])] for index in removed)
            return Results(np.flatnonzero(numbers == 0).tolist(), {}, counts, examples)

        return clean


def learn(cleaning: Cleaning, sample: Sample) -> tuple[Learned, ModelRule | None]:
    """Return the rules that are learned from the sample, and that of the models."""
    learned = Learned(sample, cleaning.settings, cleaning.languages)
    if not cleaning.models:
        return learned, None
    assert isinstance(cleaning.settings, ModelCleaningSettings)
    scorer = PairScorer(*(model.load() for model in cleaning.models))
    return learned, ModelRule(scorer, sample, cleaning.settings)


def load_scan(target: Folder, part: Part) -> dict[str, Any]:
    """Return the arrays that `ScanWork` has written."""
    with target.open(scan_name(part), decompress=False) as stream, np.load(stream, allow_pickle=False) as arrays:
        return dict(arrays)


def load_decisions(target: Folder, part: Part) -> RuleNumbers:
    """Return the rules that removed the pairs of a part before rules are learned."""
    with target.open(decisions_name(part), decompress=False) as stream:
        numbers: RuleNumbers = np.lib.format.read_array(stream, allow_pickle=False)
    return numbers


def load_sample(target: Folder) -> Sample:
    """Return the sample that `prepare` has written."""
    with target.open(SAMPLE) as stream:
        values = json.load(stream)
    sample = Sample()
    sample.add([Pair(*texts) for texts in values["pairs"]], np.array(values["fingerprints"], np.uint64))
    return sample


@dataclass
class ShardCleaner:
    """Cleans a folder of shards.

    Attributes:
        report: Counts and examples, complete when `finish` was called.
    """

    run: ShardRun
    cleaning: Cleaning
    executor: Executor
    report: Report = field(default_factory=Report)

    def prepare(self) -> Iterator[tuple[str, int]]:
        """Compute what the job needs; yield the name of the pass and the number of pairs of each part."""
        source, target = self.run.source, self.run.target
        self.run.start()
        parts = [part for shard in self.run.shards for part in self.run.parts(shard)]
        finished = self.run.finished_parts()
        missing = [part for part in parts if scan_name(part) not in finished]
        for scanned in self.executor.run(ScanWork(self.cleaning, source, target), missing):
            yield "reading", scanned.result
        if SAMPLE in finished:  # decisions are complete too
            return
        largest = self._decide(parts)
        found: dict[Part, tuple[list[Pair], Fingerprints]] = {}
        for read in self.executor.run(SampleWork(source, target, largest), parts):
            part, pairs, fingerprints = read.result
            found[part] = pairs, fingerprints
            yield "sampling", len(pairs)
        values = {
            "pairs": [list(pair) for part in parts for pair in found[part][0]],
            "fingerprints": [value for part in parts for value in found[part][1].tolist()],
        }
        with target.create(SAMPLE) as path:
            path.write_text(json.dumps(values), encoding="utf-8")

    def _decide(self, parts: list[Part]) -> int:
        """Find repeated pairs, write the decisions of each part, and return the largest fingerprint of the sample."""
        settings = self.cleaning.settings
        exact, near = FingerprintSet(), FingerprintSet()
        largest, characters = 2**64 - 1, 0
        fingerprints, lengths = np.empty(0, np.uint64), np.empty(0, np.int64)
        for part in parts:
            scan = load_scan(self.run.target, part)
            numbers = scan["numbers"]
            if settings.duplicates is not None:
                mark_repeated(numbers, "duplicate", scan["raw"], exact)
            if settings.duplicates == "near":
                mark_repeated(numbers, "near-duplicate", scan["folded"], near)
            with self.run.target.create(decisions_name(part)) as path, path.open("wb") as file:
                np.save(file, numbers)
            kept = (numbers == 0) & (scan["folded"] <= np.uint64(largest))
            fingerprints = np.concatenate((fingerprints, scan["folded"][kept]))
            lengths = np.concatenate((lengths, scan["lengths"][kept]))
            characters = int(lengths.sum())
            while characters > MAX_SAMPLE_CHARACTERS and largest:  # as `Sample.add` does
                largest //= 2
                kept = fingerprints <= np.uint64(largest)
                fingerprints, lengths = fingerprints[kept], lengths[kept]
                characters = int(lengths.sum())
        return largest

    def job(self) -> CleanJob:
        """Return the job that keeps the good rows, after `prepare`."""
        return CleanJob(self.cleaning, self.run.target)

    def finish(self) -> None:
        """Complete the report from the counts of all parts, before `ShardRun.finish` removes them."""
        learned, model = learn(self.cleaning, load_sample(self.run.target))
        report = self.report
        report.notes = [*learned.notes, *([] if model is None else [model.note])]
        report.conditions |= {"scripts": [list(names) for names in learned.scripts.names]}
        removed: Counter[str] = Counter()
        first: Counter[str] = Counter()
        for one in self.run.counts():
            report.total += one.rows
            removed.update(one.counts)
            shard = f"{self.run.source.url}/{one.part.shard}"
            for rule, row, source, target, detail in one.examples:
                report.add(rule, PairRecord(Pair(source, target), shard, first[shard] + row + 1), detail)
            first[shard] += one.rows
        report.removed = removed
