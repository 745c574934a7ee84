"""Section "positions": how a model tells places apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import nn

from regard.attention.positions import Learned, Rotary, Rotary2D, Sinusoidal2D
from regard.inspection.positions import encode_positions, find_positions, rotary_angles, similarity
from regard.models.vit import ViT
from regard.serving.views.packet import Array, Precision, pack

GRID = 8
"""Rows and columns of the grid on which encodings of two dimensions are shown."""


def show_positions(model: nn.Module, asked: dict[str, Any]) -> bytes:
    """A packet: for each encoding N its `encodingN` (places, features), `similarityN`, and of rotary ones `anglesN`."""
    arrays: dict[str, tuple[Array, Precision]] = {}
    described = []
    if isinstance(model, ViT) and model.positions is not None:
        learned = model.positions.detach().float().cpu().numpy()[-math.prod(model.config.grid) :]
        return _learned(learned)
    for number, (name, encoding) in enumerate(find_positions(model).items()):
        places = _places(encoding, asked["length"])
        arrays[f"encoding{number}"] = encode_positions(encoding, places), "u2"
        arrays[f"similarity{number}"] = similarity(encoding, places), "u2"
        if isinstance(encoding, Rotary | Rotary2D):
            arrays[f"angles{number}"] = rotary_angles(encoding, places), "f4"
        described.append({"name": name, "kind": type(encoding).__name__, "places": len(places)})
    return pack({"encodings": described}, arrays)


def _learned(vectors: Array) -> bytes:
    """The packet of positions that an image model has learned, a vector a patch."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    described = [{"name": "positions", "kind": "Learned", "places": len(vectors)}]
    return pack({"encodings": described}, {"encoding0": (vectors, "u2"), "similarity0": (unit @ unit.T, "u2")})


def _places(encoding: nn.Module, length: int) -> Array:
    if isinstance(encoding, Rotary2D | Sinusoidal2D):
        return np.stack(np.divmod(np.arange(GRID * GRID), GRID), 1)
    if isinstance(encoding, Learned):
        length = min(length, len(next(encoding.parameters())))
    return np.arange(length)
