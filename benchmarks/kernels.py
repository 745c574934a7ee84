"""Our kernels beside the library's: errors against float64, then times, on one GPU.

    python benchmarks/kernels.py [--parts agreement workload] [--peers FOLDER] [--out FILE]

The workload is a packed batch of translation: 32,768 tokens, 8 heads of width 64, bfloat16, lengths lognormal with
median 22. Times are milliseconds, medians: "eager" as a program calls it, the host's work included; "device" as a CUDA
graph replays it, the GPU alone. Kernels are compiled first, all parts at once in processes of their own.

Without a GPU, TRITON_INTERPRET=1 with --device cpu --tokens 200 goes through all of it at a toy size.
"""

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # this checkout, whatever else is installed

from attention import balanced_routing, peer_fla, peer_routing  # noqa: E402

from regard import products, sums  # noqa: E402
from regard.attention import Linear, Mask, Packed, attend, attention_weights, kernels, unpack, unpack_mask  # noqa: E402
from regard.attention.core import repack  # noqa: E402
from regard.attention.kernels import linear as linear_kernels  # noqa: E402
from regard.attention.kernels.short import PLANS, Plan, Runs, Tiles  # noqa: E402
from regard.norms import learning  # noqa: E402
from regard.training import head  # noqa: E402

HEADS, WIDTH = 8, 64
Run = Callable[[], object]
Row = dict[str, Any]


# Measuring


