"""Section "image": what a classifier says of an image, and what it looked at; where a patch looks in another view."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from regard.errors import UserError
from regard.inspection.maps import layers_of, rollout
from regard.inspection.matching import cross_attentions
from regard.inspection.probe import probe
from regard.models.croco import CroCo
from regard.models.vit import ViT
from regard.recognition.classifier import Classifier
from regard.serving.sections.packet import Array, Precision, pack
from regard.vision.decoding import Pixels, decode
from regard.vision.pictures import GAP, Frame, fit

TOP = 5
PATCHES = 12
"""Along each side of a view: a two-view model takes any size, this one is shown."""


def show_image(classifier: Classifier, asked: dict[str, Any]) -> bytes:
    """A packet: classes, `pixels` as the model sees them, and of a ViT `rollout` (layers, patches), `heads`.

    `heads` (layers, heads, patches) is what the answer looked at, or, where `asked` names one, what a patch did.

    Raises:
        UserError: the image is bad, or has no such patch.
    """
    reading = classifier.reading
    data, patch = asked["image"], asked["patch"]
    pixels = reading.open(decode(data, reading.mode, pixels=asked["pixels"], detail=GAP * reading.size))
    model = classifier.model
    spans = isinstance(model, ViT)  # else windows, whose tokens never see the whole image
    with probe(model, None if spans else []) as seen:
        shares = classifier.judge([pixels])
    classes = [(name, round(share, 4)) for name, share in classifier.rank(shares, TOP)[0]]
    arrays: dict[str, tuple[Array, Precision]] = {"pixels": (pixels, "b1")}
    about: dict[str, Any] = {"classes": classes, "grid": None}
    if isinstance(model, ViT):
        layers = layers_of(seen)
        about["grid"] = model.config.grid
        patches = layers[0].shape[-1] - model.config.leading
        if patch is not None and patch >= patches:
            raise UserError(f"patch {patch} is not in this image; its patches are 0 to {patches - 1}")
        pick = _row_of(model, patch)
        rolled = np.stack([pick(rollout(layers[: last + 1]))[0] for last in range(len(layers))])
        arrays["rollout"] = rolled, "u2"
        arrays["heads"] = np.stack([pick(layer)[0] for layer in layers]), "u2"
    return pack(about, arrays)


def _row_of(model: ViT, patch: int | None) -> Any:
    """What gives, of weights (…, T, T), the row of a patch, or of what the answer is taken from, over the patches."""
    leading = model.config.leading

    def pick(weights: Array) -> Array:
        if patch is not None:
            row = weights[..., leading + patch, :]
        elif model.config.pooling == "class":
            row = weights[..., 0, :]
        else:
            row = weights[..., leading:, :].mean(-2)
        return row[..., leading:]

    return pick


@torch.no_grad()
def show_views(model: CroCo, asked: dict[str, Any]) -> bytes:
    """A packet: both views' pixels, and `crossN`, what each patch of the first gave to each of the second, by layer.

    Raises:
        UserError: an image is bad.
    """
    size = PATCHES * model.config.patch
    opened = [decode(data, "RGB", pixels=asked["pixels"], detail=GAP * size) for data in asked["images"]]
    views = [fit(pixels, Frame(size)) for pixels in opened]
    device = model.mask_token.device
    first, second = (_as_input(view).to(device) for view in views)
    with probe(model, cross_attentions(model)) as seen:
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
