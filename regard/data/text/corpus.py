"""Training corpora: shards of pairs with optional word alignments, without the pairs held out for validation.

Files that cannot be read and corpora without pairs raise a UserError.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress, zip_longest
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.data.text.readers import Pair, PairRecord, Shard, read_lines, require_nonempty
from regard.errors import UserError


@dataclass(frozen=True)
class Corpus:
    """The pairs of several shards, which can be read repeatedly."""

    shards: Sequence[Shard]
    alignments: Path | None = None  # file with the word alignment of each pair
    weight: float = 1.0  # how often an epoch contains a pair on average
    kept: npt.NDArray[np.bool_] | None = None  # pairs that cleaning has kept; `pairs` and `records` omit the others
    held_out: frozenset[int] = frozenset()  # indices of pairs, among those kept, that `pairs` and `records` omit
    reverse: bool = False  # whether `pairs` and `records` exchange source and target
    tag: str = ""  # token before every source, which is not part of `pairs` and `records`

    @property
    def name(self) -> str:
        """Name of the first shard and number of the others, for messages."""
        more = f" and {len(self.shards) - 1} more" if len(self.shards) > 1 else ""
        return self.shards[0].name + more

    def pairs(self) -> Iterator[Pair]:
        """Read the pairs that are not held out, without alignments."""
        return (record.pair for record in self._without_held_out(self.all_records()))

    def records(self) -> Iterator[PairRecord]:
        """Read the pairs that are not held out, with alignments."""
        records = self.all_records()
        return self._without_held_out(records if self.alignments is None else align(records, self.alignments))

    def all_records(self) -> Iterator[PairRecord]:
        """Read all pairs, including those held out or removed by cleaning, without alignments."""
        records = (
            PairRecord(pair, shard.name, line)
            for shard in self.shards
            for line, pair in enumerate(shard.read(), start=1 if shard.header() is None else 2)
        )
        return require_nonempty(records, self.name)

    def _without_held_out(self, records: Iterator[PairRecord]) -> Iterator[PairRecord]:
        if self.kept is not None:
            records = compress(records, self.kept)
        kept = (record for index, record in enumerate(records) if index not in self.held_out)
        return map(_reverse, kept) if self.reverse else kept


def _reverse(record: PairRecord) -> PairRecord:
    links = None if record.links is None else [(target, source) for source, target in record.links]
    return record._replace(pair=Pair(record.pair.target, record.pair.source), links=links)


def align(records: Iterable[PairRecord], path: Path) -> Iterator[PairRecord]:
    """Add word alignments from a file in Pharaoh format: one line per pair, such as "0-0 1-2".

    Words are separated by white space.
    """
    records, lines = iter(records), read_lines(path)
    for number, (record, line) in enumerate(zip_longest(records, lines), start=1):
        if record is None or line is None:
            longer = number + sum(1 for _ in records) + sum(1 for _ in lines)
            pair_count, line_count = (number - 1, longer) if record is None else (longer, number - 1)
            raise UserError(
                f"{path} has {line_count} lines but its corpus has {pair_count} pairs: an alignment needs one line "
                f"for each pair."
            )
        word_counts = [len(text.split()) for text in record.pair]
        where = f"{path}, line {number}"
        yield record._replace(links=[_parse_link(link, word_counts, where) for link in line.split()])


def _parse_link(link: str, word_counts: list[int], where: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", link, re.ASCII)
    if match is None:
        raise UserError(f'{where}: "{link}" is not a link; write the indices of two words, such as 0-0.')
    indices = int(match[1]), int(match[2])
    for index, count, side in zip(indices, word_counts, ("source", "target"), strict=True):
        if index >= count:
            raise UserError(
                f'{where}: the link "{link}" refers to {side} word {index}, but the sentence has {count} words, '
                f"counted from 0."
            )
    return indices
