"""Infer the config of a model from the names and shapes of its tensors."""

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.interop.renaming import Names, map_name
from regard.models.vit import ViTConfig

HEAD_WIDTH = 64
"""Head width of all published ViTs; it cannot be inferred from the shapes."""


def infer_vit(tensors: Mapping[str, Tensor], names: Names, changes: Mapping[str, Any], where: str) -> ViTConfig:
    """Infer the config of a ViT; `changes` sets or overrides keys of the config."""

    def foreign(name: str) -> str:
        return map_name(name, names)[0]

    width, channels, *patch = shape_of(tensors, foreign("patches.weight"), 4)
    has_class_token = foreign("class_token") in tensors
    patches = shape_of(tensors, foreign("positions"), 3)[1] - has_class_token
    layers = 0
    while foreign(f"encoder.{layers}.feed_forward.inner.weight") in tensors:
        layers += 1
    side = math.isqrt(patches)
    if side * side != patches and "image" not in changes:
        raise UserError(
            f"{foreign('positions')} has {patches} patch positions, which are not a square; "
            "give the image size: --set image=[HEIGHT,WIDTH]"
        )
    if width % HEAD_WIDTH and "heads" not in changes:
        raise UserError(
            f"heads: the number of heads cannot be inferred, because a width of {width} is not a multiple of "
            f"{HEAD_WIDTH}; give it, for example --set heads=8"
        )
    inferred = {
        "image": [side * patch[0], side * patch[1]],
        "channels": channels,
        "patch": patch,
        "classes": shape_of(tensors, foreign("head.weight"), 2)[0] if foreign("head.weight") in tensors else 0,
        "width": width,
        "layers": layers,
        "heads": width // HEAD_WIDTH or 1,
        "hidden": shape_of(tensors, foreign("encoder.0.feed_forward.inner.weight"), 2)[0],
        "pooling": "class" if has_class_token else "mean",
    }
    return ViTConfig.parse(inferred | dict(changes), where)


def shape_of(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> list[int]:
    """Return the shape of a tensor, which must have this number of dimensions, none of them empty."""
    if name not in tensors:
        raise UserError(f"tensor {name} is missing; it is needed to infer the sizes of the model")
    shape = list(tensors[name].shape)
    if len(shape) != dimensions or not all(shape):
        raise UserError(f"{name} has shape {shape}, but must have {dimensions} dimensions, none of them empty")
    return shape


def count_layers(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """Return 1 plus the largest index that the pattern's group matches in the names; 0 without a match."""
    return max((int(found[1]) for name in tensors if (found := re.match(pattern, name))), default=-1) + 1
