"""What position encodings say: the encoding itself, how alike two positions are, and how far rotary ones turn."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from regard.attention.positions import Diagonal, Learned, Rotary, Rotary2D, Sinusoidal, Sinusoidal2D

ENCODINGS = (Sinusoidal, Sinusoidal2D, Learned, Diagonal, Rotary, Rotary2D)
Floats = npt.NDArray[np.floating]


def find_positions(model: nn.Module) -> dict[str, nn.Module]:
    """The position encodings of a model by name; of those that all layers of a stack have alike, the first."""
    found: dict[str, nn.Module] = {}
    known: set[tuple[object, ...]] = set()
    axes = {id(module.axis) for module in model.modules() if isinstance(module, Rotary2D)}  # parts of one on a grid
    for name, module in model.named_modules():
        if not isinstance(module, ENCODINGS) or id(module) in axes:
            continue
        axis = module.axis if isinstance(module, Rotary2D) else module
        rotary = isinstance(axis, Rotary)
        same = (type(module), axis.extra_repr(), str(axis.head_width)) if rotary else (name,)
        if same not in known:
            known.add(same)
            found[name] = module
    return found


@torch.no_grad()
def encode_positions(encoding: nn.Module, positions: npt.ArrayLike | int) -> Floats:
    """What the encoding makes of each position, (N, features).

    Of a rotary one, which adds nothing: where it turns the vector of ones to.

    Args:
        encoding: any of regard's.
        positions: (N,), or (N, 2) for a grid; a number stands for 0, 1, 2 … up to it.

    Raises:
        UserError: the encoding ends before the last position.
    """
    places = torch.as_tensor(np.arange(positions) if isinstance(positions, int) else np.asarray(positions)).long()
    device = next(iter([*encoding.parameters(), *encoding.buffers()]), torch.empty(0)).device
    places = places.to(device)
    if isinstance(encoding, Rotary | Rotary2D):
        axes = 1 if isinstance(encoding, Rotary) else 2
        width = (encoding if isinstance(encoding, Rotary) else encoding.axis).head_width * axes
        turned: Tensor = encoding(torch.ones(1, 1, len(places), width, device=device), places[None])
        return _array(turned[0, 0])
    longest = int(places.max()) + 1 if len(places) else 0
    added: Tensor = encoding(places[None], longest)
    return _array(added[0])


def similarity(encoding: nn.Module, positions: npt.ArrayLike | int) -> Floats:
    """How alike every two positions are, (N, N): the cosine between their encodings, 1 on the diagonal.

    Raises:
        UserError: the encoding ends before the last position.
    """
    vectors = encode_positions(encoding, positions)
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    alike: Floats = unit @ unit.T
    return alike


def rotary_angles(rotary: Rotary | Rotary2D, positions: npt.ArrayLike | int) -> Floats:
    """By what angle, in radians, each pair of features is turned at each position, (N, pairs).

    On a grid, (N, 2) positions, the pairs that turn with the row come first.
    """
    places = np.arange(positions) if isinstance(positions, int) else np.asarray(positions)
    axis = rotary if isinstance(rotary, Rotary) else rotary.axis
    frequency = _array(axis.frequency)
    if isinstance(rotary, Rotary):
        return np.outer(places, frequency)
    return np.concatenate([np.outer(places[:, 0], frequency), np.outer(places[:, 1], frequency)], 1)


def _array(x: Tensor) -> Floats:
    made: Floats = x.double().cpu().numpy()
    return made
