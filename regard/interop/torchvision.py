"""ViT of torchvision (vit_b_16 and its variants)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from regard.interop.infer_config import infer_vit
from regard.interop.renaming import Block, Names, block_names, export_tensors, import_tensors
from regard.models.vit import ViTConfig

_BLOCK: Block = {
    r"norm1": "ln_1",
    r"attention\.qkv\.": "self_attention.in_proj_",
    r"attention\.out": "self_attention.out_proj",
    r"norm2": "ln_2",
    r"feed_forward\.inner": "mlp.0",
    r"feed_forward\.outer": "mlp.3",
}
_VIT: Names = {
    "class_token": "class_token",
    "positions": "encoder.pos_embedding",
    r"patches(?=\.(weight|bias)$)": "conv_proj",
    **block_names(r"encoder\.(\d+)\.", r"encoder.layers.encoder_layer_\1.", _BLOCK),
    "norm": "encoder.ln",
    "head": "heads.head",
}


def is_torchvision(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether tensors have the names of a torchvision ViT."""
    return "conv_proj.weight" in tensors


def infer_torchvision(tensors: Mapping[str, Tensor], changes: Mapping[str, Any]) -> ViTConfig:
    """Infer the config of a torchvision ViT from its tensors; `changes` sets or overrides keys of the config."""
    return infer_vit(tensors, _VIT, changes, "weights of torchvision")


def from_torchvision(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Convert `model.state_dict()` of a torchvision ViT to a regard state dict; see `import_tensors`.

    The head is dropped if the config has no classes.
    """
    ignored = () if config.classes else (r"heads\.",)
    return import_tensors(tensors, config, _VIT, "weights of torchvision", ignored)


def to_torchvision(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """Convert a regard state dict to that of the torchvision model of the same sizes; see `export_tensors`."""
    return export_tensors(tensors, config, _VIT)