class Bench:
    """Where, how large and how often; keeps what was found."""

    def __init__(self, device: str, tokens: int, warm: bool) -> None:
        self.device, self.tokens, self.warm = torch.device(device), tokens, warm
        self.toy = self.device.type == "cpu"
        self.heads, self.dtype = (1, torch.float32) if self.toy else (HEADS, torch.bfloat16)
        self.rows: list[Row] = []

    def note(self, part: str, name: str, **found: object) -> None:
        self.rows.append({"part": part, "name": name, **found})
        if not self.warm:
            shown = "  ".join(f"{key} {_shown(value)}" for key, value in found.items())
            print(f"{part:10} {name:42} {shown}", flush=True)

    def attempt(self, part: str, name: str, measure: Callable[[], Row]) -> None:
        """One line of the table, or why there is none."""
        try:
            self.note(part, name, **measure())
        except Exception as error:  # whatever fails, the rest is worth having
            first = (str(error).splitlines() or [""])[0]
            self.note(part, name, error=f"{type(error).__name__}: {first}"[:160])

    def compare(
        self, part: str, name: str, call: Callable[..., Tensor], inputs: Sequence[Tensor], waits: bool = False
    ) -> None:
        """One line with the times of forward alone and of forward and backward."""

        def measure() -> Row:
            forward, both = gradients(call, inputs)
            return self.times("forward", forward, waits) | self.times("both", both, waits)

        self.attempt(part, name, measure)

    def times(self, what: str, run: Run, waits: bool = False) -> Row:
        """What waits for the device cannot be captured, and has no time of its own there."""
        return {f"{what} eager": self._eager(run), f"{what} device": None if waits else self._device(run)}

    def _eager(self, run: Run) -> float:
        run()
        self._wait()
        if self.warm or self.toy:
            return math.nan
        for _ in range(3):
            run()
        once = self._clock(run, 1)
        calls = max(1, min(10, round(3 / once)))
        return median(self._clock(run, calls) for _ in range(7))

    def _clock(self, run: Run, calls: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._wait()
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        self._wait()
        return begin.elapsed_time(end) / calls

    def _device(self, run: Run) -> float | None:
        if self.warm or self.toy:
            return None
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                run()
                run()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = run()
            graph.replay()
            found = median(self._clock(graph.replay, 5) for _ in range(7))
            del kept, graph
            return found
        except Exception:  # what waits for the device cannot be captured
            self._wait()
            return None

    def _wait(self) -> None:
        if not self.toy:
            torch.cuda.synchronize()


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def gradients(call: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Run, Run]:
    """Forward alone, and forward and backward."""
    inputs = list(inputs)
    with torch.no_grad():
        grad = torch.randn_like(call(*inputs))

    def forward() -> object:
        with torch.no_grad():
            return call(*inputs)

    return forward, lambda: torch.autograd.grad(call(*inputs), inputs, grad)


# The workload


def draw_lengths(tokens: int, middle: float, spread: float, seed: int = 0) -> list[int]:
    """Lognormal, until there are so many tokens."""
    source = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    left = tokens
    while left > 0:
        length = round(math.exp(math.log(middle) + spread * torch.randn((), generator=source).item()))
        lengths.append(min(left, max(1, length)))
        left -= lengths[-1]
    return lengths


def make_mask(bench: Bench, kind: str, middle: float = 22, spread: float = 0.6) -> Mask:
    lengths = draw_lengths(bench.tokens, middle, spread)
    queries = Packed.of(lengths, bench.device)
    if kind != "cross":
        return Mask(queries=queries, keys=queries, causal=kind == "causal")
    source = torch.Generator().manual_seed(1)
    factors = torch.exp(0.25 * torch.randn(len(lengths), generator=source)).tolist()
    keys = [max(1, round(n * factor)) for n, factor in zip(lengths, factors, strict=True)]
    return Mask(queries=queries, keys=Packed.of(keys, bench.device))


def make_inputs(bench: Bench, mask: Mask, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Views of projections, as attention gets them."""
    assert isinstance(mask.queries, Packed)
    assert isinstance(mask.keys, Packed)
    torch.manual_seed(0)
    dtype = dtype or bench.dtype
    W = bench.heads * WIDTH
    if mask.queries is mask.keys:
        parts = torch.randn(1, mask.keys.size, 3 * W, device=bench.device).to(dtype).chunk(3, -1)
    else:
        of_keys = torch.randn(1, mask.keys.size, 2 * W, device=bench.device).to(dtype)
        parts = (torch.randn(1, mask.queries.size, W, device=bench.device).to(dtype), *of_keys.chunk(2, -1))
    return [x.view(1, -1, bench.heads, WIDTH).transpose(1, 2).requires_grad_() for x in parts]


KINDS = ("self", "causal", "cross")
PATHS = ("short", "varlen", "unpacked")


def measure_agreement(bench: Bench) -> None:
    """Relative errors of the context and the gradients."""
    for kind in KINDS:
        mask = make_mask(bench, kind)
        inputs = make_inputs(bench, mask)
        grad = torch.randn_like(inputs[0])
        exact = _exactly(inputs, mask, grad)
        for path in PATHS:
            call = partial(attend, mask=mask, path=path)
            bench.attempt("agreement", f"{kind}, {path}", partial(errors, call, inputs, grad, exact))


def errors(call: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor, exact: list[Tensor]) -> Row:
    context = call(*inputs)
    got = [context, *torch.autograd.grad(context, inputs, grad)]
    return {
        name: ((mine.double() - theirs).norm() / theirs.norm()).item()
        for name, mine, theirs in zip(("out", "dq", "dk", "dv"), got, exact, strict=True)
    }


def _exactly(inputs: list[Tensor], mask: Mask, grad: Tensor) -> list[Tensor]:
    """Context and gradients in float64, one sequence a row."""
    q, k, v = wide = [x.detach().double().requires_grad_() for x in inputs]
    queries, keys = mask.queries, mask.keys
    assert isinstance(queries, Packed)
    assert isinstance(keys, Packed)
    context = repack(
        attention_weights(unpack(q, queries), unpack(k, keys), unpack_mask(mask)) @ unpack(v, keys), queries
    )
    return [context.detach(), *torch.autograd.grad(context, wide, grad.double())]


def measure_workload(bench: Bench) -> None:
    for kind in KINDS:
        mask = make_mask(bench, kind)
        inputs = make_inputs(bench, mask)
        for path in PATHS:
            bench.compare("workload", f"{kind}, {path}", partial(attend, mask=mask, path=path), inputs)
    mask = make_mask(bench, "causal")
    inputs = make_inputs(bench, mask)
    wide = make_inputs(bench, mask, torch.float32)
    for path in ("short", "unpacked"):
        dropping = partial(attend, mask=mask, dropout=0.1, path=path)
        bench.compare("workload", f"causal, dropout 0.1, {path}", dropping, inputs)
        bench.compare("workload", f"causal, float32, {path}", partial(attend, mask=mask, path=path), wide)
    together = torch.randn(1, bench.tokens, 3 * bench.heads * WIDTH, device=bench.device).to(bench.dtype)
    together.requires_grad_()

    def from_projection(x: Tensor, path: Any) -> Tensor:
        q, k, v = (part.view(1, -1, bench.heads, WIDTH).transpose(1, 2) for part in x.chunk(3, -1))
        return attend(q, k, v, mask, path=path)

    for path in ("short", "varlen"):
        bench.compare("workload", f"causal, one projection, {path}", partial(from_projection, path=path), [together])
    bench.attempt("workload", "what follows from the mask, once", lambda: bench.times("once", lambda: Runs.of(mask)))


# Which tiles

TILES = {
    "forward": [
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (64, 128, 4, 1), (64, 128, 8, 1), (32, 64, 4, 1),
        (32, 64, 2, 1), (32, 32, 2, 2),
    ],
    "backward_queries": [
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (64, 128, 8, 1), (32, 64, 4, 1), (32, 64, 2, 1), (32, 32, 2, 2),
    ],
    "backward_keys": [
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 8, 1), (32, 64, 4, 2), (128, 64, 8, 1), (64, 32, 4, 1), (32, 32, 2, 2),
    ],
}  # fmt: skip


def measure_tiles(bench: Bench, kernel: str) -> None:
    """One kernel with other tiles; backward's two kernels are timed together, the other as it is."""
    usual = PLANS[WIDTH]
    forward, backward = torch.ops.regard.attend_runs, torch.ops.regard.attend_runs_backward
    for kind in ("causal", "self"):
        mask = make_mask(bench, kind)
        inputs = [x.detach() for x in make_inputs(bench, mask)]
        rest = (*Runs.of(mask), None, None, None, WIDTH**-0.5, 0.0)
        run = partial(forward, *inputs, *rest)
        if kernel != "forward":
            context, lse = run()
            run = partial(backward, torch.randn_like(context), *inputs, context, lse, *rest)
        for choice in TILES[kernel]:
            PLANS[WIDTH] = Plan(**(usual._asdict() | {kernel: Tiles(*choice)}))
            bench.attempt("tiles", f"{kind}, {kernel} {choice}", partial(bench.times, "op", run))
        PLANS[WIDTH] = usual


# Beside attention


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
            "not rounded": partial(products._multiply, grad.t(), x, torch.float32),
        }
        for name, run in ways.items():
            bench.attempt("weights", f"{rows} × {columns}, {name}", partial(bench.times, "op", run))


def measure_head(bench: Bench) -> None:
    """Logits of a chunk of rows turned into their gradient, with other tiles."""
    rows, words = (4, 100) if bench.toy else (8448, 32_000)
    logits = torch.randn(rows, words, device=bench.device, dtype=bench.dtype)
    labels = torch.randint(words, (rows,), device=bench.device)
    usual = head.TILE, head.WARPS
    for choice in (
        (8192, 8),
        (2048, 4),
        (4096, 4),
        (4096, 8),
        (8192, 4),
        (8192, 16),
        (16384, 8),
        (16384, 16),
        (32768, 32),
    ):
        head.TILE, head.WARPS = choice
        run = partial(head.turn_with_kernel, logits, labels, 0.1)
        bench.attempt("head", f"{rows} × {words:,}, {choice}", partial(bench.times, "op", run))
    head.TILE, head.WARPS = usual


def measure_lengths(bench: Bench) -> None:
    """Up to which lengths the tiles that sequences share are the better ones."""
    for middle in (64, 128, 256, 512, 1024):
        mask = make_mask(bench, "causal", middle, 0.2)
        inputs = make_inputs(bench, mask)
        for path in ("short", "varlen"):
            bench.compare("lengths", f"about {middle}, {path}", partial(attend, mask=mask, path=path), inputs)


# Kinds


def row_inputs(bench: Bench, length: int) -> list[Tensor]:
    shape = (1, HEADS, length, WIDTH)
    return [torch.randn(shape, device=bench.device, dtype=bench.dtype, requires_grad=True) for _ in range(3)]


def measure_routing(bench: Bench) -> None:
    """Sorted clusters against rows of clusters, both causal, √n clusters."""
    installed = kernels.INSTALLED
    for length in (64,) if bench.toy else (1024, 4096, 16384, 65536):
        kind = balanced_routing(length, bench.device, 2 if bench.toy else 60)
        inputs = row_inputs(bench, length)
        for path in ("clusters", "sorted"):
            kernels.INSTALLED = installed and path == "sorted"
            kind.path = path  # type: ignore[assignment]
            call = partial(kind, mask=Mask(causal=True))
            bench.compare("routing", f"{length}, {path}", call, inputs, waits=path == "clusters")
        kernels.INSTALLED = installed
        bench.compare("routing", f"{length}, routing-transformer", Peer(peer_routing, length), inputs, waits=True)


def measure_linear(bench: Bench) -> None:
    """Stretches against chunks, in errors and in time."""
    usual = linear_kernels.ENOUGH
    for length in (150,) if bench.toy else (1024, 16384, 65536):
        inputs = row_inputs(bench, length)
        for causal in (True, False):
            mask = Mask(causal=causal)
            title = f"{length}, {'causal' if causal else 'both ways'}"
            grad = torch.randn_like(inputs[0])
            exact = _linearly(inputs, grad, mask)
            for path in ("chunked", "kernel"):
                call = partial(Linear(WIDTH, path=path), mask=mask)  # type: ignore[arg-type]
                bench.attempt("linear", f"{title}, {path}", partial(errors, call, inputs, grad, exact))
                for enough in (256, 512, 1024) if path == "kernel" else (usual,):
                    linear_kernels.ENOUGH = enough
                    name = f"{title}, {path}" + (f" {enough}" if path == "kernel" else "")
                    bench.compare("linear", name, call, inputs)
                linear_kernels.ENOUGH = usual
            del exact
        bench.compare("linear", f"{length}, causal, flash-linear-attention", Peer(peer_fla, length), inputs)


def _linearly(inputs: list[Tensor], grad: Tensor, mask: Mask) -> list[Tensor]:
    wide = [x.detach().double().requires_grad_() for x in inputs]
    context = Linear(WIDTH, path="chunked")(*wide, mask)
    return [context.detach(), *torch.autograd.grad(context, wide, grad.double())]


class Peer:
    """Imported when first called, so that a peer that is not there is a line of the table."""

    def __init__(self, make: Callable[[int], Callable[..., Tensor]], length: int) -> None:
        self.make, self.length = make, length
        self.made: Callable[..., Tensor] | None = None

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.made = self.made or self.make(self.length)
        return self.made(*inputs)


PARTS: dict[str, Callable[[Bench], None]] = {
    "agreement": measure_agreement,
    "workload": measure_workload,
    **{f"tiles-{kernel}": partial(measure_tiles, kernel=kernel) for kernel in TILES},
    "norms": measure_norms,
    "biases": measure_biases,
    "relu": measure_relu,
    "weights": measure_weights,
    "head": measure_head,
    "lengths": measure_lengths,
    "routing": measure_routing,
    "linear": measure_linear,
}


def compile_all(arguments: list[str], parts: Sequence[str]) -> None:
    """Fills Triton's cache: every part in a process of its own, each call made once."""
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--warm", "--parts", part],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for part in parts
    ]
    for process in started:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="Our kernels beside the library's.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--peers", type=Path, help="folder with the peers' packages")
    parser.add_argument("--out", type=Path, help="file for the results, JSON")
    parser.add_argument("--warm", action="store_true", help="only make every call once")
    options = parser.parse_args()
    if options.peers is not None:
        sys.path.append(str(options.peers))
    begin = time.perf_counter()
    shared = ["--device", options.device, "--tokens", str(options.tokens)]
    shared += [] if options.peers is None else ["--peers", str(options.peers)]
    if not options.warm and options.device != "cpu":
        compile_all(shared, options.parts)
        print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    bench = Bench(options.device, options.tokens, options.warm)
    for part in options.parts:
        try:
            PARTS[part](bench)
        except Exception as error:
            bench.note(part, "the whole part", error=f"{type(error).__name__}: {error}"[:300])
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about(options) | {"rows": bench.rows}, indent=1) + "\n", encoding="utf-8")
    if not options.warm:
        print(f"{time.perf_counter() - begin:.0f} s altogether")


def about(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "what": f"{options.tokens:,} tokens, {HEADS} heads of {WIDTH}, bfloat16, lengths lognormal with median 22; "
        "milliseconds of forward, and of forward and backward; errors relative to float64",
        "machine": torch.cuda.get_device_name(options.device) if options.device != "cpu" else os.uname().machine,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python benchmarks/kernels.py",
    }


if __name__ == "__main__":
    main()
