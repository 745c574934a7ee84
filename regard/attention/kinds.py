"""Which kind of attention a model uses, as a recipe says it: `attention: {kind: local, window: 128}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, model_validator

from regard.attention.core import Full
from regard.attention.kind import Kind
from regard.attention.linear import Features, Linear, check_scale, check_size
from regard.attention.local import Local
from regard.attention.routing import Routing
from regard.config import Settings
from regard.errors import UserError


def _both_sides(value: Any) -> Any:
    if any(isinstance(part, bool) for part in (value if isinstance(value, list | tuple) else [value])):
        raise ValueError(f"must be one whole number or two, found {value}")
    return (value, value) if isinstance(value, int) else value


class FullSettings(Settings):
    """Every token looks at every other."""

    kind: Literal["full"] = "full"

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        """The kind for heads of this width."""
        return Full(scale)


class LocalSettings(Settings):
    """Every token looks at its neighbourhood."""

    kind: Literal["local"] = "local"
    window: Annotated[tuple[NonNegativeInt, NonNegativeInt], BeforeValidator(_both_sides)] = Field(
        (128, 128), description="tokens seen before and after one's own place: one number, or [before, after]"
    )
    dilation: int = Field(1, ge=1, description="distance from one token of the window to the next")
    global_tokens: int = Field(0, ge=0, description="first tokens of a sequence that see all and are seen by all")

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        """The kind for heads of this width."""
        return Local(*self.window, self.dilation, self.global_tokens, scale)


class LinearSettings(Settings):
    """Every token looks at a sum over all others, whose size does not grow."""

    kind: Literal["linear"] = "linear"
    features: Features = Field(
        "elu", description="elu: elu(x) + 1; random: close to softmax in the mean; plain: V Kᵀ Q, no features at all"
    )
    size: int | None = Field(None, gt=0, description="how many random features; by default about D log D")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_size(self.features, self.size)
        return self

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        """The kind for heads of this width."""
        return Linear(width, self.features, self.size, scale)


class RoutingSettings(Settings):
    """Every token looks at the tokens of its cluster; the clusters are learned."""

    kind: Literal["routing"] = "routing"
    clusters: int = Field(8, gt=0, description="the square root of the usual length is a good choice")
    decay: float = Field(0.99, ge=0, le=1, description="how much of a centroid stays at every step of training")
    balance: float = Field(0.02, ge=0, description="how fast clusters are brought to equal size")

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        """The kind for heads of this width."""
        return Routing(heads, width, self.clusters, self.decay, self.balance, scale)


_SETTINGS: dict[str, type[Settings]] = {
    "full": FullSettings,
    "local": LocalSettings,
    "linear": LinearSettings,
    "routing": RoutingSettings,
}


def _choose(value: Any) -> Any:
    """The settings of the kind that is named; `attention: linear` is short for `attention: {kind: linear}`."""
    if isinstance(value, Settings):
        return value
    values = {"kind": value} if isinstance(value, str) else value
    kind = values.get("kind") if isinstance(values, Mapping) else None
    if not isinstance(kind, str) or kind not in _SETTINGS:
        raise ValueError(f"kind must be one of {', '.join(_SETTINGS)}, found {value!r}")
    _check_owner(kind, values)
    try:
        return _SETTINGS[kind].parse(values, kind)
    except UserError as error:
        raise ValueError(str(error)) from None


def _check_owner(kind: str, values: Mapping[str, Any]) -> None:
    """Refuses a key that another kind has: that says more than a key which is spelt a little like it."""
    for key in values:
        owners = [other for other, settings in _SETTINGS.items() if key in settings.model_fields]
        if owners and kind not in owners:
            raise ValueError(f"{kind}: {key} is a key of kind {owners[0]}, not of {kind}")


def check_attention(attention: Settings, qk_scale: float | None, attention_dropout: float) -> None:
    """Refuses what a model says of all its attentions where their kind has no place for it."""
    if not isinstance(attention, LinearSettings):
        return
    if attention_dropout:
        raise ValueError("attention_dropout drops weights, which linear attention never makes; set it to 0")
    check_scale(attention.features, qk_scale)


AttentionSettings = Annotated[FullSettings | LocalSettings | LinearSettings | RoutingSettings, BeforeValidator(_choose)]
