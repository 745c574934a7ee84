"""Seeds of what kernels drop: one draw for many of them, in place of a launch wherever something is dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

BLOCK = 256
"""Seeds that are drawn at once: more than most models ask for in a pass."""
_LIMIT = 2**31 - 1


def draw_seed(device: torch.device) -> Tensor:
    """A random number, (1,); from a block of them where this thread is `drawing_at_once`."""
    if torch.compiler.is_compiling() or _in_use.blocks is None:
        return torch.randint(_LIMIT, (1,), device=device)
    if device not in _in_use.blocks:
        _in_use.blocks[device] = _draw_blocks(device)
    return next(_in_use.blocks[device])


@contextmanager
def drawing_at_once() -> Iterator[None]:
    """While the block runs, a pass through a model, its seeds are parts of one tensor.

    What is left of them is forgotten at the end: what later passes draw follows from the state of PyTorch's generator
    alone, and a recorded pass draws anew whenever it is replayed.
    """
    before, _in_use.blocks = _in_use.blocks, {}
    try:
        yield
    finally:
        _in_use.blocks = before


def _draw_blocks(device: torch.device) -> Iterator[Tensor]:
    while True:
        # Every other number stays unused: a kernel is compiled once more for memory that is not aligned to 16 bytes.
        block = torch.randint(_LIMIT, (2 * BLOCK,), device=device)
        for place in range(0, 2 * BLOCK, 2):
            yield block[place : place + 1]


class _InUse(threading.local):
    blocks: dict[torch.device, Iterator[Tensor]] | None = None


_in_use = _InUse()
