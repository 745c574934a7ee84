"""The interface between models and search: a `Stepper` decodes step by step, a `TokenHypothesis` is the result.

A `NATHypothesis` is the result of decoding without steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class State(Protocol):
    """State of a stepper with one row per hypothesis. The hypotheses of a sentence are consecutive rows."""

    def select(self, rows: Tensor) -> Self:
        """Return the state of these rows, in this order. A sentence keeps all of its rows or none."""

    def coverage_penalties(self) -> Tensor:
        """Return the coverage penalty of each row, (rows,); 0 if all source tokens were attended to."""


StateT = TypeVar("StateT", bound=State)


class Stepper(Protocol[StateT]):
    """A model that can be decoded token by token.

    Attributes:
        bos: Token with which every hypothesis starts.
        eos: Token with which every hypothesis ends.
        max_length: Maximum number of target tokens, END included; None if unlimited.
    """

    bos: int
    eos: int
    max_length: int | None

    @property
    def device(self) -> torch.device:
        """Device of tokens and log-probabilities."""

    def start(self, sources: Sequence[Sequence[int]], beam_width: int) -> StateT:
        """Encode the sources and return a state with `beam_width` rows per source."""

    def step(self, tokens: Tensor, state: StateT) -> Tensor:
        """Append a token to each row, (rows,), and return the log-probabilities of the next tokens, (rows, V)."""


@dataclass(frozen=True)
class BeamNode:
    """A candidate of beam search. The nodes of a sentence form a tree.

    Attributes:
        node: Index of the node in the tree.
        parent: Index of the node that it extends; -1 for the root.
        step: Number of tokens before it.
        token: Its token.
        log_prob: Log-probability of the token.
        cumulative_log_prob: Sum of the log-probabilities up to the token.
        score: Cumulative log-probability after the length penalty, as if the hypothesis ended here.
        outcome: "kept", "ended", or one of these, "dropped" or "forbidden" with a reason after a colon.
    """

    node: int
    parent: int
    step: int
    token: int
    log_prob: float
    cumulative_log_prob: float
    score: float
    outcome: str


@dataclass(frozen=True)
class TokenHypothesis:
    """A translation as tokens.

    Attributes:
        tokens: Tokens without BOS and END.
        score: Cumulative log-probability after the penalties.
        token_log_probs: Log-probability of each token and of END.
        tree: All nodes of the beam that led to it, if traced.
    """

    tokens: list[int]
    score: float
    token_log_probs: list[float]
    tree: list[BeamNode] | None = field(default=None, compare=False, kw_only=True)


@dataclass(frozen=True)
class NATIteration:
    """All target positions after one iteration, and which of them the iteration updated."""

    tokens: list[int]
    token_log_probs: list[float]
    updated: list[bool]


@dataclass(frozen=True)
class NATHypothesis(TokenHypothesis):
    """A hypothesis of a non-autoregressive model.

    The log-probabilities include that of END only if the model predicts END.

    Attributes:
        decoder_input: Decoder input of the last iteration.
        positions: Target position of each token.
        iterations: The target after each iteration, if traced.
    """

    decoder_input: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    iterations: list[NATIteration] = field(default_factory=list)


def snapshots(tokens: Tensor, log_probs: Tensor, updated: Tensor, lengths: Sequence[int]) -> list[NATIteration]:
    """Return the current iteration of each row, given tensors (R, T) and the number of target positions of each row."""
    rows = zip(lengths, tokens.tolist(), log_probs.tolist(), updated.tolist(), strict=True)
    return [NATIteration(row[:n], row_log_probs[:n], mask[:n]) for n, row, row_log_probs, mask in rows]
