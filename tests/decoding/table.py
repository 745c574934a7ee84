"""A stepper without a model: random log-probabilities that are fixed for every sequence of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from regard.decoding.settings import SearchSettings

BOS, EOS = 1, 0


@dataclass
class TableState:
    rows: list[tuple[int, ...]]  # source tokens, then target tokens

    def select(self, rows: Tensor) -> TableState:
        return TableState([self.rows[i] for i in rows.tolist()])

    def coverage_penalties(self) -> Tensor:
        """Return an arbitrary negative function of each hypothesis."""
        return torch.tensor([-0.1 * (sum(row) % 5) for row in self.rows], dtype=torch.float64)


class TableStepper:
    """The distribution after a sequence is drawn from a generator that is seeded by the sequence."""

    bos, eos = BOS, EOS
    max_length = None
    device = torch.device("cpu")

    def __init__(self, vocabulary: int, seed: int = 0, sharpness: float = 2.0) -> None:
        self.vocabulary, self.seed, self.sharpness = vocabulary, seed, sharpness
        self.steps = 0

    def start(self, sources: Sequence[Sequence[int]], beam_width: int) -> TableState:
        return TableState([tuple(source) for source in sources for _ in range(beam_width)])

    def step(self, tokens: Tensor, state: TableState) -> Tensor:
        self.steps += 1
        state.rows = [(*row, token) for row, token in zip(state.rows, tokens.tolist(), strict=True)]
        return torch.stack([self.after(row) for row in state.rows])

    def after(self, row: tuple[int, ...]) -> Tensor:
        draw = np.random.default_rng((self.seed, *row)).normal(size=self.vocabulary)
        return torch.from_numpy(draw * self.sharpness).log_softmax(-1)

    def score(self, source: Sequence[int], tokens: Sequence[int], settings: SearchSettings) -> float:
        """Return the score of a translation, computed token by token."""
        row, total = (*source, self.bos), 0.0
        for token in (*tokens, self.eos):
            penalty = TableState([row]).coverage_penalties()[0]
            total += float(self.after(row)[token])
            row = (*row, token)
        score = total / settings.length_normaliser(float(len(tokens) + 1))
        return score + settings.coverage * float(penalty)

    def translations(self, limit: int) -> Iterator[tuple[int, ...]]:
        """Yield all translations of at most `limit` tokens, END included."""
        words = [word for word in range(self.vocabulary) if word != self.eos]
        for length in range(limit):
            yield from itertools.product(words, repeat=length)


def contains(tokens: Sequence[int], phrase: Sequence[int]) -> bool:
    return any(tuple(tokens[i : i + len(phrase)]) == tuple(phrase) for i in range(len(tokens) - len(phrase) + 1))


def has_repetition(tokens: Sequence[int], n: int) -> bool:
    spans = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(spans) != len(set(spans))
