"""How a head looks: at few places or at many, near or far. Arrays in, arrays out.

Shapes: H heads, T queries, S keys; any dimensions before T stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]


def entropy(weights: npt.ArrayLike) -> Floats:
    """How widely each head looks, (…, T, S) to (…,): the entropy of a query's weights in bits, its mean over queries.

    0 is a look at a single key, log2(S) an even look at all. Queries that look at nothing, such as padding, do not
    count. Weights are taken as shares of their sum, so that they need not add up to one; they must not be negative.
    """
    shares, counted = _shares(weights)
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return _mean(-(shares * logs).sum(-1), counted)


def distance(weights: npt.ArrayLike, queries: npt.ArrayLike | None = None, keys: npt.ArrayLike | None = None) -> Floats:
    """How far each head looks, (…, T, S) to (…,): the mean distance from a query's place to what it looks at.

    Args:
        weights: (…, T, S), not negative.
        queries: the place of each query; 0, 1, 2 … unless given. Places on a grid, (T, 2), have their distance in a
            straight line.
        keys: the place of each key, likewise.
    """
    shares, counted = _shares(weights)
    T, S = shares.shape[-2:]
    here = np.arange(T) if queries is None else np.asarray(queries)
    there = np.arange(S) if keys is None else np.asarray(keys)
    if len(here) != T or len(there) != S or here.shape[1:] != there.shape[1:]:
        raise ValueError(f"weights of {T} × {S} do not fit places of {here.shape} and {there.shape}")
    apart = (here[:, None] - there[None]).astype(float)
    lengths = np.abs(apart) if apart.ndim == 2 else np.sqrt((apart**2).sum(-1))
    return _mean((shares * lengths).sum(-1), counted)


def _shares(weights: npt.ArrayLike) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The weights of each query as shares of their sum, and which queries have any."""
    given = np.asarray(weights, dtype=float)
    if given.ndim < 2:
        raise ValueError(f"weights are at least (queries, keys), not {given.shape}")
    if (given < 0).any():
        raise ValueError("some weights are negative, as those of plain linear attention may be: they are no shares")
    total = given.sum(-1, keepdims=True)
    return np.divide(given, total, out=np.zeros_like(given), where=total > 0), total[..., 0] > 0


def _mean(values: Floats, counted: npt.NDArray[np.bool_]) -> Floats:
    """The mean over the last dimension of what counts; 0 where nothing does."""
    number = counted.sum(-1)
    result: Floats = (values * counted).sum(-1) / np.maximum(number, 1)
    return result
