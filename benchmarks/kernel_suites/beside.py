"""What stands beside attention in a step: Add & Norm, gradients of biases and weights, ReLU, the head."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import add_norm_training as learning
from regard.ops import column_sum as sums
from regard.ops import cross_entropy as head
from regard.ops.linear_training import multiply_precisely

from .bench import Bench, Row, Run


def measure_norms(bench: Bench) -> None:
    """Add & Norm of a row of 512 numbers for every token, dropout 0.1, beside PyTorch's own, and with other tiles."""
    x, added = (torch.randn(bench.tokens, 512, device=bench.device, dtype=bench.dtype) for _ in range(2))
    weight, bias, before = (torch.full((512,), number, device=bench.device) for number in (1.0, 0.0, 0.0))
    inputs = [tensor.requires_grad_() for tensor in (x, added, weight, bias, before)]

    def plain(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, before: Tensor) -> Tensor:
        y = x + F.dropout(added + before.to(added.dtype), 0.1)
        return F.layer_norm(y, (512,), weight.to(y.dtype), bias.to(y.dtype), 1e-5)

    def ours(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None) -> Tensor:
        return learning.add_norm(x, added, weight, bias, 1e-5, 0.1, before)

    bench.compare("norms", "PyTorch", plain, inputs)
    usual = learning.TILE, learning.WARPS, learning.PROGRAMS
    for choice in ((1024, 2, 8), (1024, 2, 6), (1024, 2, 4), (512, 1, 16), (512, 1, 8), (2048, 2, 5), (2048, 4, 4)):
        learning.TILE, learning.WARPS, learning.PROGRAMS = choice
        bench.compare("norms", f"ours {choice}", ours, inputs)
    learning.TILE, learning.WARPS, learning.PROGRAMS = usual
    bench.compare("norms", "ours, without the bias before it", partial(ours, before=None), inputs[:4])


def measure_biases(bench: Bench) -> None:
    """The gradient of a bias, a column's sum for each of its numbers, beside PyTorch's own, and with other tiles."""
    for width in (40,) if bench.toy else (512, 1024, 1536, 2048):
        grad = torch.randn(bench.tokens, width, device=bench.device, dtype=bench.dtype)
        run = partial(torch.sum, grad, 0)
        bench.attempt("biases", f"{width}, PyTorch", partial(bench.times, "op", run))
        for choice in ((32, 128, 4, 8), (64, 128, 4, 4), (16, 128, 4, 12), (32, 256, 8, 4), (16, 256, 4, 8)):
            _sum_with_tiles(bench, "biases", f"{width}, ours {choice}", choice, partial(sums.sum_by_kernel, grad))


def measure_relu(bench: Bench) -> None:
    """The way back through ReLU with the gradient of the bias before it, beside PyTorch's own, and with other tiles."""
    grad, y = (torch.randn(bench.tokens, 2048, device=bench.device, dtype=bench.dtype) for _ in range(2))

    def plain() -> tuple[Tensor, Tensor]:
        passed = torch.where(y > 0, grad, 0)
        return passed, passed.sum(0)

    bench.attempt("relu", "PyTorch", partial(bench.times, "op", plain))
    for choice in ((32, 128, 4, 8), (64, 128, 4, 5), (16, 128, 4, 12), (64, 128, 8, 4), (32, 256, 4, 5)):
        _sum_with_tiles(bench, "relu", f"ours {choice}", choice, partial(sums.pass_relu_by_kernel, grad, y))


def _sum_with_tiles(bench: Bench, part: str, name: str, choice: tuple[int, int, int, int], run: Run) -> None:
    usual = sums.ROWS, sums.COLUMNS, sums.WARPS, sums.PROGRAMS
    sums.ROWS, sums.COLUMNS, sums.WARPS, sums.PROGRAMS = choice
    bench.attempt(part, name, partial(bench.times, "op", run))
    sums.ROWS, sums.COLUMNS, sums.WARPS, sums.PROGRAMS = usual


