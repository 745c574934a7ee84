"""Work of a fixed size, recorded once on a GPU (a CUDA graph) and then replayed: what all programs have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from regard.attention.positions import Sinusoidal
from regard.ops.modules import list_modules, list_tensors

Pool = Any  # what torch.cuda.graph_pool_handle gives, or None


def record(do: Callable[[], object], pool: Pool, begin: Callable[[], object] = lambda: None) -> torch.cuda.CUDAGraph:
    """The graph of what is done, which is done once before; `begin` makes ready for each of the two."""
    begin()
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # libraries set themselves up, which cannot be recorded
        do()
    torch.cuda.current_stream().wait_stream(aside)
    begin()
    graph = torch.cuda.CUDAGraph()
    # Other threads may be at work on the device meanwhile; what they do is none of this graph's business.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        do()
    return graph


def weight_places(model: nn.Module) -> tuple[int, ...]:
    """Where in memory everything lies that a step reads of a model."""
    return tuple([x.data_ptr() for x in list_tensors(model)])


def let_positions_grow(model: nn.Module, longest: int) -> None:
    """Tables of positions are as long as they need be: growing they move, which must not happen to a recorded step."""
    for module in list_modules(model):
        if isinstance(module, Sinusoidal):
            module(torch.zeros_like(module.table[0, :1], dtype=torch.long), longest)


def room_for(tokens: int, longest: int | None = None) -> int:
    """So many tokens or somewhat more: few shapes are enough for all.

    It ends at the longest that a model has positions for; tokens beyond that are for the model to refuse.
    """
    step = 32 if tokens <= 128 else 128
    room = -(-tokens // step) * step
    return room if longest is None else max(tokens, min(room, longest))
