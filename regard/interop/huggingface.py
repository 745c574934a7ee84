"""ViT and Swin of Hugging Face's transformers, with the names of release 5; those of release 4 are understood too.

Their ViT computes with an eps of 1e-12 in its LayerNorms, so the config needs `norm_eps=1e-12`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from regard.interop.renaming import Names, Template, give, take
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig

_BLOCK: dict[str, str | tuple[str, ...]] = {
    r"around_attention\.norm": "layernorm_before",
    r"attention\.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    r"attention\.out": "attention.o_proj",
    r"attention\.kind\.table": "attention.relative_position_bias.relative_position_bias_table",
    r"around_feed_forward\.norm": "layernorm_after",
    r"feed_forward\.inner": "mlp.fc1",
    r"feed_forward\.outer": "mlp.fc2",
}


def _in_blocks(ours: str, theirs: str) -> dict[str, Template | tuple[Template, ...]]:
    return {
        f"{ours}{mine}": tuple(f"{theirs}{name}" for name in ((names,) if isinstance(names, str) else names))
        for mine, names in _BLOCK.items()
    }


def _end_of_stage_before(part: str) -> Template:
    """Their merging belongs to the end of a stage, ours to the beginning of the next."""
    return lambda found: f"encoder.layers.{int(found[1]) - 1}.downsample.{part}"


_VIT: Names = {
    "class_token": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    r"patches(?=\.(weight|bias)$)": "embeddings.patch_embeddings.projection",
    **_in_blocks(r"encoder\.(\d+)\.", r"layers.\1."),
    "norm": "layernorm",
    "head": "classifier",
}
_SWIN: Names = {
    "patches": "embeddings.patch_embeddings.projection",
    "patch_norm": "embeddings.norm",
    r"stages\.(\d+)\.merge\.norm": _end_of_stage_before("norm"),
    r"stages\.(\d+)\.merge\.linear": _end_of_stage_before("reduction"),
    **_in_blocks(r"stages\.(\d+)\.blocks\.(\d+)\.", r"encoder.layers.\1.blocks.\2."),
    "norm": "layernorm",
    "head": "classifier",
}
_RELEASE_4 = {
    r"^encoder\.layer\.": "layers.",
    r"\.attention\.(attention|self)\.(q)uery\.": r".attention.\2_proj.",
    r"\.attention\.(attention|self)\.(k)ey\.": r".attention.\2_proj.",
    r"\.attention\.(attention|self)\.(v)alue\.": r".attention.\2_proj.",
    r"\.attention\.output\.dense\.": ".attention.o_proj.",
    r"\.attention\.self\.relative_position_bias_table$": (
        ".attention.relative_position_bias.relative_position_bias_table"
    ),
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"\.output\.dense\.": ".mlp.fc2.",
}
_PREFIX = re.compile(r"^(vit|swin)\.")
_USELESS = (r"pooler\.", r".*relative_position_index$")


def from_huggingface(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """The weights of a ViT or Swin, with or without a classifier, for `load_state_dict` of ours.

    Where the config has no classes, their classifier is left behind; their pooler always is.

    Raises:
        UserError: a tensor is missing, unknown or of another shape; it is named.
    """
    modern = {_modern_name(name): tensor for name, tensor in tensors.items()}
    ignored = _USELESS if config.classes else (*_USELESS, r"classifier\.")
    return take(modern, config, _names(config), "weights of transformers", ignored)


def to_huggingface(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """Our weights, for `load_state_dict` of `ViTModel` or `SwinModel`, or, with classes, of the classifier round it.

    Raises:
        UserError: transformers has no place for a tensor, or one is missing.
    """
    given = give(tensors, config, _names(config))
    inside = f"{config.kind}." if config.classes else ""
    return {name if name.startswith("classifier.") else inside + name: tensor for name, tensor in given.items()}


def _names(config: ViTConfig | SwinConfig) -> Names:
    return _VIT if isinstance(config, ViTConfig) else _SWIN


def _modern_name(name: str) -> str:
    name = _PREFIX.sub("", name)
    for old, new in _RELEASE_4.items():
        name = re.sub(old, new, name)
    return name
