"""ViT and Swin of timm 1.0. Their LayerNorm eps is that of the regard presets."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.interop.infer_config import count_layers, infer_vit, shape_of
from regard.interop.renaming import Block, Names, block_names, export_tensors, import_tensors
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig

_BLOCK: Block = {
    r"norm1": "norm1",
    r"scale1": "ls1.gamma",
    r"attention\.qkv": "attn.qkv",
    r"attention\.out": "attn.proj",
    r"attention\.kind\.table": "attn.relative_position_bias_table",
    r"norm2": "norm2",
    r"scale2": "ls2.gamma",
    r"feed_forward\.inner": "mlp.fc1",
    r"feed_forward\.outer": "mlp.fc2",
}
_VIT: Names = {
    "class_token": "cls_token",
    "positions": "pos_embed",
    r"patches(?=\.(weight|bias)$)": "patch_embed.proj",
    **block_names(r"encoder\.(\d+)\.", r"blocks.\1.", _BLOCK),
    "norm": "norm",
    "head": "head",
}
_SWIN: Names = {
    "patches": "patch_embed.proj",
    "patch_norm": "patch_embed.norm",
    r"stages\.(\d+)\.merge\.norm": r"layers.\1.downsample.norm",
    r"stages\.(\d+)\.merge\.linear": r"layers.\1.downsample.reduction",
    **block_names(r"stages\.(\d+)\.blocks\.(\d+)\.", r"layers.\1.blocks.\2.", _BLOCK),
    "norm": "norm",
    "head": "head.fc",
}
_NAMES = {"vit": _VIT, "swin": _SWIN}
_DERIVED = (r".*\.relative_position_index$", r".*\.attn_mask$")
"""Buffers that older releases of timm saved."""
_PATCHES = "patch_embed.proj.weight"


def is_timm(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether tensors have the names of a timm model."""
    return _PATCHES in tensors


def infer_timm(tensors: Mapping[str, Tensor], changes: Mapping[str, Any]) -> ViTConfig | SwinConfig:
    """Infer the config of a timm model from its tensors; `changes` sets or overrides keys of the config."""
    where = "weights of timm"
    if any(name.startswith("layers.") for name in tensors):
        return SwinConfig.parse(_infer_swin(tensors) | dict(changes), where)
    return infer_vit(tensors, _VIT, changes, where)


def from_timm(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """Convert `model.state_dict()` of a timm model to a regard state dict; see `import_tensors`.

    The head is dropped if the config has no classes.
    """
    ignored = _DERIVED if config.classes else (*_DERIVED, r"head\.")
    return import_tensors(tensors, config, _NAMES[config.kind], "weights of timm", ignored)


def to_timm(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """Convert a regard state dict to that of the timm model of the same sizes; see `export_tensors`."""
    return export_tensors(tensors, config, _NAMES[config.kind])


def _infer_swin(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    width, channels, *patch = shape_of(tensors, _PATCHES, 4)
    stages = count_layers(tensors, r"layers\.(\d{1,9})\.")
    bias_tables = [
        shape_of(tensors, f"layers.{stage}.blocks.0.attn.relative_position_bias_table", 2) for stage in range(stages)
    ]
    return {
        "channels": channels,
        "patch": patch,
        "window": (math.isqrt(bias_tables[0][0]) + 1) // 2,  # a table has (2 · window - 1)² rows
        "window_padding": "timm",
        "classes": shape_of(tensors, "head.fc.weight", 2)[0] if "head.fc.weight" in tensors else 0,
        "width": width,
        "layers": [count_layers(tensors, rf"layers\.{stage}\.blocks\.(\d{{1,9}})\.") for stage in range(stages)],
        "heads": [heads for _, heads in bias_tables],
        "expansion": shape_of(tensors, "layers.0.blocks.0.mlp.fc1.weight", 2)[0] // width,
    }
