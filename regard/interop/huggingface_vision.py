"""ViT and Swin of Hugging Face's transformers, with the names of release 5; those of release 4 are understood too.

Their ViT computes with an eps of 1e-12 in its LayerNorms, so the config needs `norm_eps=1e-12`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import UserError
from regard.interop.huggingface_marian import without_bars
from regard.interop.renaming import Names, Template, give, take
from regard.interop.verification import compare_images
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig
from regard.pipelines.classifier import Classifier
from regard.runtime import import_optional

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


def build_huggingface_images(classifier: Classifier) -> Any:
    """Their model with our weights and the names of our classes.

    Raises:
        UserError: transformers has no such model, or is not installed.
    """
    model = classifier.model
    values = _describe(model.config)
    library = import_optional("transformers", "hf")
    name = "ViT" if isinstance(model.config, ViTConfig) else "Swin"
    theirs_class = getattr(library, f"{name}ForImageClassification")
    labels = dict(enumerate(classifier.classes))
    config = theirs_class.config_class(**values, id2label=labels, label2id={text: i for i, text in labels.items()})
    theirs = theirs_class(config).eval()
    lacking, unknown = theirs.load_state_dict(to_huggingface(model.state_dict(), model.config), strict=False)
    if unknown or any("relative_position_index" not in tensor for tensor in lacking):
        raise UserError(f"this release of transformers ({library.__version__}) names tensors otherwise: {unknown[:1]}")
    return theirs


def write_huggingface_images(classifier: Classifier, folder: Path) -> list[str]:
    """Writes a folder that transformers loads as an image classifier, with its processor.

    Raises:
        UserError: transformers cannot express the model, or does not agree with it.
    """
    theirs, preprocessing = build_huggingface_images(classifier), classifier.preprocessing
    with without_bars():
        theirs.save_pretrained(folder)
    side = {"height": preprocessing.size, "width": preprocessing.size}
    processor = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": side, "resample": 3}
    processor |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
    processor |= {"image_mean": list(preprocessing.mean), "image_std": list(preprocessing.std)}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=2) + "\n", encoding="utf-8")
    with without_bars():
        loaded = type(theirs).from_pretrained(folder).eval()
    return [compare_images(classifier.model, lambda images: loaded(images).logits, type(theirs).__name__)]


def _describe(config: Any) -> dict[str, Any]:
    """The values of their config.

    Raises:
        UserError: they have no such model; says why.
    """
    if config.image[0] != config.image[1] or config.patch[0] != config.patch[1]:
        raise UserError("transformers' models of images have square images and patches")
    if config.qk_scale is not None:
        raise UserError("transformers' models of images have no qk_scale")
    common = {"image_size": config.image[0], "patch_size": config.patch[0], "num_channels": config.channels}
    common |= {"qkv_bias": config.qkv_bias, "layer_norm_eps": config.norm_eps}
    if isinstance(config, SwinConfig):
        if config.window[0] != config.window[1]:
            raise UserError("transformers' Swin has square windows")
        return common | {
            "embed_dim": config.width,
            "depths": list(config.layers),
            "num_heads": list(config.heads),
            "window_size": config.window[0],
            "mlp_ratio": float(config.expansion),
        }
    wanted_of = {"stem": "patches", "pooling": "class", "positions": "learned", "registers": 0, "layer_scale": None}
    for key, wanted in wanted_of.items():
        if getattr(config, key) != wanted:
            raise UserError(f"transformers' ViT has {key} {wanted}, and this model's is {getattr(config, key)}")
    if config.attention.kind != "full" or config.activation == "swiglu":
        raise UserError("transformers' ViT has full attention and a feed-forward without gates")
    return common | {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "hidden_act": config.activation,
    }
