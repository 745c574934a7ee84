"""From text to tokens, some thousand pairs at a time; what training will not see is counted and listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from regard.data.text.alignment import link_tokens
from regard.data.text.pairs import Pair, PairRecord
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokens import ParallelTokens, RaggedArray

CHUNK = 10_000
LISTED = 10_000
SHOWN = 80
"""Characters of a sentence that stand in the list of what was left out."""


class SkippedPairs:
    """The pairs that are left out: all are counted by reason, the first ones kept to be listed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._rows: list[str] = []

    def add(self, entry: PairRecord, reason: str, source: int, target: int) -> None:
        """Notes a pair and how many tokens its sides have."""
        self.counts[reason] += 1
        if len(self._rows) < LISTED:
            texts = (" ".join(text[:SHOWN].split()) for text in entry.pair)
            self._rows.append("\t".join((entry.file, str(entry.line), reason, str(source), str(target), *texts)))

    def write(self, path: Path) -> None:
        """Writes the list as tab-separated values."""
        titles = "file\tline\treason\tsource_tokens\ttarget_tokens\tsource\ttarget"
        total = self.counts.total()
        more = [f"# {total - len(self._rows)} more of {total} are not listed"] if total > len(self._rows) else []
        path.write_text("".join(f"{row}\n" for row in (titles, *self._rows, *more)), encoding="utf-8")


def tokenise_corpus(
    entries: Iterable[PairRecord], source: Tokenizer, target: Tokenizer, longest: int | None, left_out: SkippedPairs
) -> Iterator[ParallelTokens]:
    """Tokenises a corpus as it streams by; pairs with an empty side, or over `longest` tokens, are left out."""
    entries = iter(entries)
    while chunk := list(islice(entries, CHUNK)):
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        links: list[list[int]] = []
        encoded_sources = source.encode_batch([entry.pair.source for entry in chunk])
        encoded_targets = target.encode_batch([entry.pair.target for entry in chunk])
        for entry, s, t in zip(chunk, encoded_sources, encoded_targets, strict=True):
            if not entry.pair.source.strip() or not entry.pair.target.strip():
                left_out.add(entry, "an empty side", len(s), len(t))
            elif longest is not None and max(len(s), len(t)) + 1 > longest:
                left_out.add(entry, f"over {longest} tokens", len(s), len(t))
            else:
                sources.append([*s, source.EOS])
                targets.append([target.BOS, *t, target.EOS])
                words = source.word_ids(s), target.word_ids(t)
                links.append([] if entry.links is None else link_tokens(entry.links, *words))
        yield ParallelTokens(RaggedArray.of(sources), RaggedArray.of(targets), RaggedArray.of(links), (len(sources),))


def tokenise_pairs(pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer) -> ParallelTokens:
    """Tokenises a small corpus into memory; only pairs with an empty side are left out."""
    entries = (PairRecord(pair, "", number) for number, pair in enumerate(pairs, start=1))
    chunks = list(tokenise_corpus(entries, source, target, None, SkippedPairs()))
    sources, targets = (
        RaggedArray.concatenate([c.source for c in chunks]),
        RaggedArray.concatenate([c.target for c in chunks]),
    )
    return ParallelTokens(sources, targets, None, (len(sources),))
