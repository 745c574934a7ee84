"""Attention within a window of a grid, with a learned bias for every offset from query to key.

Shapes: B windows of the whole batch, H heads, T places of a window, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention.core import attend_unchecked, attention_scores, attention_weights
from regard.attention.kind import Kind
from regard.attention.masks import Mask
from regard.attention.positions import grid_positions


class Relative(nn.Module, Kind):
    """Full attention among the places of a window, row after row, plus a number for how far apart two of them are.

    Args:
        window: rows and columns of a window.
        heads: each has a bias of its own.
        scale: factor on the scores; 1/√D unless given.
    """

    def __init__(self, window: tuple[int, int], heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.window, self.scale = window, scale
        self.table = nn.Parameter(torch.empty((2 * window[0] - 1) * (2 * window[1] - 1), heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        self.offsets: Tensor
        self.register_buffer("offsets", relative_offsets(window).flatten(), persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        bias = self.bias().to(q.dtype)
        return attend_unchecked(q, k, v, mask, scale=self.scale, dropout=dropout, bias=bias)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_weights(q, k, mask, scale=self.scale, bias=self.bias())

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask, scale=self.scale, bias=self.bias())

    def bias(self) -> Tensor:
        """What is added to the scores, (1, H, T, T)."""
        T = self.window[0] * self.window[1]
        return self.table[self.offsets].view(1, T, T, -1).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.window[0]}×{self.window[1]}, heads={self.table.shape[1]}"


def relative_offsets(window: tuple[int, int]) -> Tensor:
    """The row of the table for each pair of query and key, (T, T): their offsets, counted row after row from 0."""
    places = grid_positions(*window)
    y, x = (places[:, None] - places[None, :]).unbind(-1)
    return (y + window[0] - 1) * (2 * window[1] - 1) + x + window[1] - 1
