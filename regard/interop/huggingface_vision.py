"""ViT and Swin of Hugging Face's transformers: names of release 5, and of release 4 for import.

The LayerNorm eps of their ViT is 1e-12, so the config needs `norm_eps=1e-12`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import UserError, import_optional
from regard.interop.files import write_json
from regard.interop.huggingface_translation import hide_progress_bars
from regard.interop.renaming import Block, Names, Template, block_names, export_tensors, import_tensors, rename_keys
from regard.interop.verification import compare_images
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig
from regard.pipelines.classifier import Classifier

_BLOCK: Block = {
    r"norm1": "layernorm_before",
    r"attention\.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    r"attention\.out": "attention.o_proj",
    r"attention\.kind\.table": "attention.relative_position_bias.relative_position_bias_table",
    r"norm2": "layernorm_after",
    r"feed_forward\.inner": "mlp.fc1",
    r"feed_forward\.outer": "mlp.fc2",
}


def _previous_stage(part: str) -> Template:
    """Return the name of a patch merging parameter: transformers puts it at the end of the previous stage."""
    return lambda found: f"encoder.layers.{int(found[1]) - 1}.downsample.{part}"


_VIT: Names = {
    "class_token": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    r"patches(?=\.(weight|bias)$)": "embeddings.patch_embeddings.projection",
    **block_names(r"encoder\.(\d+)\.", r"layers.\1.", _BLOCK),
    "norm": "layernorm",
    "head": "classifier",
}
_SWIN: Names = {
    "patches": "embeddings.patch_embeddings.projection",
    "patch_norm": "embeddings.norm",
    r"stages\.(\d+)\.merge\.norm": _previous_stage("norm"),
    r"stages\.(\d+)\.merge\.linear": _previous_stage("reduction"),
    **block_names(r"stages\.(\d+)\.blocks\.(\d+)\.", r"encoder.layers.\1.blocks.\2.", _BLOCK),
    "norm": "layernorm",
    "head": "classifier",
}
_NAMES = {"vit": _VIT, "swin": _SWIN}
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
_IGNORED = (r"pooler\.", r".*relative_position_index$")
_CONFIG = {
    "image": "image_size",
    "patch": "patch_size",
    "channels": "num_channels",
    "norm_eps": "layer_norm_eps",
    "qkv_bias": "qkv_bias",
}
_VIT_CONFIG = _CONFIG | {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "activation": "hidden_act",
}
_SWIN_CONFIG = _CONFIG | {
    "width": "embed_dim",
    "layers": "depths",
    "heads": "num_heads",
    "window": "window_size",
    "expansion": "mlp_ratio",
}
_VIT_FIXED = {"stem": "patches", "pooling": "class", "positions": "learned", "registers": 0, "layer_scale": None}
"""Values of a ViTConfig that the ViT of transformers has always."""


def from_huggingface(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """Convert the weights of a ViT or Swin, with or without a classifier, to a regard state dict; see `import_tensors`.

    The pooler is dropped, and the classifier if the config has no classes.
    """
    renamed = {_release_5_name(name): tensor for name, tensor in tensors.items()}
    ignored = _IGNORED if config.classes else (*_IGNORED, r"classifier\.")
    return import_tensors(renamed, config, _NAMES[config.kind], "weights of transformers", ignored)


def to_huggingface(tensors: Mapping[str, Tensor], config: ViTConfig | SwinConfig) -> dict[str, Tensor]:
    """Convert a regard state dict to that of `ViTModel` or `SwinModel`, or of the classifier if there are classes."""
    exported = export_tensors(tensors, config, _NAMES[config.kind])
    prefix = f"{config.kind}." if config.classes else ""
    return {name if name.startswith("classifier.") else prefix + name: tensor for name, tensor in exported.items()}


def read_vision_config(values: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> ViTConfig | SwinConfig:
    """Convert config.json of a ViT or Swin of transformers; the weights determine the number of classes."""
    kind = values.get("model_type")
    classes = {"classes": len(tensors["classifier.weight"]) if "classifier.weight" in tensors else 0}
    if kind == "vit":
        return ViTConfig.parse(rename_keys(values, _VIT_CONFIG, where) | classes, where)
    if kind == "swin":
        if values.get("use_absolute_embeddings"):
            raise UserError(f"{where}: use_absolute_embeddings is true, but regard's Swin has only relative positions")
        if values.get("hidden_act") != "gelu":
            raise UserError(f"{where}: hidden_act is {values.get('hidden_act')!r}, but regard's Swin uses gelu")
        padding = {"window_padding": "transformers"}
        return SwinConfig.parse(rename_keys(values, _SWIN_CONFIG, where) | padding | classes, where)
    raise UserError(f"{where}: model_type is {kind!r}; supported are vit and swin")


def build_huggingface_classifier(classifier: Classifier) -> Any:
    """Build the transformers model with a classifier's weights and class names."""
    model = classifier.model
    values = _describe(model.config)
    library = import_optional("transformers", "hf")
    name = "ViT" if isinstance(model.config, ViTConfig) else "Swin"
    model_class = getattr(library, f"{name}ForImageClassification")
    labels = dict(enumerate(classifier.classes))
    config = model_class.config_class(**values, id2label=labels, label2id={label: i for i, label in labels.items()})
    built = model_class(config).eval()
    missing, unknown = built.load_state_dict(to_huggingface(model.state_dict(), model.config), strict=False)
    if unknown or any("relative_position_index" not in tensor for tensor in missing):
        raise UserError(f"transformers {library.__version__} has other parameter names: {unknown[:1]}")
    return built


