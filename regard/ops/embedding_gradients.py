"""The gradient of a table that is read several times, made when all has come back.

By itself every reader of a table makes a gradient as large as the table is, and these are added up: with embeddings
tied, source, target and output. Here what came back to two readers is sorted and added up together, onto the gradient
that is already there, and rows of words that nobody read are left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor

from regard.ops.embedding_backward import Reading, add_up_rows


class Returned(NamedTuple):
    """What came back to a reader of a table."""

    table: Tensor
    growth: float
    dropout: float
    reading: Reading


class Gathering:
    """What comes back to readers of tables, until it is over."""

    def __init__(self) -> None:
        self.returned: list[Returned] = []
        self.over = False

    def add_up(self) -> None:
        alike: dict[tuple[int, float, float], list[Returned]] = {}
        for one in self.returned:
            alike.setdefault((id(one.table), one.growth, one.dropout), []).append(one)
        for (_, growth, dropout), group in alike.items():
            table = group[0].table
            for begin in range(0, len(group), 2):
                readings = [one.reading for one in group[begin : begin + 2]]
                table.grad = add_up_rows(readings, len(table), growth, dropout, table.grad)


@contextmanager
def gathering() -> Iterator[None]:
    """While the block runs, a pass forward and backward, what comes back to embeddings waits for its end.

    Then it is in the `grad` of their tables, and nowhere before: whoever asks by `torch.autograd.grad`, or has hooks
    wait for gradients, as several processes do, is not told of it.
    """
    outer, _in_use.gathering = _in_use.gathering, Gathering()
    try:
        yield
        _in_use.gathering.add_up()
    finally:
        _in_use.gathering.over = True
        _in_use.gathering.returned.clear()
        _in_use.gathering = outer


def find_gathering(table: Tensor) -> Gathering | None:
    """Where what comes back to this table may wait; None where its gradient is wanted at once."""
    return _in_use.gathering if table.is_leaf and table.is_contiguous() else None


class _InUse(threading.local):
    gathering: Gathering | None = None


_in_use = _InUse()
