"""One size for all packed batches, so that a program compiled for one of them serves them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.attention.masks import Packed
from regard.data.text.tokens import Ints, ParallelTokens

SPARE = 1.5
"""How many times as many sentences as a batch has in the mean still fit into it."""


@dataclass(frozen=True)
class PackedShape:
    """What every batch is filled up to: as many tokens on both sides, in as many sequences.

    Behind the sentences stand sequences of padding, none longer than the longest sentence, then empty ones.
    """

    tokens: int
    sentences: int  # at the most
    longest: int  # sentence, on either side

    @classmethod
    def of(cls, corpus: ParallelTokens, tokens: int) -> PackedShape:
        """A frame for batches of a corpus that are planned to hold so many tokens."""
        (row,) = corpus.longest_pairs(1)
        longest = max(int(corpus.source.lengths_at(row)), int(corpus.target.lengths_at(row)) - 1)
        shorter = min(len(corpus.source.tokens), len(corpus.target.tokens) - len(corpus)) / len(corpus)
        return cls(max(tokens, longest), int(SPARE * tokens / max(1.0, shorter)) + 16, longest)

    @property
    def sequences(self) -> int:
        """Sentences and padding, all counted."""
        return self.sentences + -(-self.tokens // self.longest)

    def layout(self, lengths: Ints) -> Packed:
        """Where the sentences of these lengths stand, and the padding behind them."""
        offsets = np.zeros(self.sequences + 1, np.int64)
        offsets[1 : len(lengths) + 1] = np.cumsum(lengths)
        rest = np.arange(1, len(offsets) - len(lengths)) * self.longest
        offsets[len(lengths) + 1 :] = offsets[len(lengths)] + rest
        return Packed(torch.from_numpy(np.minimum(offsets, self.tokens).astype(np.int32)), self.longest, self.tokens)

    def fill(self, tokens: npt.NDArray[np.integer[Any]], filler: int) -> Tensor:
        """The tokens, (N,), and fillers behind them."""
        full = np.full(self.tokens, filler, np.int64)
        full[: len(tokens)] = tokens
        return torch.from_numpy(full)
