"""The way back through a feed-forward: product and activation one after the other, or at once, with several tiles."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.sums import through
from regard.sums.through import Activation, Tile

from .bench import Bench, Row, Run

SHAPES: dict[Activation, tuple[int, int, int]] = {"relu": (25_344, 512, 2048), "gelu": (128 * 197, 768, 3072)}
"""Rows, width and hidden width: a step of Transformer-base, and of ViT-B/16 with 128 images."""
TILES: dict[Activation, tuple[Tile, ...]] = {
    "relu": (
        Tile(128, 256, 64, 3, 8, 1),
        Tile(128, 128, 64, 3, 4, 2),
        Tile(128, 128, 64, 4, 8, 1),
        Tile(256, 128, 64, 3, 8, 1),
        Tile(128, 256, 32, 5, 8, 1),
        Tile(64, 256, 64, 3, 4, 1),
    ),
    "gelu": (
        Tile(128, 128, 64, 3, 4, 2),
        Tile(128, 256, 64, 3, 8, 1),
        Tile(128, 128, 64, 3, 8, 1),
        Tile(128, 128, 64, 4, 8, 1),
        Tile(128, 64, 64, 3, 4, 2),
        Tile(64, 128, 64, 3, 4, 2),
    ),
}
ALLOWED = 0.01
"""The largest error against float64, relative, of what is worth timing."""


def measure_feed_forward(bench: Bench) -> None:
    """From the gradient of a feed-forward's output to that of what its first product made, and of that one's bias."""
    for activation, shape in SHAPES.items():
        rows, width, hidden = (40, 32, 64) if bench.toy else shape
        given = [
            torch.randn(*sides, device=bench.device).to(torch.float16 if bench.toy else bench.dtype)
            for sides in ((rows, width), (width, hidden), (rows, hidden))
        ]
        if activation == "relu":
            given[2].relu_()
        exact = _differentiate(*given, activation)
        grad, weight, seen = given
        ways: dict[str, Run] = {"two passes": partial(_in_two_passes, grad, weight, seen, activation)}
        tiles = (Tile(16, 32, 16, 2, 4, 1),) if bench.toy else TILES[activation]
        ways |= {f"ours {tuple(tile)}": partial(_with_tile, tile, *given, activation) for tile in tiles}
        for name, run in ways.items():
            bench.attempt("feed", f"{activation} {name}", partial(_check_and_time, bench, run, exact))
        product = partial(torch.mm, grad, weight)
        bench.attempt("feed", f"{activation} the product alone", partial(bench.times, "op", product))


def _differentiate(grad: Tensor, weight: Tensor, seen: Tensor, activation: Activation) -> Tensor:
    x = seen.double().requires_grad_()
    y = F.relu(x) if activation == "relu" else F.gelu(x)
    return torch.autograd.grad(y, x, grad.double() @ weight.double())[0]


def _in_two_passes(grad: Tensor, weight: Tensor, seen: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    usual, through.BY_KERNEL = through.BY_KERNEL, False
    try:
        return through.pass_product(grad, weight, seen, activation)
    finally:
        through.BY_KERNEL = usual


def _with_tile(tile: Tile, grad: Tensor, weight: Tensor, seen: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    usual, through.TILES[activation] = through.TILES[activation], tile
    try:
        return through.pass_by_kernel(grad, weight, seen, activation)
    finally:
        through.TILES[activation] = usual


def _check_and_time(bench: Bench, run: Run, exact: Tensor) -> Row:
    passed, total = run()  # type: ignore[misc]
    found = {"error": _distance(passed, exact), "error of sums": _distance(total, exact.sum(0))}
    if max(found.values()) > ALLOWED:
        raise AssertionError(f"this is wrong: {found}")
    return found | bench.times("op", run)


def _distance(found: Tensor, exact: Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()
