"""Attention with a bias on the scores of some keys, for every query and head: an intervention on a trained model.

Shapes: B batch, H heads, T queries, S keys, D head width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from regard.attention.core import apply_weights, attend, check_inputs
from regard.attention.kinds import Full, Kind
from regard.attention.masks import Mask
from regard.errors import UserError


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
