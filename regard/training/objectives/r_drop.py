"""R-Drop (Liang et al., 2021): two readings of a batch, with different dropout, should say the same."""

from __future__ import annotations

from torch import Tensor


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """The mean of both Kullback-Leibler divergences between the distributions of two logits (N, V), summed over N."""
    p, q = one.float().log_softmax(-1), other.float().log_softmax(-1)
    return ((p.exp() - q.exp()) * (p - q)).sum() / 2
