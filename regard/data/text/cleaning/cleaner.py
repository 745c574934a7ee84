"""Clean a parallel corpus in two passes, in bounded memory and without changing the order of pairs.

The first pass applies the rules that need only the pair, and removes repeated pairs by sets of 64-bit fingerprints. It
takes a sample, from which the remaining rules are learned. The second pass applies them and yields the pairs. Between
the passes, one byte of each pair is kept: the number of the rule that removed it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.corpus_rules import Learned, ModelRule, PairScore, Violation
from regard.data.text.cleaning.fingerprints import Fingerprints, FingerprintSet, Sample
from regard.data.text.cleaning.pair_rules import check_pairs
from regard.data.text.cleaning.report import Report
from regard.data.text.cleaning.settings import RULES, CleaningSettings, ModelCleaningSettings
from regard.data.text.cleaning.texts import Mask, Pairs, Texts, either
from regard.data.text.readers import Pair, PairRecord
from regard.errors import UserError

CHUNK = 8192
"""Pairs that are examined at once."""
CHUNK_CHARACTERS = 2**21
"""Characters of a chunk, beyond which it has fewer pairs."""
NUMBERS = {rule: number for number, rule in enumerate(RULES, start=1)}
NAMES = dict(enumerate(RULES, start=1))
Progress = Callable[[str, int], object]
"""Receives the name of the pass and the number of pairs examined since the last call."""
RuleNumbers = npt.NDArray[np.uint8]
"""Numbers of the rules that removed the pairs of a chunk; 0 for those that are kept."""


class Cleaner:
    """Removes the pairs of a corpus that break a rule.

    Args:
        settings: Thresholds of the rules.
        languages: Language codes of both sides; "" if a language is unknown.
        excluded: Texts of test sets. A pair with one of them on either side is removed.
        score: Cross-entropies of pairs by a model, for the last rule; `settings` must be `ModelCleaningSettings`.

    Attributes:
        report: Counts and examples, complete when all pairs were yielded.
        excluded: Fingerprints of the excluded texts.

    Examples:
        >>> from regard.data.builtin.corpus import load_pairs
        >>> from regard.data.text.readers import PairRecord
        >>> records = [PairRecord(pair, "demo", line) for line, pair in enumerate(load_pairs("train", 50), 1)]
        >>> cleaner = Cleaner(CleaningSettings(), ("en", "zh"))
        >>> sum(kept.sum() for _, kept in cleaner.clean(lambda: iter(records + records)))
        50
        >>> dict(cleaner.report.removed)
        {'duplicate': 50}
    """

    def __init__(
        self,
        settings: CleaningSettings,
        languages: tuple[str, str] = ("", ""),
        excluded: Iterable[str] = (),
        score: PairScore | None = None,
    ) -> None:
        self.settings, self.languages, self._score = settings, languages, score
        self.report = Report()
        self.excluded = FingerprintSet()
        excluded = iter(excluded)
        while texts := list(islice(excluded, CHUNK)):
            self.excluded.add(Texts(texts).folded_hashes)

    def clean(
        self, read: Callable[[], Iterator[PairRecord]], progress: Progress = lambda *_: None
    ) -> Iterator[tuple[list[PairRecord], Mask]]:
        """Read a corpus twice, and yield all pairs in chunks with which of them are kept.

        Args:
            read: Returns all pairs; called twice.
            progress: Called after each chunk.
        """
        decisions, sample = self._first_pass(read(), progress)
        learned = Learned(sample, self.settings, self.languages)
        self.report.notes += learned.notes
        self.report.conditions |= {"scripts": [list(names) for names in learned.scripts.names]}
        model = None
        if self._score is not None:
            assert isinstance(self.settings, ModelCleaningSettings)
            model = ModelRule(self._score, sample, self.settings)
            self.report.notes.append(model.note)
        del sample
        remaining = iter(decisions)
        for records in chunks(read()):
            removed_by = next(remaining, None)
            if removed_by is None or len(removed_by) != len(records):
                raise UserError(f"{records[0].file}: changed while it was being cleaned; clean it again")
            self._second_pass(records, removed_by, learned, model)
            self.report.total += len(records)
            progress("cleaning", len(records))
            yield records, removed_by == 0
        if next(remaining, None) is not None:
            raise UserError("the corpus changed while it was being cleaned; clean it again")

    def _first_pass(self, records: Iterator[PairRecord], progress: Progress) -> tuple[list[RuleNumbers], Sample]:
        """Apply the rules that need only the pair, and remove repeated pairs.

        A pair is reported under the first rule that it breaks, so the order of the rules matters for the counts. A
        repeated pair is a duplicate, and a near-duplicate only if it differs in case, punctuation, spaces or digits.

        Returns:
            Of each chunk, the rules that removed its pairs, and a sample of the pairs that remain.
        """
        seen, seen_folded, sample = FingerprintSet(), FingerprintSet(), Sample()
        decisions = []
        for chunk in chunks(records):
            pairs, removed_by = Pairs([record.pair for record in chunk]), np.zeros(len(chunk), np.uint8)
            for rule, broken in check_pairs(pairs, self.settings):
                mark(removed_by, rule, broken)
            if self.excluded.size:
                mark(removed_by, "overlap", either([self.excluded.contains(t.folded_hashes) for t in pairs.texts]))
            folded = pairs.folded_hashes()
            if self.settings.duplicates is not None:
                mark_repeated(removed_by, "duplicate", pairs.raw_hashes(), seen)
            if self.settings.duplicates == "near":
                mark_repeated(removed_by, "near-duplicate", folded, seen_folded)
            kept = np.flatnonzero(removed_by == 0)
            sample.add([chunk[index].pair for index in kept.tolist()], folded[kept])
            decisions.append(removed_by)
            progress("reading", len(chunk))
        return decisions, sample

    def _second_pass(
        self, records: Sequence[PairRecord], removed_by: RuleNumbers, learned: Learned, model: ModelRule | None
    ) -> None:
        """Apply the rules that were learned to the remaining pairs, and report all pairs that were removed."""
        details = self.apply_learned([record.pair for record in records], removed_by, learned, model)
        for index in np.flatnonzero(removed_by).tolist():
            self.report.add(NAMES[int(removed_by[index])], records[index], details.get(index, ""))

    @staticmethod
    def apply_learned(
        pairs: Sequence[Pair], removed_by: RuleNumbers, learned: Learned, model: ModelRule | None
    ) -> dict[int, str]:
        """Assign the rules that were learned to the remaining pairs; return what they found by the index of a pair."""
        details: dict[int, str] = {}

        def remaining() -> tuple[npt.NDArray[np.int64], list[Pair]]:
            places = np.flatnonzero(removed_by == 0)
            return places, [pairs[index] for index in places.tolist()]

        def apply(violation: Violation, places: npt.NDArray[np.int64]) -> None:
            new = violation.broken & (removed_by[places] == 0)
            removed_by[places[new]] = NUMBERS[violation.rule]
            if violation.values is not None:
                values = violation.values[new].tolist()
                details.update(
                    (place, f"{value:.2f}") for place, value in zip(places[new].tolist(), values, strict=True)
                )

        places, rest = remaining()
        for violation in learned.check(Pairs(rest)):
            apply(violation, places)
        if model is not None and model.applied:
            places, rest = remaining()
            if rest:
                apply(model.check(rest), places)
        return details


def chunks(records: Iterator[PairRecord]) -> Iterator[list[PairRecord]]:
    """Yield lists of at most `CHUNK` pairs with about `CHUNK_CHARACTERS` characters at most."""
    part: list[PairRecord] = []
    characters = 0
    for record in records:
        part.append(record)
        characters += len(record.pair.source) + len(record.pair.target)
        if len(part) == CHUNK or characters >= CHUNK_CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part


def mark(removed_by: RuleNumbers, rule: str, broken: Mask) -> None:
    """Assign a rule to the pairs that break it and none before."""
    removed_by[(removed_by == 0) & broken] = NUMBERS[rule]


def mark_repeated(removed_by: RuleNumbers, rule: str, fingerprints: Fingerprints, seen: FingerprintSet) -> None:
    """Add the fingerprints of the remaining pairs to a set, and assign a rule to those that it contained."""
    kept = np.flatnonzero(removed_by == 0)
    removed_by[kept[~seen.add(fingerprints[kept])]] = NUMBERS[rule]
