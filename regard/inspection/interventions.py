"""Change a model's attention for the duration of a `with` block: scale or ablate heads, scale or bias scores."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import nn

from regard.attention.biased import Biased, takes_bias
from regard.attention.kinds import Kind
from regard.attention.multi_head import Attention, use_head_scales
from regard.errors import UserError
from regard.inspection.probe import check_heads, find_attentions


@contextmanager
def ablate(model: nn.Module, heads: Mapping[str, Collection[int]]) -> Iterator[None]:
    """Replaces the output of some heads by zeros: `ablate(model, {"decoder.3.cross": [0, 5]})`.

    Applies to every use of the model within the block: training, cached decoding, beam search and probes.
    """
    with scale_heads(model, {name: dict.fromkeys(ablated, 0.0) for name, ablated in heads.items()}):
        yield


@contextmanager
def scale_heads(model: nn.Module, factors: Mapping[str, Mapping[int, float]]) -> Iterator[None]:
    """Multiplies the output of some heads by a factor: `scale_heads(model, {"decoder.3.cross": {0: 0.5}})`.

    The factors of nested blocks are multiplied.
    """
    scales = {}
    for name, attention in find_attentions(model, list(factors)).items():
        check_heads(name, attention, factors[name].keys())
        scale = torch.ones(attention.heads, device=attention.out.weight.device)
        for head, factor in factors[name].items():
            scale[head] = factor
        scales[attention] = scale
    with use_head_scales(scales):
        yield


@contextmanager
def scale_scores(model: nn.Module, factor: float) -> Iterator[None]:
    """Multiplies all attention scores by a factor: above 1 sharpens the weights, below 1 flattens them."""
    if factor <= 0:
        raise UserError(f"sharpness: {factor:g} must be greater than 0; values below 1 flatten the attention weights")
    attentions = find_attentions(model).values() if factor != 1 else ()
    originals = {attention: (attention.kind, getattr(attention.kind, "scale", None)) for attention in attentions}
    try:
        for attention in originals:
            _set_scale(attention, score_scale(attention) * factor)
        yield
    finally:
        for attention, (kind, scale) in originals.items():
            attention.kind = kind
            if not is_dataclass(kind):
                kind.scale = scale  # type: ignore[attr-defined]


@contextmanager
def bias_scores(model: nn.Module, bias: Mapping[int, float], names: Collection[str] | None = None) -> Iterator[None]:
    """Adds a number to the scores of some source tokens before the softmax, for every query and head.

    A positive number draws attention to the token, a negative one away from it: `bias_scores(model, {2: -4.0})`
    multiplies the weight of the third source token by e⁻⁴ before the weights are normalised. Nested blocks add up.

    Args:
        bias: Number to add, by the position of the source token.
        names: Attention modules. Defaults to all cross-attention modules.

    Raises:
        UserError: A module has no scores of source tokens, or its kind of attention takes no softmax of its scores.
    """
    if names is None:
        names = [name for name in find_attentions(model) if name.endswith(".cross")] if bias else []
        if bias and not names:
            raise UserError("bias: this model has no cross-attention; name the attention modules")
    attentions = find_attentions(model, names)
    for name, attention in attentions.items():
        if re.fullmatch(r"decoder\.\d+\.attention", name):
            raise UserError(f"bias: the keys of {name} are target tokens; a bias applies to source tokens")
        if not takes_bias(attention.kind):
            raise UserError(
                f"bias: {name} is {type(attention.kind).__name__.lower()} attention, whose weights are not a softmax "
                f"of scores; a bias needs full, local or routing attention"
            )
    originals = {attention: attention.kind for attention in attentions.values()}
    try:
        for attention, kind in originals.items():
            attention.kind = _with_bias(kind, bias)
        yield
    finally:
        for attention, kind in originals.items():
            attention.kind = kind


def _with_bias(kind: Kind, bias: Mapping[int, float]) -> Biased:
    if isinstance(kind, Biased):
        total = {position: kind.bias.get(position, 0) + bias.get(position, 0) for position in {*kind.bias, *bias}}
        return Biased(kind.kind, total)
    return Biased(kind, dict(bias))


def score_scale(attention: Attention) -> float:
    """Return the factor applied to q·k, 1/√D unless the attention kind defines its own."""
    kind = attention.kind.kind if isinstance(attention.kind, Biased) else attention.kind
    scale: float | None = getattr(kind, "scale", None)
    return (attention.width // attention.heads) ** -0.5 if scale is None else scale


def _set_scale(attention: Attention, scale: float) -> None:
    kind: Any = attention.kind
    if isinstance(kind, Biased):
        raise UserError("sharpness: scale the scores before a bias is added to them: put bias_scores inside")
    if is_dataclass(kind):  # frozen, and possibly shared by several attention modules
        attention.kind = replace(kind, scale=scale)  # type: ignore[assignment, type-var]
    else:
        kind.scale = scale
