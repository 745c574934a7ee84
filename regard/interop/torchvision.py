"""torchvision's ViT (vit_b_16 and its sisters)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from regard.interop.renaming import Names, give, take
from regard.models.vit import ViTConfig

_BLOCK = {
    r"around_attention\.norm": "ln_1",
    r"attention\.qkv\.": "self_attention.in_proj_",
    r"attention\.out": "self_attention.out_proj",
    r"around_feed_forward\.norm": "ln_2",
    r"feed_forward\.inner": "mlp.0",
    r"feed_forward\.outer": "mlp.3",
}
_VIT: Names = {
    "class_token": "class_token",
    "positions": "encoder.pos_embedding",
    r"patches(?=\.(weight|bias)$)": "conv_proj",
    **{rf"encoder\.(\d+)\.{ours}": rf"encoder.layers.encoder_layer_\1.{theirs}" for ours, theirs in _BLOCK.items()},
    "norm": "encoder.ln",
    "head": "heads.head",
}


def from_torchvision(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """The weights of a torchvision ViT (`model.state_dict()`), for `load_state_dict` of ours.

    Where the config has no classes, their head is left behind.

    Raises:
        UserError: a tensor is missing, unknown or of another shape; it is named.
    """
    return take(tensors, config, _VIT, "weights of torchvision", () if config.classes else (r"heads\.",))


def to_torchvision(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Our weights, for `load_state_dict` of the torchvision model of the same sizes.

    Raises:
        UserError: torchvision has no place for a tensor, or one is missing.
    """
    return give(tensors, config, _VIT)
