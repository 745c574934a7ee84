"""Exports of models of images, verified on images of noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.interop.export_huggingface import without_bars
from regard.interop.huggingface import to_huggingface
from regard.interop.optional import need
from regard.interop.verification import TOLERANCE
from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig
from regard.pipelines.classifier import Classifier

BATCHES = (1, 8)


def compare_images(model: Any, theirs: Callable[[Tensor], Tensor], what: str) -> str:
    """Both on batches of noise; a sentence about how far the logits agree.

    Raises:
        UserError: they do not.
    """
    config, largest = model.config, 0.0
    for batch in BATCHES:
        images = torch.randn(batch, config.channels, *config.image, generator=torch.Generator().manual_seed(batch))
        with torch.no_grad():
            largest = max(largest, float((model(images) - theirs(images)).abs().max()))
    if not largest <= TOLERANCE:
        raise UserError(
            f"{what} does not say what our model says, so nothing was written: logits differ by {largest:.1e}, and may "
            f"by {TOLERANCE:g}"
        )
    return f"{what}: batches of {' and '.join(map(str, BATCHES))} images, logits within {largest:.1e}"


def build_huggingface_images(classifier: Classifier) -> Any:
    """Their model with our weights and the names of our classes.

    Raises:
        UserError: transformers has no such model, or is not installed.
    """
    model = classifier.model
    values = _describe(model.config)
    library = need("transformers", "hf")
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
