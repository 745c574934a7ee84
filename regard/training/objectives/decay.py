"""How a share falls from one towards zero with the step, counted from the step at which it begins to fall.

The three curves of Bengio et al. (2015), each given by the step at which it passes one half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

Decay = Literal["linear", "exponential", "inverse-sigmoid"]


def build_decay(kind: Decay, half: int) -> Callable[[int], float]:
    """The curve of this kind that is at one half after `half` steps."""
    k = _solve_k(half)

    def linear(step: int) -> float:
        return max(0.0, 1 - step / (2 * half))

    def exponential(step: int) -> float:
        return math.pow(2.0, -step / half)

    def inverse_sigmoid(step: int) -> float:
        return 1 / (1 + math.exp(min(step / k, 700.0)) / k)

    curves = {"linear": linear, "exponential": exponential, "inverse-sigmoid": inverse_sigmoid}
    return curves[kind]


def _solve_k(half: int) -> float:
    """The k of k / (k + exp(step / k)) with k · ln k = half, by Newton's method on ln k."""
    log_k = math.log1p(half)
    for _ in range(50):
        log_k -= (log_k * math.exp(log_k) - half) / (math.exp(log_k) * (log_k + 1))
    return math.exp(log_k)
