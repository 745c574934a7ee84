"""Operations of a training step other than attention: Add & Norm, embedding, linear layers, cross-entropy."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from training_workload import make_one

from regard.layers import sinusoid
from regard.ops import add_norm, cross_entropy, embedding
from regard.ops import linear_backward as backward
from regard.ops.linear_backward import MatmulTile, matmul

from .bench import Bench, Row, Run, relative_error

WIDTH, HIDDEN, ROWS = 512, 2048, 25_344
"""Width, hidden width, and tokens of a step of Transformer-base."""
DROPOUT = 0.1
MAX_ERROR = 0.01
"""Maximum error relative to float64; a kernel with a larger error is not timed."""


def measure_add_norm(bench: Bench) -> None:
    """Add & Norm with dropout, in torch and as a kernel with other tiles."""
    x, update = (torch.randn(bench.tokens, WIDTH, device=bench.device, dtype=bench.dtype) for _ in range(2))
    weight, bias, update_bias = (torch.full((WIDTH,), value, device=bench.device) for value in (1.0, 0.0, 0.0))
    inputs = [tensor.requires_grad_() for tensor in (x, update, weight, bias, update_bias)]

    def reference(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, update_bias: Tensor) -> Tensor:
        y = x + F.dropout(update + update_bias.to(update.dtype), DROPOUT)
        return F.layer_norm(y, (WIDTH,), weight.to(y.dtype), bias.to(y.dtype), 1e-5)

    def kernel(x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, update_bias: Tensor | None) -> Tensor:
        norm = SimpleNamespace(weight=weight, bias=bias, eps=1e-5)
        options = {"update_bias": update_bias, "dropout": DROPOUT, "dtype": x.dtype}
        return add_norm.sum_and_norm(x, update, norm, **options)[1]  # type: ignore[arg-type]

    bench.time_gradients("add-norm", "PyTorch", reference, inputs)
    for tile, warps, programs in (
        (1024, 2, 8), (1024, 2, 6), (1024, 2, 4), (512, 1, 16), (512, 1, 8), (2048, 2, 5), (2048, 4, 4)
    ):  # fmt: skip
        with patch.multiple(add_norm, TILE=tile, WARPS=warps, PROGRAMS=programs):
            bench.time_gradients("add-norm", f"kernel {(tile, warps, programs)}", kernel, inputs)
    bench.time_gradients("add-norm", "kernel, without bias", partial(kernel, update_bias=None), inputs[:4])


# Embedding


def measure_embedding(bench: Bench) -> None:
    """Embedding of a packed batch with positions and dropout, and its backward pass, with other tiles."""
    vocab = 2400 if bench.toy else 32_000
    batch = make_one(vocab, bench.tokens, "packed", bench.device)
    layout, scale = batch.target_layout, WIDTH**0.5
    positions, table = layout.positions(), sinusoid(torch.arange(layout.longest, device=bench.device), WIDTH)
    weight = torch.randn(vocab, WIDTH, device=bench.device).requires_grad_()

    def reference(weight: Tensor) -> Tensor:
        embedded = F.embedding(batch.inputs, weight) * scale + table[positions]
        return F.dropout(embedded, DROPOUT).to(bench.dtype)

    def kernel(weight: Tensor) -> Tensor:
        return embedding.embed(batch.inputs, weight, scale, positions, table, DROPOUT, bench.dtype)

    bench.time_gradients("embedding", "PyTorch", reference, [weight])
    for tile, warps in ((1024, 2), (512, 1), (512, 2), (1024, 4), (2048, 4), (2048, 2)):
        with patch.multiple(embedding, TILE=tile, WARPS=warps):
            bench.time_gradients("embedding", f"kernel {(tile, warps)}", kernel, [weight])
    _measure_embedding_backward(bench, batch.inputs.flatten(), vocab, scale)


def _measure_embedding_backward(bench: Bench, tokens: Tensor, vocab: int, scale: float) -> None:
    """Sum of the gradients of each token: torch in float32, the kernel in half precision and including dropout."""
    grad = torch.randn(len(tokens), WIDTH, device=bench.device, dtype=bench.dtype)
    reference = partial(torch.ops.aten.embedding_dense_backward, grad.float(), tokens, vocab, -1, False)
    bench.time_op("embedding", "backward, PyTorch, without dropout", reference)
    seed = torch.ones(1, dtype=torch.long, device=bench.device)
    kernel = partial(embedding.sum_by_token, grad, tokens, vocab, scale, seed, DROPOUT)
    for chunk, rows, warps in (
        (32, 4, 2), (16, 4, 2), (64, 4, 2), (32, 2, 2), (32, 8, 2), (32, 4, 4), (32, 4, 1), (16, 2, 1)
    ):  # fmt: skip
        with patch.multiple(embedding, CHUNK=chunk, BACKWARD_ROWS=rows, BACKWARD_WARPS=warps):
            bench.time_op("embedding", f"backward, kernel {(chunk, rows, warps)}", kernel)
    with patch.object(embedding, "MAX_INT16_VOCABULARY", 0):
        bench.time_op("embedding", "backward, kernel, sorted by 32 bits", kernel)


# Gradients of linear layers


def measure_bias_gradient(bench: Bench) -> None:
    """The gradient of a bias, a sum of columns, in torch and as a kernel with other tiles."""
    for width in (40,) if bench.toy else (512, 1024, 1536, 2048):
        grad = torch.randn(bench.tokens, width, device=bench.device, dtype=bench.dtype)
        bench.time_op("bias-gradient", f"{width}, PyTorch", partial(torch.sum, grad, 0))
        tiles = ((32, 128, 4, 8), (64, 128, 4, 4), (16, 128, 4, 12), (32, 256, 8, 4), (16, 256, 4, 8))
        _time_column_tiles(bench, "bias-gradient", f"{width}, kernel", tiles, partial(backward.sum_columns, grad))


def measure_relu_backward(bench: Bench) -> None:
    """The backward pass of ReLU with the gradient of the bias before it, in torch and as a kernel."""
    grad, y = (torch.randn(bench.tokens, HIDDEN, device=bench.device, dtype=bench.dtype) for _ in range(2))

    def reference() -> tuple[Tensor, Tensor]:
        masked = torch.where(y > 0, grad, 0)
        return masked, masked.sum(0)

    bench.time_op("relu-backward", "PyTorch", reference)
    tiles = ((32, 128, 4, 8), (64, 128, 4, 5), (16, 128, 4, 12), (64, 128, 8, 4), (32, 256, 4, 5))
    kernel = partial(backward.activation_backward, grad, y, "relu")
    _time_column_tiles(bench, "relu-backward", "kernel", tiles, kernel)


def _time_column_tiles(
    bench: Bench, part: str, name: str, tiles: tuple[tuple[int, int, int, int], ...], run: Run
) -> None:
    for rows, columns, warps, programs in tiles:
        with patch.multiple(backward, ROWS=rows, COLUMNS=columns, WARPS=warps, PROGRAMS=programs):
            bench.time_op(part, f"{name} {(rows, columns, warps, programs)}", run)


def measure_weight_gradient(bench: Bench) -> None:
    """The float32 gradient of a weight, with and without rounding to half precision."""
    for rows, columns in ((8, 8),) if bench.toy else ((512, 512), (1536, 512), (2048, 512), (512, 2048)):
        grad = torch.randn(bench.tokens, rows, device=bench.device, dtype=bench.dtype)
        x = torch.randn(bench.tokens, columns, device=bench.device, dtype=bench.dtype)
        rounded = lambda grad=grad, x=x: (grad.t() @ x).float()  # noqa: E731
        bench.time_op("weight-gradient", f"{rows} × {columns}, rounded", rounded)
        not_rounded = partial(matmul, grad.t(), x, torch.float32)
        bench.time_op("weight-gradient", f"{rows} × {columns}, not rounded", not_rounded)


FEED_FORWARD_TILES = (
    MatmulTile(128, 128, 64, 3, 4, 2),
    MatmulTile(128, 256, 64, 3, 8, 1),
    MatmulTile(128, 128, 64, 4, 8, 1),
    MatmulTile(256, 128, 64, 3, 8, 1),
    MatmulTile(128, 256, 32, 5, 8, 1),
    MatmulTile(64, 256, 64, 3, 4, 1),
)


def measure_feed_forward(bench: Bench) -> None:
    """The backward pass of a feed-forward layer up to its ReLU: matmul and ReLU separately, or as one kernel."""
    rows, width, hidden = (40, 32, 64) if bench.toy else (ROWS, WIDTH, HIDDEN)
    grad, weight, y = (
        torch.randn(*size, device=bench.device).to(torch.float16 if bench.toy else bench.dtype)
        for size in ((rows, width), (width, hidden), (rows, hidden))
    )
    y.relu_()
    exact = torch.where(y > 0, grad.double() @ weight.double(), 0.0)

    def check_and_time(run: Run) -> Row:
        masked, column_sum = run()  # type: ignore[misc]
        errors = {"error": relative_error(masked, exact), "error of sums": relative_error(column_sum, exact.sum(0))}
        return _check_errors(errors) | bench.times("op", run)

    def two_passes() -> tuple[Tensor, Tensor]:
        return backward.activation_backward(grad @ weight, y, "relu")

    bench.measure("feed-forward", "two passes", partial(check_and_time, two_passes))
    kernel = partial(backward.matmul_relu_backward_kernel, grad, weight, y)
    for tile in (MatmulTile(16, 32, 16, 2, 4, 1),) if bench.toy else FEED_FORWARD_TILES:
        with patch.object(backward, "MATMUL_TILE", tile):
            bench.measure("feed-forward", f"kernel {tuple(tile)}", partial(check_and_time, kernel))
    bench.time_op("feed-forward", "matmul only", partial(torch.mm, grad, weight))


def _check_errors(errors: Row) -> Row:
    if max(errors.values()) > MAX_ERROR:
        raise AssertionError(f"errors are too large: {errors}")
    return errors


# Cross-entropy


def measure_cross_entropy(bench: Bench) -> None:
    """Gradients of the logits of a chunk, with other tiles; then the gradient of the output layer over three chunks."""
    rows, vocab, width = (4, 100, 8) if bench.toy else (8448, 32_000, WIDTH)
    dtype = torch.float16 if bench.toy else bench.dtype
    logits = torch.randn(rows, vocab, device=bench.device).to(dtype)
    labels = torch.randint(vocab, (rows,), device=bench.device)

    def measure(name: str, kernel: object) -> None:
        run = partial(kernel, logits.clone(), labels, 0.1, True)  # type: ignore[arg-type]
        bench.measure("cross-entropy", name, partial(_check_and_time_logits, bench, run, logits, labels))

    for tile, warps in ((8192, 8), (4096, 4), (8192, 16), (16384, 8), (16384, 16), (32768, 32)):
        with patch.multiple(cross_entropy, TILE=tile, WARPS=warps):
            measure(f"two reads {(tile, warps)}", cross_entropy._two_reads)
    for per_warp, warps in ((2048, 16), (1024, 32), (4096, 8)):
        with patch.multiple(cross_entropy, LOGITS_PER_WARP=per_warp, WARPS_PER_MULTIPROCESSOR=warps):
            measure(f"one read {(per_warp, warps)}", cross_entropy._one_read)
    vectors = torch.randn(rows, width, device=bench.device).to(dtype)
    bench.time_op("cross-entropy", "gradient of the weight", partial(_sum_weight_gradient, logits, vectors))
    factor = torch.full((), 1 / 3, device=bench.device)
    for name, x in (("weight", torch.randn(vocab, width, device=bench.device)), ("vectors", vectors)):
        bench.time_op("cross-entropy", f"scaled {name}, PyTorch", partial(torch.mul, x, factor))
        kernel = partial(cross_entropy.multiply, x, factor, x.dtype)
        bench.time_op("cross-entropy", f"scaled {name}, kernel", kernel)


def _check_and_time_logits(bench: Bench, run: "partial[Tensor]", logits: Tensor, labels: Tensor) -> Row:
    """Check the first call, which replaces the logits by their gradient; later calls only matter for the time."""
    exact = logits[:64].double()
    exact_losses = cross_entropy.cross_entropy_(exact, labels[:64], 0.1)
    losses = run()[:64]
    errors = {
        "error": relative_error(run.args[0][:64], exact),
        "error of losses": relative_error(losses, exact_losses),
    }
    return _check_errors(errors) | bench.times("op", run)


def _sum_weight_gradient(logits: Tensor, vectors: Tensor) -> Tensor:
    total = torch.empty(logits.shape[1], vectors.shape[1], device=logits.device)
    for chunk in range(3):
        cross_entropy.accumulate_matmul_(total, logits.t(), vectors, first=chunk == 0)
    return total