def measure_weights(bench: Bench) -> None:
    """The gradient of a weight in single precision: rounded to half on the way, or not."""
    for rows, columns in ((8, 8),) if bench.toy else ((512, 512), (1536, 512), (2048, 512), (512, 2048)):
        grad = torch.randn(bench.tokens, rows, device=bench.device, dtype=bench.dtype)
        x = torch.randn(bench.tokens, columns, device=bench.device, dtype=bench.dtype)
        ways: dict[str, Run] = {
            "rounded": lambda grad=grad, x=x: (grad.t() @ x).float(),  # type: ignore[misc]
            "not rounded": partial(multiply_precisely, grad.t(), x, torch.float32),
        }
        for name, run in ways.items():
            bench.attempt("weights", f"{rows} × {columns}, {name}", partial(bench.times, "op", run))


def measure_head(bench: Bench) -> None:
    """Logits of a chunk of rows turned into their gradient, with other tiles; then the weight's, of three chunks."""
    rows, words, width = (4, 100, 8) if bench.toy else (8448, 32_000, 512)
    dtype = torch.float16 if bench.toy else bench.dtype
    logits = torch.randn(rows, words, device=bench.device).to(dtype)
    labels = torch.randint(words, (rows,), device=bench.device)
    usual = head.TILE, head.WARPS
    for choice in ((8192, 8), (4096, 4), (8192, 16), (16384, 8), (16384, 16), (32768, 32)):
        head.TILE, head.WARPS = choice
        run = partial(head.turn_rows, logits.clone(), labels, 0.1)
        bench.attempt("head", f"read twice {choice}", partial(_check_and_time, bench, run, logits, labels))
    head.TILE, head.WARPS = usual
    usual = head.HELD_BY_WARP, head.HELD_WARPS
    for choice in ((2048, 16), (1024, 32), (4096, 8)):
        head.HELD_BY_WARP, head.HELD_WARPS = choice
        run = partial(head.turn_held_rows, logits.clone(), labels, 0.1)
        bench.attempt("head", f"held {choice}", partial(_check_and_time, bench, run, logits, labels))
    head.HELD_BY_WARP, head.HELD_WARPS = usual
    vectors = torch.randn(rows, width, device=bench.device).to(dtype)
    for precisely in (False, True):
        add = partial(_add_up_weight, logits, vectors, precisely)
        bench.attempt("head", f"weight, added up by the product: {precisely}", partial(bench.times, "op", add))
    factor = torch.full((), 1 / 3, device=bench.device)
    for what, x in (("weight", torch.randn(words, width, device=bench.device)), ("vectors", vectors)):
        plain, ours = partial(torch.mul, x, factor), partial(head.multiply, x, factor, x.dtype)
        bench.attempt("head", f"{what} times a number, PyTorch", partial(bench.times, "op", plain))
        bench.attempt("head", f"{what} times a number, ours", partial(bench.times, "op", ours))


def _check_and_time(bench: Bench, run: partial[Tensor], logits: Tensor, labels: Tensor) -> Row:
    """The first call finds the logits as they were, the others what it made of them."""
    plain = logits[:64].double()
    losses = head.turn_into_gradient(plain, labels[:64], 0.1)
    found = run()[:64].double()
    errors = {
        "error": ((run.args[0][:64].double() - plain).norm() / plain.norm()).item(),
        "error of losses": ((found - losses).norm() / losses.norm()).item(),
    }
    if max(errors.values()) > 0.01:
        raise AssertionError(f"this is wrong: {errors}")
    return errors | bench.times("op", run)


def _add_up_weight(logits: Tensor, vectors: Tensor, precisely: bool) -> Tensor:
    total = torch.empty(logits.shape[1], vectors.shape[1], device=logits.device)
    usual, head.ADDS_PRECISELY = head.ADDS_PRECISELY, precisely
    for chunk in range(3):
        head.add_product(total, logits.t(), vectors, first=chunk == 0)
    head.ADDS_PRECISELY = usual
    return total
