"""A step function without a model: log-probabilities drawn at random for every sequence of tokens, and remembered."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.decoding.config import SearchSettings

BOS, EOS = 1, 0


@dataclass
class TableState:
    rows: list[tuple[int, ...]]  # source, then what has been said
    copies: int

    def select(self, rows: Tensor) -> TableState:
        return TableState([self.rows[i] for i in rows.tolist()], self.copies)

    def uncovered(self) -> Tensor:
        """A made-up penalty that depends on the hypothesis alone and never helps."""
        return torch.tensor([-0.1 * (sum(row) % 5) for row in self.rows], dtype=torch.float64)


class TableStepper:
    """Random but fixed: the distribution after a sequence is drawn from a generator keyed by the sequence itself."""

    bos, eos = BOS, EOS
    longest = None
    device = torch.device("cpu")

    def __init__(self, vocabulary: int, seed: int = 0, sharpness: float = 2.0) -> None:
        self.vocabulary, self.seed, self.sharpness = vocabulary, seed, sharpness
        self.steps = 0

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> TableState:
        return TableState([tuple(source) for source in sources for _ in range(copies)], copies)

    def step(self, tokens: Tensor, state: TableState) -> tuple[Tensor, TableState]:
        self.steps += 1
        rows = [(*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True)]
        return torch.stack([self.after(row) for row in rows]), TableState(rows, state.copies)

    def after(self, row: tuple[int, ...]) -> Tensor:
        draw = np.random.default_rng((self.seed, *row)).normal(size=self.vocabulary)
        return torch.from_numpy(draw * self.sharpness).log_softmax(-1)

    def score(self, source: Sequence[int], tokens: Sequence[int], settings: SearchSettings) -> float:
        """The penalised score of a whole translation, END included, computed token by token."""
        row, total = (*source, self.bos), 0.0
        for token in (*tokens, self.eos):
            uncovered = TableState([row], 1).uncovered()[0]
            total += float(self.after(row)[token])
            row = (*row, token)
        score = total / settings.length_normaliser(float(len(tokens) + 1))
        return score + settings.coverage * float(uncovered)

    def translations(self, limit: int) -> Iterator[tuple[int, ...]]:
        """Every translation of at most `limit` tokens, END counted."""
        words = [word for word in range(self.vocabulary) if word != self.eos]
        for length in range(limit):
            yield from itertools.product(words, repeat=length)


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tuple(tokens[i : i + len(phrase)]) == tuple(phrase) for i in range(len(tokens) - len(phrase) + 1))


def has_repetition(tokens: Sequence[int], n: int) -> bool:
    spans = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(spans) != len(set(spans))
