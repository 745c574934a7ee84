"""Statistics of attention maps: entropy, distance, rollout and the map of one token over an image.

Shapes: B batch, H heads, T queries, S keys. The functions take and return NumPy arrays.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.inspection.probe import AttentionRecord

Floats = npt.NDArray[np.floating]


def entropy(weights: npt.ArrayLike) -> Floats:
    """Return the entropy of the attention weights in bits, averaged over queries: (…, T, S) to (…,).

    0 means that every query attends to a single key, log2(S) that it attends to all keys equally. Weights are
    normalised to sum to 1 per query and must not be negative. Fully masked queries, such as padding, are excluded.
    """
    shares, counted = _normalise(weights)
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return _masked_mean(-(shares * logs).sum(-1), counted)


def distance(weights: npt.ArrayLike, queries: npt.ArrayLike | None = None, keys: npt.ArrayLike | None = None) -> Floats:
    """Return the mean distance between a query and the keys it attends to: (…, T, S) to (…,).

    Args:
        weights: (…, T, S), not negative.
        queries: Position of each query, (T,), or (T, 2) on a grid, where distances are Euclidean. Defaults to 0 … T-1.
        keys: Position of each key, likewise.
    """
    shares, counted = _normalise(weights)
    T, S = shares.shape[-2:]
    query_positions = np.arange(T) if queries is None else np.asarray(queries)
    key_positions = np.arange(S) if keys is None else np.asarray(keys)
    if len(query_positions) != T or len(key_positions) != S or query_positions.shape[1:] != key_positions.shape[1:]:
        raise ValueError(
            f"weights of {T} × {S} do not fit positions of shape {query_positions.shape} and {key_positions.shape}"
        )
    offsets = (query_positions[:, None] - key_positions[None]).astype(float)
    lengths = np.abs(offsets) if offsets.ndim == 2 else np.sqrt((offsets**2).sum(-1))
    return _masked_mean((shares * lengths).sum(-1), counted)


def layer_weights(records: Mapping[str, AttentionRecord], stack: str = "encoder") -> list[Floats]:
    """Return the self-attention weights of a stack's layers in order, (B, H, T, T) each.

    Raises:
        KeyError: No self-attention of this stack was recorded.
    """
    pattern = re.compile(rf"{re.escape(stack)}\.(\d+)\.attention")
    layers = sorted(int(found[1]) for name in records if (found := pattern.fullmatch(name)))
    if not layers:
        raise KeyError(f"no attention of {stack!r} was recorded, only {', '.join(records) or 'nothing'}")
    return [records[f"{stack}.{layer}.attention"].weights.float().cpu().numpy() for layer in layers]


def rollout(layers: Sequence[Floats], heads: Literal["mean", "max"] = "mean", residual: float = 0.5) -> Floats:
    """Return attention rollout (Abnar and Zuidema 2020): the share of each input token in each output token, (B, T, T).

    Each layer is modelled as a mixture of the identity (its residual connection) and its attention weights; the
    matrices of all layers are multiplied. Everything else that a layer computes is ignored, so this is an estimate.

    Args:
        layers: Attention weights of each layer, first layer first, (B, H, T, T).
        heads: Whether heads are combined by their mean or by their maximum.
        residual: Share of the identity.
    """
    if not layers:
        raise ValueError("a rollout needs the weights of at least one layer")
    B, _, T, S = layers[0].shape
    if T != S:
        raise ValueError(f"a rollout needs self-attention; these weights have {T} queries and {S} keys")
    identity = np.eye(T)
    product = np.broadcast_to(identity, (B, T, T))
    for weights in layers:
        combined = weights.mean(1) if heads == "mean" else weights.max(1)
        total = combined.sum(-1, keepdims=True)
        # Fully masked queries keep their own input.
        mixing = np.divide(combined, total, out=np.broadcast_to(identity, combined.shape).copy(), where=total > 0)
        product = (residual * identity + (1 - residual) * mixing) @ product
    return product


def patch_map(
    weights: Floats, grid: tuple[int, int], token: int | tuple[int, int] = 0, head: int | None = None
) -> Floats:
    """Return the attention of one token to every patch of an image, (rows, columns).

    Args:
        weights: Weights of one image, (H, T, S), or (T, S), such as a rollout.
        grid: Rows and columns of patches. Tokens before the patches, such as a class token, are ignored.
        token: Index of the query (0 is the class token if there is one), or row and column of a patch.
        head: Index of the head. Defaults to the mean over heads.
    """
    rows, columns = grid
    prefix = weights.shape[-1] - rows * columns
    if prefix < 0:
        raise ValueError(f"{weights.shape[-1]} keys are fewer than the {rows} × {columns} patches of the grid")
    if weights.ndim == 3:
        weights = weights.mean(0) if head is None else weights[head]
    if isinstance(token, tuple):
        row, column = token
        if not (0 <= row < rows and 0 <= column < columns):
            raise ValueError(f"patch {row}, {column} is outside the grid of {rows} × {columns}")
        token = prefix + row * columns + column
    return weights[token, prefix:].reshape(rows, columns)


def _normalise(weights: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the weights divided by their sum per query, and which queries have a positive sum."""
    given = np.asarray(weights, dtype=float)
    if given.ndim < 2:
        raise ValueError(f"weights must have shape (…, queries, keys), not {given.shape}")
    if (given < 0).any():
        raise ValueError("some weights are negative, as in linear attention, so they cannot be normalised to shares")
    total = given.sum(-1, keepdims=True)
    return np.divide(given, total, out=np.zeros_like(given), where=total > 0), total[..., 0] > 0


def _masked_mean(values: Floats, counted: npt.NDArray[np.bool_]) -> Floats:
    """Return the mean over the counted entries of the last dimension, 0 if there are none."""
    result: Floats = (values * counted).sum(-1) / np.maximum(counted.sum(-1), 1)
    return result
