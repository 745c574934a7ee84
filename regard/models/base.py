"""Base classes of models, and the parts that image models share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveInt
from torch import Tensor, nn

from regard.config import Settings
from regard.ops.linear import Linear


class Model(nn.Module):
    """A module with the configuration it was built from, which a model folder stores."""

    config: Settings


class ImageModel(Model):
    """A model that converts an image to tokens, the tokens to features, and the features to class logits."""

    head: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Return the class logits, (B, classes), or the features, (B, W), if there is no head."""
        logits: Tensor = self.head(self.embed(images))
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """Return the features of each image, (B, W)."""
        return self.pool(self.tokens(images))

    def tokens(self, images: Tensor) -> Tensor:
        """Return the encoded tokens, (B, N, W)."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """Return the features of each image, (B, N, W) to (B, W)."""
        raise NotImplementedError


def make_head(width: int, classes: int) -> nn.Module:
    """Return a linear classification head, or the identity if there are no classes."""
    if not classes:
        return nn.Identity()
    head = Linear(width, classes)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def _as_pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_as_pair)]
"""Height and width in pixels or patches; one number stands for both."""
