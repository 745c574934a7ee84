"""timm's ViT and Swin, as of timm 1.0. Both compute with the LayerNorm's eps that our presets have."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from regard.interop.renaming import Names, give, take
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig

_BLOCK = {
    r"around_attention\.norm": "norm1",
    r"around_attention\.scale": "ls1.gamma",
    r"attention\.qkv": "attn.qkv",
    r"attention\.out": "attn.proj",
    r"attention\.kind\.table": "attn.relative_position_bias_table",
    r"around_feed_forward\.norm": "norm2",
    r"around_feed_forward\.scale": "ls2.gamma",
    r"feed_forward\.inner": "mlp.fc1",
    r"feed_forward\.outer": "mlp.fc2",
}
_VIT: Names = {
    "class_token": "cls_token",
    "positions": "pos_embed",
    r"patches(?=\.(weight|bias)$)": "patch_embed.proj",
    **{rf"encoder\.(\d+)\.{ours}": rf"blocks.\1.{theirs}" for ours, theirs in _BLOCK.items()},
    "norm": "norm",
    "head": "head",
}
_SWIN: Names = {
    "patches": "patch_embed.proj",
    "patch_norm": "patch_embed.norm",
    r"stages\.(\d+)\.merge\.norm": r"layers.\1.downsample.norm",
    r"stages\.(\d+)\.merge\.linear": r"layers.\1.downsample.reduction",
    **{rf"stages\.(\d+)\.blocks\.(\d+)\.{ours}": rf"layers.\1.blocks.\2.{theirs}" for ours, theirs in _BLOCK.items()},
    "norm": "norm",
    "head": "head.fc",
}
_FOLLOWING = (r".*\.relative_position_index$", r".*\.attn_mask$")
"""What older releases kept among the weights although it follows from the sizes."""


def from_timm(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """The weights of a timm model (`model.state_dict()`), for `load_state_dict` of ours.

    Where the config has no classes, their head is left behind.

    Raises:
        UserError: a tensor is missing, unknown or of another shape; it is named.
    """
    ignored = _FOLLOWING if config.classes else (*_FOLLOWING, r"head\.")
    return take(tensors, config, _names(config), "weights of timm", ignored)


def to_timm(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """Our weights, for `load_state_dict` of the timm model of the same sizes.

    Raises:
        UserError: timm has no place for a tensor, or one is missing.
    """
    return give(tensors, config, _names(config))


def _names(config: ViTConfig | SwinConfig) -> Names:
    return _VIT if isinstance(config, ViTConfig) else _SWIN
