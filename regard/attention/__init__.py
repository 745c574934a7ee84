"""Everything that turns q, k and v into context."""

from regard.attention.core import Full, Kind, attend, attention_scores, attention_weights
from regard.attention.linear import Linear, RunningSums
from regard.attention.local import Local
from regard.attention.masks import Layout, Mask, Packed, Padded
from regard.attention.module import Attention, Cache, KeyValues, observing, scaling, unobserved
from regard.attention.positions import (
    Diagonal,
    Learned,
    Rotary,
    Rotary2D,
    Sinusoidal,
    Sinusoidal2D,
    grid_positions,
    resize_grid,
)
from regard.attention.routing import Routing
from regard.attention.unpacking import unpack, unpack_mask

__all__ = [
    "Attention",
    "Cache",
    "Diagonal",
    "Full",
    "KeyValues",
    "Kind",
    "Layout",
    "Learned",
    "Linear",
    "Local",
    "Mask",
    "Packed",
    "Padded",
    "Rotary",
    "Rotary2D",
    "Routing",
    "RunningSums",
    "Sinusoidal",
    "Sinusoidal2D",
    "attend",
    "attention_scores",
    "attention_weights",
    "grid_positions",
    "observing",
    "resize_grid",
    "scaling",
    "unobserved",
    "unpack",
    "unpack_mask",
]
