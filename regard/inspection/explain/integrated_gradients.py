"""Integrated gradients: attribute a function's change along a straight path to the components of its input.

Shapes: N components (tokens), W width, P points of the path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

ScoreFunction = Callable[[Tensor], Tensor]
"""Maps inputs, (P, N, W), to one value each, (P,)."""
NODES, WEIGHTS = (array.tolist() for array in np.polynomial.legendre.leggauss(4))
FIRST_SEGMENTS = 4
MAX_POINTS = 4096
TOKENS_PER_PASS = 2048
SMALLEST_CHANGE = 1e-3
"""Changes of the score below this are treated as this change, because their share of an error is not meaningful."""


@dataclass(frozen=True)
class PathAttribution:
    """Attributions along the path from a baseline to an input.

    Attributes:
        attributions: Attribution of every feature, (N, W).
        value: Score of the input.
        baseline: Score of the baseline.
        points: Number of points at which the gradient was computed.
    """

    attributions: Tensor
    value: float
    baseline: float
    points: int

    @property
    def completeness_error(self) -> float:
        """|sum of the attributions − change of the score|, relative to the change of the score."""
        change = self.value - self.baseline
        error = abs(float(self.attributions.double().sum()) - change)
        return error / max(abs(change), SMALLEST_CHANGE)


@dataclass
class _Segment:
    """A part of the path with its attributions, and the difference between their sum and the change of the score."""

    start: float
    stop: float
    attributions: Tensor
    error: float


def integrate_gradients(
    score: ScoreFunction, x: Tensor, baseline: Tensor, tolerance: float = 0.005, max_points: int = MAX_POINTS
) -> PathAttribution:
    """Attribute score(x) − score(baseline) to the features of x by integrated gradients (Sundararajan et al. 2017).

    The path is divided into segments with four points of Gauss-Legendre quadrature each. The attributions of a segment
    must sum to the change of the score between its ends, so the error of every segment is known, and segments with a
    large error are halved until the sum of all errors is at most `tolerance` times the change along the whole path.

    Args:
        score: Function of the input; every row of its result depends on the same row of its argument only.
        x: Input, (N, W).
        baseline: Input without information, (N, W).
        tolerance: Largest sum of the errors of all segments, relative to the change of the score.
        max_points: Largest number of gradients; the result is less accurate if they do not suffice.
    """
    ends = np.linspace(0, 1, FIRST_SEGMENTS + 1).tolist()
    values = dict(zip(ends, evaluate(score, _interpolate(x, baseline, ends)), strict=True))
    allowed = tolerance * max(abs(values[1.0] - values[0.0]), SMALLEST_CHANGE)
    segments = _segments(score, x, baseline, list(pairwise(ends)), values)
    points = len(NODES) * len(segments)
    while sum(segment.error for segment in segments) > allowed and points < max_points:
        inaccurate = [segment for segment in segments if segment.error > allowed / (2 * len(segments))]
        middles = [(segment.start + segment.stop) / 2 for segment in inaccurate]
        values |= dict(zip(middles, evaluate(score, _interpolate(x, baseline, middles)), strict=True))
        pairs = zip(inaccurate, middles, strict=True)
        halves = [half for segment, middle in pairs for half in ((segment.start, middle), (middle, segment.stop))]
        kept = [segment for segment in segments if segment.error <= allowed / (2 * len(segments))]
        segments = kept + _segments(score, x, baseline, halves, values)
        points += len(NODES) * len(halves)
    total = torch.stack([segment.attributions for segment in segments]).sum(0)
    return PathAttribution(total, values[1.0], values[0.0], points)


def _segments(
    score: ScoreFunction, x: Tensor, baseline: Tensor, spans: list[tuple[float, float]], values: dict[float, float]
) -> list[_Segment]:
    """Integrate the gradient over parts of the path."""
    at = [(start + stop) / 2 + (stop - start) / 2 * node for start, stop in spans for node in NODES]
    gradients_PNW = _gradients(score, x, baseline, at).view(len(spans), len(NODES), *x.shape)
    weights = torch.tensor(WEIGHTS).to(gradients_PNW)
    segments = []
    for (start, stop), gradients in zip(spans, gradients_PNW, strict=True):
        mean = (gradients * weights[:, None, None]).sum(0) / 2
        attributions = (x - baseline).double() * mean * (stop - start)
        error = abs(float(attributions.sum()) - (values[stop] - values[start]))
        segments.append(_Segment(start, stop, attributions, error))
    return segments


def evaluate(score: ScoreFunction, inputs_PNW: Tensor) -> list[float]:
    """Return the scores of inputs.

    They are computed in grad mode, in which all layers compute what the gradients refer to: a model with int8 weights
    uses these for inference only.
    """
    with torch.enable_grad():
        parts = [score(part).detach() for part in torch.split(inputs_PNW, rows_per_pass(inputs_PNW.shape[1]))]
    return torch.cat(parts).double().tolist()


def _gradients(score: ScoreFunction, x: Tensor, baseline: Tensor, at: list[float]) -> Tensor:
    """Return the gradient of the score at points of the path, (P, N, W)."""
    parts = []
    for inputs in torch.split(_interpolate(x, baseline, at), rows_per_pass(len(x))):
        with torch.enable_grad():
            point = inputs.detach().requires_grad_()
            parts.append(torch.autograd.grad(score(point).sum(), point)[0].double())
    return torch.cat(parts)


def _interpolate(x: Tensor, baseline: Tensor, at: list[float]) -> Tensor:
    return baseline + torch.tensor(at, dtype=x.dtype, device=x.device)[:, None, None] * (x - baseline)


def rows_per_pass(tokens: int) -> int:
    """Return the number of inputs of this length that are computed at once."""
    return max(1, TOKENS_PER_PASS // max(1, tokens))
