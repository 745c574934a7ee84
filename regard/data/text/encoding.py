"""Tokenisation of parallel corpora in chunks; pairs that training cannot use are skipped, counted and listed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from regard.data.text.bpe_dropout import WordTypes
from regard.data.text.readers import Links, Pair, PairRecord
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokens import ParallelTokens, RaggedArray

CHUNK = 10_000
"""Number of pairs tokenised at once."""
MAX_LISTED = 10_000
LISTED_CHARACTERS = 80


class SkippedPairs:
    """Pairs that are not used for training: their number by reason, and the first ones with file and line."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._rows: list[str] = []

    def add(self, record: PairRecord, reason: str, source_tokens: int, target_tokens: int) -> None:
        self.counts[reason] += 1
        if len(self._rows) < MAX_LISTED:
            texts = (" ".join(text[:LISTED_CHARACTERS].split()) for text in record.pair)
            lengths = str(source_tokens), str(target_tokens)
            self._rows.append("\t".join((record.file, str(record.line), reason, *lengths, *texts)))

    def write(self, path: Path) -> None:
        """Write the list as tab-separated values."""
        header = "file\tline\treason\tsource_tokens\ttarget_tokens\tsource\ttarget"
        total = self.counts.total()
        more = [f"# {total - len(self._rows)} more of {total} are not listed"] if total > len(self._rows) else []
        path.write_text("".join(f"{row}\n" for row in (header, *self._rows, *more)), encoding="utf-8")


def tokenise_corpus(
    records: Iterable[PairRecord],
    source: Tokenizer,
    target: Tokenizer,
    max_tokens: int | None,
    skipped: SkippedPairs,
    words: tuple[WordTypes, WordTypes] | None = None,
    tag: int | None = None,
    source_end: bool = True,
    annotate: Callable[[Pair, list[int]], list[int]] | None = None,
) -> Iterator[ParallelTokens]:
    """Tokenise a corpus in chunks; pairs with an empty side or more than `max_tokens`, EOS included, are skipped.

    With `words`, the chunks contain the numbers of the words too. `tag` is a token before every source.
    `source_end` is that of the model's configuration. `annotate` returns the source tokens of a pair with its terms,
    which are used unless they are too long.
    """
    records, prefix = iter(records), [] if tag is None else [tag]
    ends, bos, eos = [source.special_ids["eos"]] * source_end, target.special_ids["bos"], target.special_ids["eos"]
    while chunk := list(islice(records, CHUNK)):
        sources: list[list[int]] = []
        targets: list[list[int]] = []
        links: list[list[int]] = []
        kept: list[Pair] = []
        encoded_sources = source.encode_batch([record.pair.source for record in chunk])
        encoded_targets = target.encode_batch([record.pair.target for record in chunk])
        for record, s, t in zip(chunk, encoded_sources, encoded_targets, strict=True):
            if annotate is not None:
                annotated = annotate(record.pair, s)
                s = s if max_tokens is not None and len(annotated) + 1 > max_tokens else annotated
            s = [*prefix, *s]
            if not record.pair.source.strip() or not record.pair.target.strip():
                skipped.add(record, "an empty side", len(s), len(t))
            elif max_tokens is not None and max(len(s), len(t)) + 1 > max_tokens:
                skipped.add(record, f"over {max_tokens} tokens", len(s), len(t))
            else:
                kept.append(record.pair)
                sources.append([*s, *ends])
                targets.append([bos, *t, eos])
                word_ids = source.word_ids(s), target.word_ids(t)
                links.append([] if record.links is None else link_tokens(record.links, *word_ids, source_end))
        numbers = None
        if words is not None:
            numbers = (
                words[0].index([pair.source for pair in kept], prefix),
                words[1].index([pair.target for pair in kept], [bos]),
            )
        columns = RaggedArray.of(sources), RaggedArray.of(targets), RaggedArray.of(links)
        yield ParallelTokens(*columns, (len(sources),), numbers)


def tokenise_pairs(
    pairs: Iterable[Pair], source: Tokenizer, target: Tokenizer, source_end: bool = True
) -> ParallelTokens:
    """Tokenise a small corpus in memory; only pairs with an empty side are skipped."""
    records = (PairRecord(pair, "", number) for number, pair in enumerate(pairs, start=1))
    chunks = list(tokenise_corpus(records, source, target, None, SkippedPairs(), source_end=source_end))
    sources = RaggedArray.concatenate([chunk.source for chunk in chunks])
    targets = RaggedArray.concatenate([chunk.target for chunk in chunks])
    return ParallelTokens(sources, targets, None, (len(sources),))


def link_tokens(
    links: Links, source_words: Sequence[int], target_words: Sequence[int], source_end: bool = True
) -> list[int]:
    """Convert links between words to links between tokens.

    Every token of a word is linked to every token of the words that it is linked to, and EOS to EOS.

    Args:
        source_words, target_words: Word of each token, without BOS and EOS.

    Returns:
        Target position, source position, target position, ... in ascending order without duplicates.
    """
    source_positions, target_positions = _positions_by_word(source_words), _positions_by_word(target_words)
    token_links = {(t, s) for i, j in links for t in target_positions.get(j, []) for s in source_positions.get(i, [])}
    if source_end:
        token_links.add((len(target_words), len(source_words)))
    return [position for link in sorted(token_links) for position in link]


def _positions_by_word(words: Sequence[int]) -> dict[int, list[int]]:
    positions: dict[int, list[int]] = {}
    for position, word in enumerate(words):
        positions.setdefault(word, []).append(position)
    return positions
