"""`scale_scores`: a model whose attentions look more sharply, or more widely, than they learned to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import Any

from torch import nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.attentions import find_attentions


@contextmanager
def scale_scores(model: nn.Module, factor: float) -> Iterator[None]:
    """Multiplies the scale of all attentions by a factor while the block runs: above 1 sharper, below 1 flatter.

    Raises:
        UserError: the factor is not more than 0.
    """
    if factor <= 0:
        raise UserError(f"sharpness: {factor:g} must be more than 0; small numbers make attention flat")
    attentions = find_attentions(model).values() if factor != 1 else ()
    before = {attention: (attention.kind, getattr(attention.kind, "scale", None)) for attention in attentions}
    try:
        for attention in before:
            _set_scale(attention, scale_of(attention) * factor)
        yield
    finally:
        for attention, (kind, scale) in before.items():
            attention.kind = kind
            if not is_dataclass(kind):
                kind.scale = scale  # type: ignore[attr-defined]


def scale_of(attention: Attention) -> float:
    """What the products of queries and keys are multiplied by."""
    scale: float | None = getattr(attention.kind, "scale", None)
    return (attention.width // attention.heads) ** -0.5 if scale is None else scale


def _set_scale(attention: Attention, scale: float) -> None:
    kind: Any = attention.kind
    if is_dataclass(kind):  # frozen ones may be shared by all attentions
        attention.kind = replace(kind, scale=scale)  # type: ignore[assignment, type-var]
    else:
        kind.scale = scale
