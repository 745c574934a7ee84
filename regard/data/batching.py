"""The plan of a window of an epoch: which sentences share a batch, in which order."""

from __future__ import annotations

import numpy as np

from regard.data.text.tokens import Ints


def plan_padded(source: Ints, target: Ints, tokens: int, rng: np.random.Generator) -> list[Ints]:
    """Batches of sentences of similar length: neither side has more than `tokens` places, padding included."""
    # The longer side counts, since both are padded; noise lets a sentence meet other company in every epoch.
    noise = rng.uniform(0, 1, size=(2, len(source)))
    order = np.lexsort((target + 2 * noise[0], np.floor(np.maximum(source, target) + noise[1])))
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        window = order[start : start + tokens]
        widest = np.maximum(np.maximum.accumulate(source[window]), np.maximum.accumulate(target[window]))
        fits = int(np.searchsorted(widest * np.arange(1, len(window) + 1), tokens, side="right"))
        batches.append(window[: max(1, fits)])
        start += max(1, fits)
    return [batches[i] for i in rng.permutation(len(batches))]


def plan_packed(
    source: Ints, target: Ints, tokens: int, rng: np.random.Generator, sentences: int | None = None
) -> list[Ints]:
    """Batches of sentences in random order, filled until either side would pass `tokens`, or there are `sentences`."""
    order = rng.permutation(len(source))
    totals = np.stack((np.cumsum(source[order]), np.cumsum(target[order])))
    batches: list[Ints] = []
    start, used = 0, np.zeros(2, np.int64)
    while start < len(order):
        end = min(int(np.searchsorted(total, used[side] + tokens, side="right")) for side, total in enumerate(totals))
        end = max(end if sentences is None else min(end, start + sentences), start + 1)
        batches.append(order[start:end])
        start, used = end, totals[:, end - 1]
    return batches
