"""Section "image": what a classifier says of an image, and what it looked at; where a patch looks in another view."""

from __future__ import annotations

from typing import Any

import torch

from regard.data.images.datasets import Resize
from regard.data.images.decoding import Pixels, decode_image
from regard.inspection.patches import WindowAttention, check_patch, global_attention, patch_grid, window_attention
from regard.inspection.probe import probe
from regard.inspection.two_view import cross_attention_names
from regard.models.croco import CroCo
from regard.models.vit import ViT
from regard.pipelines.classifier import Classifier
from regard.serving.views.packet import Array, Precision, pack

TOP = 5
PATCHES = 12
"""Along each side of a view: a two-view model takes any size, this one is shown."""


def show_image(classifier: Classifier, asked: dict[str, Any]) -> bytes:
    """A packet: classes, `pixels` as the model sees them, and what it looked at.

    Of a ViT that is `rollout` (layers, patches) and `heads` (layers, heads, patches), of the answer or, where `asked`
    names one, of a patch. A Swin looks within windows: `layerN` (heads, tokens) is how much each token got from its
    window, or what the one at the patch gave; `about` describes each of these layers.

    Raises:
        UserError: the image is bad, or has no such patch.
    """
    preprocessing, model = classifier.preprocessing, classifier.model
    decoded = decode_image(
        asked["image"], preprocessing.mode, max_pixels=asked["pixels"], min_side=preprocessing.resize.min_side
    )
    pixels = preprocessing.open(decoded)
    grid = patch_grid(model, pixels.shape[:2])
    patch = None if asked["patch"] is None else divmod(asked["patch"], grid[1])
    check_patch(patch, grid)
    with probe(model) as seen:
        shares = classifier.predict([pixels])
    classes = [(name, round(share, 4)) for name, share in classifier.rank(shares, TOP)[0]]
    arrays: dict[str, tuple[Array, Precision]] = {"pixels": (pixels, "b1")}
    about = {"classes": classes, "grid": grid, "patch": model.config.patch, "windows": None}
    if isinstance(model, ViT):
        attention = global_attention(model, seen, patch)
        arrays |= {"rollout": (attention.rollout, "u2"), "heads": (attention.heads, "u2")}
    else:
        layers = window_attention(model, seen, pixels.shape[:2], patch)
        about["windows"] = [_describe(layer) for layer in layers]
        arrays |= {f"layer{number}": (layer.heads, "u2") for number, layer in enumerate(layers)}
    return pack(about, arrays)


def _describe(one: WindowAttention) -> dict[str, Any]:
    return {"stage": one.stage, "layer": one.layer, "grid": one.grid, "patch": one.patch, "reach": one.reach}


@torch.no_grad()
def show_views(model: CroCo, asked: dict[str, Any]) -> bytes:
    """A packet: both views' pixels, and `crossN`, what each patch of the first gave to each of the second, by layer.

    Raises:
        UserError: an image is bad.
    """
    resize = Resize(PATCHES * model.config.patch)
    views = [
        resize(decode_image(data, "RGB", max_pixels=asked["pixels"], min_side=resize.min_side))
        for data in asked["images"]
    ]
    device = model.mask_token.device
    first, second = (_as_input(view).to(device) for view in views)
    with probe(model, cross_attention_names(model)) as seen:
        model.both(first, second)
    arrays: dict[str, tuple[Array, Precision]] = {
        "pixels0": (views[0], "b1"),
        "pixels1": (views[1], "b1"),
    }
    for layer, record in enumerate(seen.values()):
        arrays[f"cross{layer}"] = record.weights[0].float().mean(0).cpu().numpy(), "u2"
    return pack({"grid": [PATCHES, PATCHES], "layers": len(seen)}, arrays)


def _as_input(view: Pixels) -> torch.Tensor:
    return torch.from_numpy(view.copy()).permute(2, 0, 1)[None].float() / 255
