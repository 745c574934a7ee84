"""Word alignment from attention weights: which source token each target token attends to, and which head aligns best.

Shapes: H heads, T target tokens, S source tokens. A link is a pair (target position, source position).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Link = tuple[int, ...]
Links = frozenset[Link]
Floats = npt.NDArray[np.floating]


class Example(NamedTuple):
    """Attention maps of one sentence, (H, T, S) by attention module, and its reference links."""

    maps: Mapping[str, npt.ArrayLike]
    links: Collection[Link]


class RankedHead(NamedTuple):
    """Alignment error of one head of an attention module."""

    name: str
    head: int
    error: float


def strongest_links(weights: npt.ArrayLike, least: float = 0.0) -> Links:
    """Link each target token to the source token with the largest weight.

    Args:
        weights: (T, S).
        least: Target tokens whose largest weight does not exceed this are not linked.
    """
    weights_TS = np.asarray(weights, dtype=float)
    if weights_TS.ndim != 2 or not weights_TS.shape[1]:
        raise ValueError(f"an alignment needs weights (target tokens, source tokens), not {weights_TS.shape}")
    best = weights_TS.argmax(-1)
    return frozenset((t, int(s)) for t, s in enumerate(best) if weights_TS[t, s] > least)


def alignment_error_rate(
    found: Collection[Link], sure: Collection[Link], possible: Collection[Link] | None = None
) -> float:
    """Return 1 − (|found ∩ sure| + |found ∩ possible|) / (|found| + |sure|): 0 is perfect, 1 the worst.

    Possible links are neither required nor counted as errors; sure links are always possible.
    """
    found, sure = set(found), set(sure)
    allowed = sure | set(possible or ())
    total = len(found) + len(sure)
    return 1 - (len(found & sure) + len(found & allowed)) / total if total else 0.0


def agreement(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """Return the overlap of two maps, (…, T, S) each, averaged over queries: 1 is identical, 0 disjoint."""
    shared: Floats = np.minimum(np.asarray(a, dtype=float), np.asarray(b, dtype=float)).sum(-1).mean(-1)
    return shared


def rank_heads(examples: Sequence[Example]) -> list[RankedHead]:
    """Return all heads, sorted by their alignment error rate over the links of all examples."""
    if not examples:
        raise ValueError("ranking heads needs at least one example")
    ranked = []
    for name, first in examples[0].maps.items():
        for head in range(len(np.asarray(first))):
            found: set[Link] = set()
            reference: set[Link] = set()
            for index, example in enumerate(examples):
                found |= {(index, *link) for link in strongest_links(np.asarray(example.maps[name])[head])}
                reference |= {(index, *link) for link in example.links}
            ranked.append(RankedHead(name, head, alignment_error_rate(found, reference)))
    return sorted(ranked, key=lambda head: head.error)


def rank_by_agreement(maps: Mapping[str, npt.ArrayLike], reference: npt.ArrayLike | None = None) -> list[RankedHead]:
    """Return all heads, sorted by their agreement with a reference map; `error` is 1 − agreement.

    Args:
        maps: (H, T, S) by attention module.
        reference: (T, S). Defaults to the mean over all heads of all modules.
    """
    if reference is None:
        reference = np.concatenate([np.asarray(heads, dtype=float) for heads in maps.values()]).mean(0)
    ranked = [
        RankedHead(name, head, float(1 - agreement(weights, reference)))
        for name, heads in maps.items()
        for head, weights in enumerate(np.asarray(heads))
    ]
    return sorted(ranked, key=lambda head: head.error)
