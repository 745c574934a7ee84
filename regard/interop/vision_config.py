"""The config of a ViT or Swin from elsewhere: read from its config.json, or from the shapes of its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor

from regard.errors import UserError
from regard.interop.huggingface_vision import from_huggingface
from regard.interop.timm import from_timm
from regard.interop.torchvision import from_torchvision
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig

Library = Literal["huggingface", "timm", "torchvision"]
VisionConfig = ViTConfig | SwinConfig
TAKING: dict[Library, Callable[[Mapping[str, Tensor], Any], dict[str, Tensor]]] = {
    "huggingface": from_huggingface,
    "timm": from_timm,
    "torchvision": from_torchvision,
}


class _Names(NamedTuple):
    """Where a library keeps the tensors of a ViT that tell its sizes."""

    patches: str
    positions: str
    token: str
    block: str
    inner: str
    head: str


_VIT: dict[Library, _Names] = {
    "timm": _Names(
        "patch_embed.proj.weight",
        "pos_embed",
        "cls_token",
        r"blocks\.(\d{1,9})\.",
        "blocks.0.mlp.fc1.weight",
        "head.weight",
    ),
    "torchvision": _Names(
        "conv_proj.weight",
        "encoder.pos_embedding",
        "class_token",
        r"encoder\.layers\.encoder_layer_(\d{1,9})\.",
        "encoder.layers.encoder_layer_0.mlp.0.weight",
        "heads.head.weight",
    ),
}
_HEAD = 64
"""The width of a head in every ViT that was published, which no tensor tells."""


def recognise(tensors: Mapping[str, Tensor]) -> Library | None:
    """Whose names these are, of those whose files say nothing else."""
    if "conv_proj.weight" in tensors:
        return "torchvision"
    return "timm" if "patch_embed.proj.weight" in tensors else None


def infer_vision(tensors: Mapping[str, Tensor], library: Library, changes: Mapping[str, Any]) -> VisionConfig:
    """The config from shapes; `changes` say what they cannot tell, or what is otherwise.

    Raises:
        UserError: a tensor is missing, or a value is wrong; it is named.
    """
    if any(name.startswith("layers.") for name in tensors):
        return SwinConfig.parse(_infer_swin(tensors) | dict(changes), "weights of timm")
    names = _VIT[library]
    width, channels, *patch = _shape(tensors, names.patches, 4)
    token = names.token in tensors
    places = _shape(tensors, names.positions, 3)[1] - token
    side = math.isqrt(places)
    if side * side != places and "image" not in changes:
        raise UserError(f"{names.positions} has {places} places, which make no square; say --set image=[HEIGHT,WIDTH]")
    if width % _HEAD and "heads" not in changes:
        raise UserError(f"heads: a width of {width} is not made of heads of {_HEAD}; say --set heads=8, or what is so")
    values = {
        "image": [side * patch[0], side * patch[1]],
        "channels": channels,
        "patch": patch,
        "classes": _shape(tensors, names.head, 2)[0] if names.head in tensors else 0,
        "width": width,
        "layers": _count(tensors, names.block),
        "heads": width // _HEAD or 1,
        "hidden": _shape(tensors, names.inner, 2)[0],
        "pooling": "class" if token else "mean",
    }
    return ViTConfig.parse(values | dict(changes), f"weights of {library}")


def read_huggingface(values: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> VisionConfig:
    """The config of their ViT or Swin with this config.json.

    Raises:
        UserError: a value is missing or wrong, or our models have no such thing; it is named.
    """
    kind = values.get("model_type")
    classes = len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 0
    common = {"classes": classes}
    if kind == "vit":
        names = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
        names |= {"hidden": "intermediate_size", "image": "image_size", "patch": "patch_size"}
        names |= {"channels": "num_channels", "activation": "hidden_act", "norm_eps": "layer_norm_eps"}
        names |= {"qkv_bias": "qkv_bias"}
        return ViTConfig.parse(_pick(values, names, where) | common, where)
    if kind == "swin":
        names = {"width": "embed_dim", "layers": "depths", "heads": "num_heads", "window": "window_size"}
        names |= {"image": "image_size", "patch": "patch_size", "channels": "num_channels"}
        names |= {"norm_eps": "layer_norm_eps", "expansion": "mlp_ratio", "qkv_bias": "qkv_bias"}
        if values.get("use_absolute_embeddings"):
            raise UserError(f"{where}: use_absolute_embeddings is true, and our Swin has relative positions only")
        if values.get("hidden_act") != "gelu":
            raise UserError(f"{where}: hidden_act is {values.get('hidden_act')!r}, and our Swin has gelu")
        return SwinConfig.parse(_pick(values, names, where) | common, where)
    raise UserError(f"{where}: model_type is {kind!r}; vit and swin can be read")


def _infer_swin(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    width, channels, *patch = _shape(tensors, "patch_embed.proj.weight", 4)
    stages = _count(tensors, r"layers\.(\d{1,9})\.")
    tables = [
        _shape(tensors, f"layers.{stage}.blocks.0.attn.relative_position_bias_table", 2) for stage in range(stages)
    ]
    return {
        "channels": channels,
        "patch": patch,
        "window": (math.isqrt(tables[0][0]) + 1) // 2,
        "classes": _shape(tensors, "head.fc.weight", 2)[0] if "head.fc.weight" in tensors else 0,
        "width": width,
        "layers": [_count(tensors, rf"layers\.{stage}\.blocks\.(\d{{1,9}})\.") for stage in range(stages)],
        "heads": [heads for _, heads in tables],
        "expansion": _shape(tensors, "layers.0.blocks.0.mlp.fc1.weight", 2)[0] // width,
    }


def _pick(values: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    for theirs in names.values():
        if theirs not in values:
            raise UserError(f"{where}: {theirs} is missing")
    return {ours: values[theirs] for ours, theirs in names.items()}


def _shape(tensors: Mapping[str, Tensor], name: str, dimensions: int) -> list[int]:
    if name not in tensors:
        raise UserError(f"no tensor {name} among the weights, from which the sizes of the model would be read")
    shape = list(tensors[name].shape)
    if len(shape) != dimensions or not all(shape):
        raise UserError(f"{name} is {shape}, but a tensor of {dimensions} dimensions was expected there")
    return shape


def _count(tensors: Mapping[str, Tensor], block: str) -> int:
    return max((int(found[1]) for name in tensors if (found := re.match(block, name))), default=-1) + 1
