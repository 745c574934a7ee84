"""Attention with a bias on the scores: learned for relative positions, as in Swin, or an intervention on some keys.

Shapes: B batch (or windows of all images), H heads, T queries (or cells of a window), S keys, D head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.attention.core import apply_weights, attend, attention_scores, check_inputs
from regard.attention.kinds import Full, Kind
from regard.attention.multi_head import grid_positions
from regard.errors import UserError
from regard.masks import Mask


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


@dataclass(frozen=True)
class Biased(Kind):
    """Another kind of attention, with a number added to the scores of some keys.

    Args:
        kind: Attention without the bias. Its weights must be the softmax of its scores.
        bias: Number to add, by the position of the key.
    """

    kind: Kind
    bias: Mapping[int, float]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_inputs(q, k, v, mask)
        if isinstance(self.kind, Full) and not mask.packed:
            scale, bias = self.kind.scale, self._bias(k).to(q.dtype)
            return attend(q, k, v, mask, scale=scale, dropout=dropout, bias=bias, finite_bias=True)
        return apply_weights(self.weights(q, k, mask), v, dropout)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        scores = self.kind.scores(q, k, mask)
        return scores + self._bias(k).to(scores.dtype)

    def _bias(self, k: Tensor) -> Tensor:
        """Return the bias of every key, (1, 1, 1, S)."""
        keys = k.shape[-2]
        if not all(0 <= position < keys for position in self.bias):
            raise UserError(f"bias: the source has the positions 0 to {keys - 1}, not {max(self.bias)}")
        bias = k.new_zeros(keys)
        for position, value in self.bias.items():
            bias[position] = value
        return bias.view(1, 1, 1, keys)


def takes_bias(kind: Kind) -> bool:
    """Return whether the weights of a kind are the softmax of its scores, to which a bias can be added."""
    inner = kind.kind if isinstance(kind, Biased) else kind
    return type(inner).weights is Kind.weights