def export_huggingface_classifier(classifier: Classifier, folder: Path) -> list[str]:
    """Write and verify a folder that transformers loads as an image classifier, with its processor."""
    built, preprocessing = build_huggingface_classifier(classifier), classifier.preprocessing
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": preprocessing.size, "width": preprocessing.size},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    write_json(folder / "preprocessor_config.json", processor)
    with hide_progress_bars():
        built.save_pretrained(folder)
        loaded = type(built).from_pretrained(folder).eval()
    return [compare_images(classifier.model, lambda images: loaded(images).logits, type(built).__name__)]


def _describe(config: Any) -> dict[str, Any]:
    """Return the values of the transformers config, if transformers has such a model."""
    if config.image[0] != config.image[1] or config.patch[0] != config.patch[1]:
        raise UserError("image models of transformers need square images and patches")
    if config.qk_scale is not None:
        raise UserError("image models of transformers have no qk_scale")
    is_swin = isinstance(config, SwinConfig)
    values = {foreign: getattr(config, name) for name, foreign in (_SWIN_CONFIG if is_swin else _VIT_CONFIG).items()}
    values |= {"image_size": config.image[0], "patch_size": config.patch[0]}
    if is_swin:
        _check_swin(config)
        lists = {"depths": list(config.layers), "num_heads": list(config.heads)}
        return values | lists | {"window_size": config.window[0], "mlp_ratio": float(config.expansion)}
    for key, value in _VIT_FIXED.items():
        if getattr(config, key) != value:
            raise UserError(f"the ViT of transformers has {key} {value}, but this model has {getattr(config, key)}")
    if config.attention.kind != "full" or config.activation == "swiglu":
        raise UserError("the ViT of transformers has full attention and a feed-forward layer without gates")
    return values


def _check_swin(config: SwinConfig) -> None:
    """Raise a `UserError` if the Swin of transformers divides images into windows in another way."""
    (window, columns), side = config.window, -(-config.image[0] // config.patch[0])
    if window != columns:
        raise UserError("the Swin of transformers needs square windows")
    sides = [-(-side // 2**stage) for stage in range(len(config.layers))]
    if min(sides) < window:
        raise UserError(f"the Swin of transformers needs grids of at least {window} tokens a side, not {min(sides)}")
    if config.window_padding != "transformers" and any(side % window for side in sides):
        raise UserError(
            f"the Swin of transformers pads a grid of {max(sides)} tokens a side before it is shifted, but the "
            f"window_padding of this model is {config.window_padding}"
        )


def _release_5_name(name: str) -> str:
    name = _PREFIX.sub("", name)
    for old, new in _RELEASE_4.items():
        name = re.sub(old, new, name)
    return name
