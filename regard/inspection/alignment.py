"""Which target token comes from which source token, and which head knows it best. Arrays in, arrays out.

Shapes: H heads, T target tokens, S source tokens. A link is (target place, source place).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Link = tuple[int, ...]
Links = frozenset[Link]
Floats = npt.NDArray[np.floating]


class Example(NamedTuple):
    """One sentence: what each attention of the model looked at, (H, T, S) by name, and what it should have."""

    maps: Mapping[str, npt.ArrayLike]
    links: Collection[Link]


class RankedHead(NamedTuple):
    """How well one head aligns."""

    name: str
    head: int
    error: float


def strongest_links(weights: npt.ArrayLike, least: float = 0.0) -> Links:
    """The links that a map (T, S) says: each target token with the source token it looks at most.

    Args:
        weights: (T, S).
        least: a target token whose largest weight is not above this is linked to nothing.
    """
    given = _map(weights)
    best = given.argmax(-1)
    return frozenset((t, int(s)) for t, s in enumerate(best) if given[t, s] > least)


def alignment_error_rate(
    found: Collection[Link], sure: Collection[Link], possible: Collection[Link] | None = None
) -> float:
    """1 − (|found ∩ sure| + |found ∩ possible|) / (|found| + |sure|): 0 is perfect, 1 is nothing right.

    Possible links may be found but need not; sure ones are possible, too.
    """
    found, sure = set(found), set(sure)
    allowed = sure | set(possible or ())
    total = len(found) + len(sure)
    return 1 - (len(found & sure) + len(found & allowed)) / total if total else 0.0


def agreement(one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    """What share of their attention two maps, (…, T, S) each, give to the same places: 1 is all, 0 is none."""
    a, b = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    shared: Floats = np.minimum(a, b).sum(-1).mean(-1)
    return shared


def rank_heads(examples: Sequence[Example]) -> list[RankedHead]:
    """All heads of all attentions, the one that aligns best first, by the error rate over all examples' links."""
    if not examples:
        raise ValueError("no examples, so no head can be judged")
    results = []
    for name, first in examples[0].maps.items():
        for head in range(len(np.asarray(first))):
            found: set[Link] = set()
            wanted: set[Link] = set()
            for number, example in enumerate(examples):
                found |= {(number, *link) for link in strongest_links(np.asarray(example.maps[name])[head])}
                wanted |= {(number, *link) for link in example.links}
            results.append(RankedHead(name, head, alignment_error_rate(found, wanted)))
    return sorted(results, key=lambda judged: judged.error)


def rank_by_agreement(maps: Mapping[str, npt.ArrayLike], reference: npt.ArrayLike | None = None) -> list[RankedHead]:
    """All heads, the one that agrees best with a reference alignment first; `error` is 1 − agreement.

    Args:
        maps: (H, T, S) by name.
        reference: (T, S); the mean over all of the maps' heads unless given.
    """
    if reference is None:
        reference = np.concatenate([np.asarray(one, dtype=float) for one in maps.values()]).mean(0)
    results = [
        RankedHead(name, head, float(1 - agreement(np.asarray(heads)[head], reference)))
        for name, heads in maps.items()
        for head in range(len(np.asarray(heads)))
    ]
    return sorted(results, key=lambda judged: judged.error)


def _map(weights: npt.ArrayLike) -> Floats:
    given = np.asarray(weights, dtype=float)
    if given.ndim != 2 or not given.shape[1]:
        raise ValueError(f"an alignment is read off a map of (target tokens, source tokens), not {given.shape}")
    return given
