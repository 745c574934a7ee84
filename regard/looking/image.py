"""An image's classification as a picture: over the image, what the answer owes to each patch and what heads saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from regard.errors import UserError
from regard.inspection.maps import layers_of, rollout
from regard.inspection.overlay import overlays
from regard.inspection.probe import probe
from regard.models.vit import ViT, ViTConfig
from regard.recognition.classifier import Classifier

Floats = npt.NDArray[np.floating]


def draw_image(classifier: Classifier, path: Path) -> Image.Image:
    """The image, and over it the rollout after every layer, then what each head of the last layer looked at.

    Each map has its own scale, from nothing to its largest.

    Raises:
        UserError: the image is bad, or the model is no ViT, whose tokens see the whole image.
    """
    if not isinstance(classifier.model, ViT):
        raise UserError("only a ViT's attention spans the whole image; look at others with regard.inspection.maps")
    pixels = classifier.reading.open(path)
    with probe(classifier.model) as seen:
        classifier.judge([pixels])
    layers = layers_of(seen)
    config = classifier.model.config
    maps = {f"up to layer {last}": rollout(layers[: last + 1])[0] for last in range(len(layers))}
    maps |= {f"layer {len(layers) - 1}, head {head}": weights for head, weights in enumerate(layers[-1][0])}
    shown = {name: _seen_by_the_answer(weights, config) for name, weights in maps.items()}
    return overlays(pixels if pixels.shape[2] == 3 else pixels[..., 0], shown)


def _seen_by_the_answer(weights_TT: Floats, config: ViTConfig) -> Floats:
    """What the pooled token, or the mean of the pooled patches, looked at, (rows, columns), at most 1."""
    row = weights_TT[0] if config.pooling == "class" else weights_TT[config.leading :].mean(0)
    patches = row[config.leading :].reshape(config.grid)
    largest: Floats = patches / max(float(patches.max()), 1e-12)
    return largest
