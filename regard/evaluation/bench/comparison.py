"""A race: how it is to be run, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from regard.errors import UserError
from regard.evaluation.bench.speed import Result, tabulate

CPU = torch.device("cpu")
SIZES = (1, 8, 64)
"""Of batches, where none are asked for."""
PEERS = {"huggingface": "transformers", "ctranslate2": "ctranslate2"}
"""Other programs, by the name of the option, and what they are called by those who install them."""


class Finding(Protocol):
    """What was found, for people and for programs."""

    def lines(self) -> list[str]:
        """A table, and below it what it shows."""

    def as_dict(self) -> dict[str, Any]:
        """All of it."""


@dataclass(frozen=True)
class Race:
    """How models are timed, and what came of it.

    Attributes:
        sizes: of the batches; none: as many of the usual ones as there are sentences for.
        seconds: how long each model is timed at each size.
        peers: other programs that take part with the weights of the first model.
        device: where.
        results: of the models.
        timed: from what to what.
        on: what it was timed with.
    """

    sizes: tuple[int, ...] = ()
    seconds: float = 3.0
    peers: tuple[str, ...] = ()
    device: torch.device = CPU
    results: list[Result] = field(default_factory=list)
    timed: str = ""
    on: str = ""

    def lines(self) -> list[str]:
        """A table and what it shows."""
        same = "; as the first: the share of answers that are the same" if self.peers else ""
        return [
            tabulate(self.results),
            "",
            f"medians {self.timed}; {self.on}; in brackets, how much faster than the first{same}",
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "timed": self.timed,
            "on": self.on,
            "seconds": self.seconds,
            "results": [result.as_dict() for result in self.results],
        }


def check_peers(peers: Sequence[str]) -> tuple[str, ...]:
    """The peers, each once.

    Raises:
        UserError: one is unknown.
    """
    for peer in peers:
        if peer not in PEERS:
            raise UserError(f"--peer {peer}: known are {', '.join(PEERS)}")
    return tuple(dict.fromkeys(peers))


@contextmanager
def naming(peer: str) -> Iterator[None]:
    """Says of whatever is refused in the block for which peer it was."""
    try:
        yield
    except UserError as error:
        raise UserError(f"--peer {peer}: {error}") from None


def choose_sizes(asked: Sequence[int], number: int, what: str) -> list[int]:
    """The sizes of batch, in order, of so many things that are there.

    Raises:
        UserError: one that is asked for is too large, or there is nothing at all.
    """
    if not number:
        raise UserError(f"{what}: there is nothing to time")
    if asked and max(asked) > number:
        raise UserError(f"{what} do not make a batch of {max(asked)}; give a smaller --batch")
    return sorted(set(asked) or {size for size in SIZES if size <= number})
