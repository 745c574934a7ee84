"""What all models have in common, and what those of images share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, PositiveInt
from torch import Tensor, nn

from regard.config import Settings
from regard.ops.linear import Linear


class Model(nn.Module):
    """A module that knows the settings it was built from, so that a folder can hold it."""

    config: Settings


class ImageModel(Model):
    """A model that turns an image into tokens, these into one vector, and that into a class."""

    head: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each image's class, (B, classes); without a head, its features, (B, W)."""
        logits: Tensor = self.head(self.embed(images))
        return logits

    def embed(self, images: Tensor) -> Tensor:
        """One vector of features for each image, (B, W)."""
        return self.pool(self.tokens(images))

    def tokens(self, images: Tensor) -> Tensor:
        """The encoded tokens, (B, N, W)."""
        raise NotImplementedError

    def pool(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, W) to one vector, (B, W)."""
        raise NotImplementedError


def make_head(width: int, classes: int) -> nn.Module:
    """From features to the logits of classes; of none, the features themselves."""
    if not classes:
        return nn.Identity()
    head = Linear(width, classes)
    nn.init.normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


def _square(value: Any) -> Any:
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


Size = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_square)]
"""Height and width, in pixels or patches; one number stands for both."""
