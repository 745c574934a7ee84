"""The way back through a feed-forward: product and ReLU one after the other, or at once, with several tiles."""

from functools import partial

import torch
from torch import Tensor

from regard.ops import linear_backward as backward
from regard.ops.linear_backward import MatmulTile as Tile

from .bench import Bench, Row, Run

SHAPE = (25_344, 512, 2048)
"""Rows, width and hidden width: a step of Transformer-base."""
TILES = (
    Tile(128, 128, 64, 3, 4, 2),
    Tile(128, 256, 64, 3, 8, 1),
    Tile(128, 128, 64, 4, 8, 1),
    Tile(256, 128, 64, 3, 8, 1),
    Tile(128, 256, 32, 5, 8, 1),
    Tile(64, 256, 64, 3, 4, 1),
)
ALLOWED = 0.01
"""The largest error against float64, relative, of what is worth timing."""


def measure_feed_forward(bench: Bench) -> None:
    """From the gradient of a feed-forward's output to that of what its first product made, and of that one's bias."""
    rows, width, hidden = (40, 32, 64) if bench.toy else SHAPE
    grad, weight, seen = (
        torch.randn(*sides, device=bench.device).to(torch.float16 if bench.toy else bench.dtype)
        for sides in ((rows, width), (width, hidden), (rows, hidden))
    )
    seen.relu_()
    exact = torch.where(seen > 0, grad.double() @ weight.double(), 0.0)
    ways: dict[str, Run] = {"two passes": partial(_in_two_passes, grad, weight, seen)}
    tiles = (Tile(16, 32, 16, 2, 4, 1),) if bench.toy else TILES
    ways |= {f"ours {tuple(tile)}": partial(_with_tile, tile, grad, weight, seen) for tile in tiles}
    for name, run in ways.items():
        bench.attempt("feed", name, partial(_check_and_time, bench, run, exact))
    bench.attempt("feed", "the product alone", partial(bench.times, "op", partial(torch.mm, grad, weight)))


def _in_two_passes(grad: Tensor, weight: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    return backward.activation_backward(grad @ weight, seen, "relu")


def _with_tile(tile: Tile, grad: Tensor, weight: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    usual, backward.MATMUL_TILE = backward.MATMUL_TILE, tile
    try:
        return backward.matmul_relu_backward_kernel(grad, weight, seen)
    finally:
        backward.MATMUL_TILE = usual


def _check_and_time(bench: Bench, run: Run, exact: Tensor) -> Row:
    passed, total = run()  # type: ignore[misc]
    found = {"error": _distance(passed, exact), "error of sums": _distance(total, exact.sum(0))}
    if max(found.values()) > ALLOWED:
        raise AssertionError(f"this is wrong: {found}")
    return found | bench.times("op", run)


def _distance(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()
