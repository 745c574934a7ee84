"""Position encodings: their vectors, the similarity between positions, and rotary angles.

Shapes: N positions.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.attention.multi_head import Rotary, Rotary2D
from regard.layers import Diagonal, Learned, Sinusoidal, Sinusoidal2D

ENCODINGS = (Sinusoidal, Sinusoidal2D, Learned, Diagonal, Rotary, Rotary2D)
Floats = npt.NDArray[np.floating]


def find_positions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the position encodings of a model by name.

    Identical encodings without parameters are returned once: rotary ones by the first name, others by all names, such
    as "source_embedding.positions, target_embedding.positions".
    """
    axes = {id(module.axis) for module in model.modules() if isinstance(module, Rotary2D | Sinusoidal2D)}
    names: dict[str, list[str]] = {}
    encodings: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, ENCODINGS) and id(module) not in axes:
            key = name if isinstance(module, Learned) else repr(module)
            names.setdefault(key, []).append(name)
            encodings.setdefault(key, module)
    return {
        names[key][0] if isinstance(module, Rotary | Rotary2D) else ", ".join(names[key]): module
        for key, module in encodings.items()
    }


@torch.no_grad()
def encode_positions(encoding: nn.Module, positions: npt.ArrayLike | int) -> Floats:
    """Return the encoding of each position, (N, features).

    Rotary encodings add no vector; their result is the rotated vector of ones.

    Args:
        positions: (N,), or (N, 2) on a grid; an int means 0 … positions - 1.
    """
    indices = torch.as_tensor(np.arange(positions) if isinstance(positions, int) else np.asarray(positions)).long()
    device = next(iter([*encoding.parameters(), *encoding.buffers()]), torch.empty(0)).device
    indices = indices.to(device)
    if isinstance(encoding, Rotary | Rotary2D):
        width = encoding.head_width if isinstance(encoding, Rotary) else 2 * encoding.axis.head_width
        rotated: Tensor = encoding(torch.ones(1, 1, len(indices), width, device=device), indices[None])
        return _to_array(rotated[0, 0])
    length = int(indices.max()) + 1 if len(indices) else 0
    vectors: Tensor = encoding(indices[None], length)
    return _to_array(vectors[0])


def similarity(encoding: nn.Module, positions: npt.ArrayLike | int) -> Floats:
    """Return the cosine similarity between the encodings of all pairs of positions, (N, N)."""
    vectors = encode_positions(encoding, positions)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    cosines: Floats = unit @ unit.T
    return cosines


def rotary_angles(rotary: Rotary | Rotary2D, positions: npt.ArrayLike | int) -> Floats:
    """Return the rotation angle of each pair of features at each position in radians, (N, pairs).

    On a grid, with (N, 2) positions, the pairs rotated by the row come first.
    """
    indices = np.arange(positions) if isinstance(positions, int) else np.asarray(positions)
    axis = rotary if isinstance(rotary, Rotary) else rotary.axis
    frequency = _to_array(axis.frequency)
    if isinstance(rotary, Rotary):
        return np.outer(indices, frequency)
    return np.concatenate([np.outer(indices[:, 0], frequency), np.outer(indices[:, 1], frequency)], 1)


def _to_array(x: Tensor) -> Floats:
    array: Floats = x.double().cpu().numpy()
    return array
