"""The interface of a kind of attention, and checks of its arguments.

Shapes: B batch, H heads, T queries, S keys, D head width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from torch import Tensor

from regard.attention.cache import Cache, KVCache
from regard.attention.masks import Mask

CAPACITY = 32
"""Initial size of a cache, in tokens per hypothesis."""


class Kind(ABC):
    """How queries, keys and values become a context. `Attention` adds projections, heads and rotary embeddings."""

    @abstractmethod
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        """Return the context, (B, H, T, D)."""

    @abstractmethod
    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Return the attention weights, (B, H, T, S)."""

    @abstractmethod
    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        """Return the scaled scores, (B, H, T, S). Masked scores are -inf before a softmax and 0 otherwise."""

    def start_cache(self, beam_width: int = 1, keep_all: bool = False) -> Cache:
        """Return an empty cache for decoding.

        Args:
            beam_width: Number of hypotheses per sentence.
            keep_all: Whether to keep keys that are no longer needed, because a hook reads them.
        """
        return KVCache(self, CAPACITY * beam_width)

    def attend_projected(
        self, projections: Sequence[Tensor], heads: int, mask: Mask, dropout: float = 0.0
    ) -> Tensor | None:
        """Return the context computed from fused projections, or None to request separate q, k and v.

        The projections are [qkv], (B, T, 3 · H · D), for self-attention and [q, kv] for cross-attention.
        """
        return None


def check_at_least(kind: str, name: str, value: int, minimum: int) -> None:
    """Raise ValueError unless the value is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{kind}: {name} must be an integer of at least {minimum}, not {value!r}")


def check_choice(kind: str, name: str, value: object, choices: Collection[str]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{kind}: {name} must be one of {', '.join(choices)}, not {value!r}")
