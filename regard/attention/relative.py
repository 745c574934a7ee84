"""Attention within a window of a grid, with a learned bias for the offset between query and key, as in Swin.

Shapes: B windows of all images, H heads, T cells of a window, D head width.
"""

import torch
from torch import Tensor, nn

from regard.attention.core import attend, attention_scores
from regard.attention.kinds import Kind
from regard.attention.masks import Mask
from regard.attention.multi_head import grid_positions


class Relative(nn.Module, Kind):
    """Full attention among the cells of a window, with a learned bias per head and relative position.

    Args:
        window: Rows and columns of a window.
        heads: Number of heads.
        scale: Factor on the scores; 1/√D by default.
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
        return attend(q, k, v, mask, scale=self.scale, dropout=dropout, bias=bias, finite_bias=True)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask, scale=self.scale, bias=self.bias())

    def bias(self) -> Tensor:
        """Return the bias of the scores, (1, H, T, T)."""
        T = self.window[0] * self.window[1]
        return self.table[self.offsets].view(1, T, T, -1).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.window[0]}×{self.window[1]}, heads={self.table.shape[1]}"


def relative_offsets(window: tuple[int, int]) -> Tensor:
    """Return the row of the bias table for each pair of query and key, (T, T)."""
    cells = grid_positions(*window)
    y, x = (cells[:, None] - cells[None, :]).unbind(-1)
    return (y + window[0] - 1) * (2 * window[1] - 1) + x + window[1] - 1
