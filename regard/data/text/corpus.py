"""A training corpus that can be read again and again: some shards, perhaps aligned, perhaps with pairs held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.text.alignment import align
from regard.data.text.pairs import Pair, PairRecord
from regard.data.text.readers import Shard
from regard.errors import UserError


@dataclass(frozen=True)
class Corpus:
    """Pairs in the order of their shards; those whose place in the whole is held out are passed over."""

    shards: Sequence[Shard]
    alignments: Path | None = None
    weight: float = 1.0
    held_out: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """What to call it: its only shard, or the first of several."""
        more = f" and {len(self.shards) - 1} more" if len(self.shards) > 1 else ""
        return self.shards[0].name + more

    def pairs(self) -> Iterator[Pair]:
        """The text alone, without what is held out."""
        return (entry.pair for entry in self._kept(self.everything()))

    def entries(self) -> Iterator[PairRecord]:
        """The pairs that are not held out, each with its links.

        Raises:
            UserError: the alignment cannot be read or does not belong to the pairs; or as `everything`.
        """
        entries = self.everything()
        return self._kept(entries if self.alignments is None else align(entries, self.alignments))

    def everything(self) -> Iterator[PairRecord]:
        """All pairs with their places, what is held out among them.

        Raises:
            UserError: a shard cannot be read, or there is not a single pair.
        """
        empty = True
        for shard in self.shards:
            for line, pair in enumerate(shard.read(), start=1):
                empty = False
                yield PairRecord(pair, shard.name, line)
        if empty:
            raise UserError(f"There is not a single pair in {self.name}; a corpus needs at least one.")

    def _kept(self, entries: Iterator[PairRecord]) -> Iterator[PairRecord]:
        if not self.held_out:
            return entries
        return (entry for place, entry in enumerate(entries) if place not in self.held_out)
