"""View of the position encodings of a model."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.attention.multi_head import Rotary, Rotary2D
from regard.inspection.positions import encode_positions, find_positions, rotary_angles, similarity
from regard.layers import Diagonal, Learned, Sinusoidal, Sinusoidal2D
from regard.models.vit import ViT
from regard.serving.page_data.packet import Array, Arrays, pack

GRID_SIZE = 8
"""Rows and columns of the grid on which two-dimensional encodings are shown."""
COMPARED_WIDTH = 64
"""Features of the encodings that are compared, and their number of positions."""


def view_positions(model: nn.Module, request: dict[str, Any]) -> bytes:
    """Return a packet with the position encodings of a model.

    For encoding N, `encodingN` (positions, features) contains the encoding, `similarityN` (positions, positions) the
    cosine similarities, and `anglesN` (positions, feature pairs) the angles of a rotary encoding. With `compare`, the
    encodings are not those of the model but one of each kind.
    """
    if request.get("compare"):
        return _pack_encodings(_encodings_of_each_kind(), COMPARED_WIDTH)
    if isinstance(model, ViT) and model.positions is not None:
        return _view_patch_positions(model.positions.detach().float().cpu().numpy()[-math.prod(model.config.grid) :])
    return _pack_encodings(find_positions(model), request["length"])


def _pack_encodings(found: dict[str, nn.Module], length: int) -> bytes:
    arrays: Arrays = {}
    encodings = []
    for number, (name, encoding) in enumerate(found.items()):
        positions = _choose_positions(encoding, length)
        arrays[f"encoding{number}"] = encode_positions(encoding, positions), "u2"
        arrays[f"similarity{number}"] = similarity(encoding, positions), "u2"
        if isinstance(encoding, Rotary | Rotary2D):
            arrays[f"angles{number}"] = rotary_angles(encoding, positions), "f4"
        encodings.append({"name": name, "kind": type(encoding).__name__})
    return pack({"encodings": encodings}, arrays)


def _encodings_of_each_kind() -> dict[str, nn.Module]:
    """Return one untrained encoding of each kind by name. Learned positions are random."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learned = Learned(COMPARED_WIDTH, COMPARED_WIDTH)
    return {
        "sinusoidal": Sinusoidal(COMPARED_WIDTH),
        "learned": learned,
        "rotary": Rotary(COMPARED_WIDTH),
        "diagonal": Diagonal(COMPARED_WIDTH),
        "diagonal-scaled": Diagonal(COMPARED_WIDTH, scaled=True),
    }


def _view_patch_positions(vectors: Array) -> bytes:
    """Return the packet of learned position embeddings of patches, (patches, features)."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    encodings = [{"name": "positions", "kind": "Learned"}]
    return pack({"encodings": encodings}, {"encoding0": (vectors, "u2"), "similarity0": (unit @ unit.T, "u2")})


def _choose_positions(encoding: nn.Module, length: int) -> Array:
    """Return the positions to show, (length,), or (rows · columns, 2) for a two-dimensional encoding."""
    if isinstance(encoding, Rotary2D | Sinusoidal2D):
        return np.stack(np.divmod(np.arange(GRID_SIZE * GRID_SIZE), GRID_SIZE), 1)
    if isinstance(encoding, Learned):
        length = min(length, len(next(encoding.parameters())))
    return np.arange(length)
