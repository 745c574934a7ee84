"""What attention weights say about whole models and about images: arrays in, arrays out.

Shapes: B batch, H heads, T queries, S keys, N tokens of a grid, n windows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.inspection.probe import Seen
from regard.models.swin import Windows

Floats = npt.NDArray[np.floating]


def layers_of(seen: Mapping[str, Seen], stack: str = "encoder") -> list[Floats]:
    """The weights of a stack's self-attentions, first layer first, (B, H, T, T) each, from what `probe` saw.

    Raises:
        KeyError: no layer of such a stack was seen.
    """
    numbers = sorted(
        int(found[1]) for name in seen if (found := re.fullmatch(rf"{re.escape(stack)}\.(\d+)\.attention", name))
    )
    if not numbers:
        raise KeyError(f"no attention of {stack!r} was seen, only {', '.join(seen) or 'nothing'}")
    return [seen[f"{stack}.{number}.attention"].weights.float().cpu().numpy() for number in numbers]


def rollout(layers: Sequence[Floats], heads: Literal["mean", "max"] = "mean", residual: float = 0.5) -> Floats:
    """How much each output token owes to each input token, over all layers (Abnar and Zuidema 2020), (B, T, T).

    Every layer passes on a share of its input unchanged, by its residual connection, and mixes the rest by its weights;
    the layers' mixtures are multiplied. It is an estimate: what the layers compute beside attention is left out.

    Args:
        layers: the weights of each layer, first layer first, (B, H, T, T).
        heads: the mean over heads, or the strongest of them at every place.
        residual: the share that passes unchanged.
    """
    if not layers:
        raise ValueError("a rollout needs the weights of at least one layer")
    B, _, T, S = layers[0].shape
    if T != S:
        raise ValueError(f"a rollout is for self-attention; these weights are of {T} queries and {S} keys")
    unchanged = np.eye(T)
    owed = np.broadcast_to(unchanged, (B, T, T))
    for weights in layers:
        joined = weights.mean(1) if heads == "mean" else weights.max(1)
        total = joined.sum(-1, keepdims=True)
        mixed = np.divide(joined, total, out=np.broadcast_to(unchanged, joined.shape).copy(), where=total > 0)
        owed = (residual * unchanged + (1 - residual) * mixed) @ owed
    return owed


def patch_map(
    weights: Floats, grid: tuple[int, int], token: int | tuple[int, int] = 0, head: int | None = None
) -> Floats:
    """What one token gave to every patch of an image, as a (rows, columns) grid.

    Args:
        weights: of one image, (H, T, S), or (T, S) such as a row of a rollout.
        grid: rows and columns of patches; further tokens before them, such as a class token, are left out.
        token: the number of the query, 0 being the class token where there is one; or the (row, column) of a patch.
        head: the mean of all unless given.
    """
    rows, columns = grid
    leading = weights.shape[-1] - rows * columns
    if leading < 0:
        raise ValueError(f"{weights.shape[-1]} keys are fewer than the {rows} × {columns} patches of the grid")
    one = weights if weights.ndim == 2 else weights.mean(0) if head is None else weights[head]
    if isinstance(token, tuple):
        row, column = token
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch {row}, {column} is outside the grid of {rows} × {columns}")
        token = leading + row * columns + column
    return one[token, leading:].reshape(rows, columns)


def put_back(weights: Floats, windows: Windows) -> Floats:
    """Weights within windows, put back on the grid that these were cut from: (B · n, H, T, T) to (B, H, N, N).

    Tokens of different windows gave each other nothing. `Swin.windows` says how each attention cuts up an image.
    """
    n = len(windows.tokens)
    home, place = _homes(windows)
    if len(weights) % n:
        raise ValueError(f"{len(weights)} windows are no whole number of images of {n} windows")
    by_image = weights.reshape(-1, n, *weights.shape[1:])
    whole = np.zeros((len(by_image), weights.shape[1], len(home), len(home)), weights.dtype)
    for window in range(n):
        tokens = np.flatnonzero(home == window)
        within = place[tokens]
        whole[:, :, tokens[:, None], tokens] = by_image[:, window][:, :, within[:, None], within]
    return whole


def given_by(token: int, weights: Floats, windows: Windows) -> Floats:
    """What one token of a grid gave to every token of it, (H, N), by weights within windows of one image, (n, H, T, T).

    A row of `put_back`, without the square of the grid in memory.
    """
    home, place = _homes(windows)
    beside = home == home[token]
    whole = np.zeros((weights.shape[1], len(home)), weights.dtype)
    whole[:, beside] = weights[home[token], :, place[token]][:, place[beside]]
    return whole


def received(weights: Floats, windows: Windows) -> Floats:
    """How much every token of a grid got from those of its window together, (H, N), by weights (n, H, T, T).

    1 is what a token gets where all are looked at alike.
    """
    n, T = windows.tokens.shape
    places = windows.places.cpu().numpy()
    asks = np.zeros(n * T, weights.dtype)
    asks[places] = 1  # what the grid lacks to whole windows looks too, but at nobody's behest
    got: Floats = np.einsum("nhts,nt->hns", weights, asks.reshape(n, T)).reshape(weights.shape[1], -1)
    return got[:, places]


def seen_from(token: int, windows: Windows, columns: int) -> tuple[int, int, int, int]:
    """The part of a grid of so many columns that a token may look at: its first row and column, and its last."""
    home, place = _homes(windows)
    may = np.ones(windows.tokens.shape[1], bool)
    if windows.may is not None:
        may = windows.may[home[token], place[token]].cpu().numpy()
    tokens = np.flatnonzero((home == home[token]) & may[place])
    rows, across = np.divmod(tokens, columns)
    return int(rows.min()), int(across.min()), int(rows.max()), int(across.max())


def _homes(windows: Windows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The window of every token, and its place there."""
    home, place = np.divmod(windows.places.cpu().numpy(), windows.tokens.shape[1])
    return home, place
