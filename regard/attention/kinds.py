"""Settings of the attention kinds by name, as recipes write them: `attention: {kind: local, window: 128}`."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, SerializeAsAny, model_validator

from regard.attention.core import Full, Kind
from regard.attention.linear import Features, Linear, check_scale, check_size
from regard.attention.local import Local
from regard.attention.routing import Routing
from regard.config import Settings
from regard.errors import UserError
from regard.registry import Registry, name_of_settings, register

KINDS: "Registry[type[KindSettings]]" = Registry("attention kind", name_of_settings)


class KindSettings(Settings):
    """Base class of the settings of an attention kind; a subclass declares its name and keys.

    Its name is a field such as `kind: Literal["local"] = "local"`. Decorate the subclass with `regard.register`.
    """

    registry: ClassVar[Registry[type["KindSettings"]]] = KINDS

    kind: str

    @abstractmethod
    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        """Build the kind for one attention module.

        Args:
            heads: Number of heads.
            width: Head width.
            scale: Factor on the scores, `qk_scale` of the model; 1/√width by default.
        """

    def check(self, qk_scale: float | None, attention_dropout: float) -> None:
        """Raise ValueError for settings of a model that this kind does not support."""


def _both_sides(value: Any) -> Any:
    if any(isinstance(part, bool) for part in (value if isinstance(value, list | tuple) else [value])):
        raise ValueError(f"must be one integer or two, found {value}")
    return (value, value) if isinstance(value, int) else value


@register
class FullSettings(KindSettings):
    """Every token attends to every other token."""

    kind: Literal["full"] = "full"

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Full(scale)


@register
class LocalSettings(KindSettings):
    """Every token attends to a window around its position."""

    kind: Literal["local"] = "local"
    window: Annotated[tuple[NonNegativeInt, NonNegativeInt], BeforeValidator(_both_sides)] = Field(
        (128, 128), description="tokens before and after the position of a token: one number, or [before, after]"
    )
    dilation: int = Field(1, ge=1, description="distance between consecutive tokens of the window")
    global_tokens: int = Field(
        0, ge=0, description="first tokens of a sequence, which attend to all tokens and to which all tokens attend"
    )

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Local(*self.window, self.dilation, self.global_tokens, scale)


@register
class LinearSettings(KindSettings):
    """Every token attends to all others through a sum of constant size."""

    kind: Literal["linear"] = "linear"
    features: Features = Field(
        "elu", description="feature map: elu (elu(x) + 1), random (approximates softmax) or plain (the identity)"
    )
    size: int | None = Field(None, gt=0, description="number of random features; about D log D by default")

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_size(self.features, self.size)
        return self

    def check(self, qk_scale: float | None, attention_dropout: float) -> None:
        if attention_dropout:
            raise ValueError("attention_dropout must be 0 for linear attention, which computes no attention weights")
        check_scale(self.features, qk_scale)

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Linear(width, self.features, self.size, scale)


@register
class RoutingSettings(KindSettings):
    """Every token attends to the tokens of its cluster; clusters are learned."""

    kind: Literal["routing"] = "routing"
    clusters: int = Field(8, gt=0, description="number of clusters; try the square root of the typical length")
    decay: float = Field(0.99, ge=0, le=1, description="weight of the previous centroid in its moving average")
    balance: float = Field(0.02, ge=0, description="step size of the bias that keeps clusters at equal size")

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Routing(heads, width, self.clusters, self.decay, self.balance, scale)


def _parse(value: Any) -> Any:
    """Parse the settings of the named kind; `attention: linear` is short for `attention: {kind: linear}`."""
    if isinstance(value, KindSettings):
        return value
    values = {"kind": value} if isinstance(value, str) else value
    kind: Any = values.get("kind") if isinstance(values, Mapping) else None
    try:
        settings = KINDS[kind]
    except (KeyError, TypeError):  # unknown, or not a string
        raise ValueError(f"kind must be {KINDS.explain(kind)}, found {value!r}") from None
    _check_owner(kind, values)
    try:
        return settings.parse(values, kind)
    except UserError as error:
        raise ValueError(str(error)) from None


def _check_owner(kind: str, values: Mapping[str, Any]) -> None:
    """Reject a key of another kind with a clearer message than that for an unknown key."""
    for key in values:
        owners = [other for other, settings in KINDS.items() if key in settings.model_fields]
        if owners and kind not in owners:
            raise ValueError(f"{kind}: {key} is a key of kind {owners[0]}, not of {kind}")


AttentionSettings = Annotated[SerializeAsAny[KindSettings], BeforeValidator(_parse)]
