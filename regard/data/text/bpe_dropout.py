"""BPE-dropout (Provilkov et al., 2020): segmentations of words in which merges are skipped at random.

The randomness of the `tokenizers` library cannot be seeded. Here, a fixed number of segmentations is sampled once for
every distinct word, and stored; `regard.data.text.tokens.DropoutTokens` chooses one of them for each word of a sentence
in each epoch. All random numbers are hashes of what they are used for, so that they do not depend on the order of work.

Shapes: A segmentations that are still merged, L symbols of each.
"""

from collections.abc import Sequence

import numpy as np

from regard.data.batching import Ints, hash_integers
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokens import SAMPLES, RaggedArray

CHUNK = 2**18
"""Number of segmentations sampled at once."""


class WordTypes:
    """Numbers the distinct words of a side of a corpus; BOS and EOS are words too."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._numbers: dict[tuple[int, ...], int] = {(tokenizer.BOS,): 0, (tokenizer.EOS,): 1}

    def index(self, texts: Sequence[str], prefix: Sequence[int] = ()) -> RaggedArray:
        """Return the numbers of the words of each text, between tokens that are words of their own, and EOS."""
        numbers = self._numbers
        first = [numbers.setdefault((token,), len(numbers)) for token in prefix]
        rows = (
            [numbers.setdefault(word, len(numbers)) for word in words] for words in self.tokenizer.encode_words(texts)
        )
        return RaggedArray.of([[*first, *row, 1] for row in rows])

    def segmentations(self, dropout: float) -> RaggedArray:
        """Return the segmentations of each word in turn; the first of them is without dropout."""
        symbols = self.tokenizer.symbols()
        words = [[symbol for token in word for symbol in symbols[token]] for word in self._numbers]
        return sample_segmentations(words, self.tokenizer.merges(), dropout)


def sample_segmentations(
    words: Sequence[Sequence[int]], merges: Sequence[tuple[int, int, int]], dropout: float, samples: int = SAMPLES
) -> RaggedArray:
    """Sample segmentations by BPE-dropout.

    In every round, each possible merge of each word is skipped with probability `dropout`, and the first of the others
    by rank, then by position, is applied; a word without one is finished.

    Args:
        words: The symbols of each word before any merge.
        merges: Left symbol, right symbol and result of each merge, by rank.
        samples: Number of segmentations of each word; dropout does not affect the first of them.
    """
    table, step = _MergeTable(merges), CHUNK // samples
    starts = range(0, len(words), step)
    return RaggedArray.concatenate([_sample(words[i : i + step], i, table, dropout, samples) for i in starts])


class _MergeTable:
    """Finds the rank of merges by their symbols; pairs that cannot be merged have the rank `none`."""

    def __init__(self, merges: Sequence[tuple[int, int, int]]) -> None:
        left, right, results = np.array(merges, np.int64).reshape(-1, 3).T
        keys, self.none = left << 32 | right, len(merges)
        self._keys, self._ranks = np.append(np.sort(keys), -1), np.append(np.argsort(keys), self.none)
        self.results = np.append(results, 0)

    def rank(self, left: Ints, right: Ints) -> Ints:
        keys = left << 32 | right
        found = np.searchsorted(self._keys[:-1], keys)
        return np.where(self._keys[found] == keys, self._ranks[found], self.none)


def _sample(
    words: Sequence[Sequence[int]], first: int, merges: _MergeTable, dropout: float, samples: int
) -> RaggedArray:
    """Sample segmentations of words, the first of which has number `first`.

    Every round shortens all unfinished segmentations by one symbol, so that they are a matrix, and those of shorter
    words join them in later rounds.
    """
    lengths, threshold = np.array([len(word) for word in words]), np.uint64(dropout * 2**64)
    sizes = np.zeros(len(words) * samples, np.int64)
    finished: list[tuple[Ints, Ints]] = []
    rows, symbols_AL = np.empty(0, np.int64), np.empty((0, lengths.max()), np.int64)  # row: word * samples + sample
    for length in range(lengths.max(), 0, -1):
        new = np.flatnonzero(lengths == length)
        rows = np.concatenate((rows, (new[:, None] * samples + np.arange(samples)).ravel()))
        unmerged = np.array([words[word] for word in new.tolist()], np.int64).reshape(-1, length)
        symbols_AL = np.concatenate((symbols_AL, unmerged.repeat(samples, axis=0)))
        ranks_AL = np.full(symbols_AL.shape, merges.none)
        ranks_AL[:, :-1] = merges.rank(symbols_AL[:, :-1], symbols_AL[:, 1:])
        skipped_AL = hash_integers((rows + first * samples)[:, None], length, np.arange(length)) < threshold
        ranks_AL[skipped_AL & (rows % samples != 0)[:, None]] = merges.none
        position = ranks_AL.argmin(1)
        every = np.arange(len(rows))
        best = ranks_AL[every, position]
        merged = best != merges.none
        finished.append((rows[~merged], symbols_AL[~merged]))
        sizes[rows[~merged]] = length
        symbols_AL[every, position] = merges.results[best]
        kept_AL = merged[:, None] & (np.arange(length) != position[:, None] + 1)
        rows, symbols_AL = rows[merged], symbols_AL[kept_AL].reshape(merged.sum(), length - 1)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    tokens = np.empty(offsets[-1], np.int32)
    for done, symbols in finished:
        tokens[offsets[done][:, None] + np.arange(symbols.shape[1])] = symbols
    return RaggedArray(tokens, offsets)
