"""What stands beside attention in a step: Add & Norm, gradients of biases and weights, ReLU, the head."""

from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import add_norm as norms
from regard.ops import cross_entropy as head
from regard.ops import linear_backward as backward
from regard.ops.linear_backward import matmul

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
        norm = SimpleNamespace(weight=weight, bias=bias, eps=1e-5)
        return norms.sum_and_norm(x, added, norm, update_bias=before, dropout=0.1, dtype=x.dtype)[1]  # type: ignore[arg-type]

    bench.compare("norms", "PyTorch", plain, inputs)
    usual = norms.TILE, norms.WARPS, norms.PROGRAMS
    for choice in ((1024, 2, 8), (1024, 2, 6), (1024, 2, 4), (512, 1, 16), (512, 1, 8), (2048, 2, 5), (2048, 4, 4)):
        norms.TILE, norms.WARPS, norms.PROGRAMS = choice
        bench.compare("norms", f"ours {choice}", ours, inputs)
    norms.TILE, norms.WARPS, norms.PROGRAMS = usual
    bench.compare("norms", "ours, without the bias before it", partial(ours, before=None), inputs[:4])


def measure_biases(bench: Bench) -> None:
    """The gradient of a bias, a column's sum for each of its numbers, beside PyTorch's own, and with other tiles."""
    for width in (40,) if bench.toy else (512, 1024, 1536, 2048):
        grad = torch.randn(bench.tokens, width, device=bench.device, dtype=bench.dtype)
        run = partial(torch.sum, grad, 0)
        bench.attempt("biases", f"{width}, PyTorch", partial(bench.times, "op", run))
        for choice in ((32, 128, 4, 8), (64, 128, 4, 4), (16, 128, 4, 12), (32, 256, 8, 4), (16, 256, 4, 8)):
            _sum_with_tiles(bench, "biases", f"{width}, ours {choice}", choice, partial(backward.sum_columns, grad))


def measure_relu(bench: Bench) -> None:
    """The way back through ReLU with the gradient of the bias before it, beside PyTorch's own, and with other tiles."""
    grad, y = (torch.randn(bench.tokens, 2048, device=bench.device, dtype=bench.dtype) for _ in range(2))

    def plain() -> tuple[Tensor, Tensor]:
        passed = torch.where(y > 0, grad, 0)
        return passed, passed.sum(0)

    bench.attempt("relu", "PyTorch", partial(bench.times, "op", plain))
    for choice in ((32, 128, 4, 8), (64, 128, 4, 5), (16, 128, 4, 12), (64, 128, 8, 4), (32, 256, 4, 5)):
        _sum_with_tiles(bench, "relu", f"ours {choice}", choice, partial(backward.activation_backward, grad, y, "relu"))


def _sum_with_tiles(bench: Bench, part: str, name: str, choice: tuple[int, int, int, int], run: Run) -> None:
    usual = backward.ROWS, backward.COLUMNS, backward.WARPS, backward.PROGRAMS
    backward.ROWS, backward.COLUMNS, backward.WARPS, backward.PROGRAMS = choice
    bench.attempt(part, name, partial(bench.times, "op", run))
    backward.ROWS, backward.COLUMNS, backward.WARPS, backward.PROGRAMS = usual


def measure_weights(bench: Bench) -> None:
    """The gradient of a weight in single precision: rounded to half on the way, or not."""
    for rows, columns in ((8, 8),) if bench.toy else ((512, 512), (1536, 512), (2048, 512), (512, 2048)):
        grad = torch.randn(bench.tokens, rows, device=bench.device, dtype=bench.dtype)
        x = torch.randn(bench.tokens, columns, device=bench.device, dtype=bench.dtype)
        ways: dict[str, Run] = {
            "rounded": lambda grad=grad, x=x: (grad.t() @ x).float(),  # type: ignore[misc]
            "not rounded": partial(matmul, grad.t(), x, torch.float32),
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
        run = partial(head._two_reads, logits.clone(), labels, 0.1, True)
        bench.attempt("head", f"read twice {choice}", partial(_check_and_time, bench, run, logits, labels))
    head.TILE, head.WARPS = usual
    usual = head.LOGITS_PER_WARP, head.WARPS_PER_MULTIPROCESSOR
    for choice in ((2048, 16), (1024, 32), (4096, 8)):
        head.LOGITS_PER_WARP, head.WARPS_PER_MULTIPROCESSOR = choice
        run = partial(head._one_read, logits.clone(), labels, 0.1, True)
        bench.attempt("head", f"held {choice}", partial(_check_and_time, bench, run, logits, labels))
    head.LOGITS_PER_WARP, head.WARPS_PER_MULTIPROCESSOR = usual
    vectors = torch.randn(rows, width, device=bench.device).to(dtype)
    bench.attempt("head", "gradient of the weight", partial(bench.times, "op", partial(_sum_weight, logits, vectors)))
    factor = torch.full((), 1 / 3, device=bench.device)
    for what, x in (("weight", torch.randn(words, width, device=bench.device)), ("vectors", vectors)):
        plain, ours = partial(torch.mul, x, factor), partial(head.multiply, x, factor, x.dtype)
        bench.attempt("head", f"{what} times a number, PyTorch", partial(bench.times, "op", plain))
        bench.attempt("head", f"{what} times a number, ours", partial(bench.times, "op", ours))


def _check_and_time(bench: Bench, run: partial[Tensor], logits: Tensor, labels: Tensor) -> Row:
    """The first call finds the logits as they were, the others what it made of them."""
    plain = logits[:64].double()
    losses = head.cross_entropy_(plain, labels[:64], 0.1)
    found = run()[:64].double()
    errors = {
        "error": ((run.args[0][:64].double() - plain).norm() / plain.norm()).item(),
        "error of losses": ((found - losses).norm() / losses.norm()).item(),
    }
    if max(errors.values()) > 0.01:
        raise AssertionError(f"this is wrong: {errors}")
    return errors | bench.times("op", run)


def _sum_weight(logits: Tensor, vectors: Tensor) -> Tensor:
    total = torch.empty(logits.shape[1], vectors.shape[1], device=logits.device)
    for chunk in range(3):
        head.accumulate_matmul_(total, logits.t(), vectors, first=chunk == 0)
    return total
