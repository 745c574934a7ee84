"""Triton kernels next to torch's: errors relative to float64 and times, on one GPU.

    python benchmarks/kernels.py [--parts agreement workload] [--libraries FOLDER] [--out FILE]

The workload is a packed batch of translation: 32,768 tokens, 8 heads of width 64, bfloat16, lognormal lengths with
median 22. Times are medians in milliseconds: "eager" includes the host, "device" is a replayed CUDA graph. Kernels are
compiled first, all parts at the same time in separate processes.

Without a GPU, TRITON_INTERPRET=1 with --device cpu --tokens 200 runs everything at a small size.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from harness import environment, save_result
from kernel_suites import attention_kinds, training_ops, varlen_attention, vision_ops
from kernel_suites.bench import HEADS, WIDTH, Bench

PARTS: dict[str, Callable[[Bench], None]] = {
    "agreement": varlen_attention.measure_agreement,
    "workload": varlen_attention.measure_workload,
    **{f"tiles-{kernel}": partial(varlen_attention.measure_tiles, kernel=kernel) for kernel in varlen_attention.TILES},
    "slots": varlen_attention.measure_slots,
    "lengths": varlen_attention.measure_lengths,
    "routing": attention_kinds.measure_routing,
    "linear": attention_kinds.measure_linear,
    "add-norm": training_ops.measure_add_norm,
    "embedding": training_ops.measure_embedding,
    "bias-gradient": training_ops.measure_bias_gradient,
    "relu-backward": training_ops.measure_relu_backward,
    "weight-gradient": training_ops.measure_weight_gradient,
    "feed-forward": training_ops.measure_feed_forward,
    "cross-entropy": training_ops.measure_cross_entropy,
    "stem": vision_ops.measure_stem,
    "rotary": vision_ops.measure_rotary,
}


def compile_kernels(options: Sequence[str], parts: Sequence[str]) -> None:
    """Fill Triton's cache: run every part in its own process, with one call each."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, *options, "--compile-only", "--parts", part],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for part in parts
    ]
    for process in processes:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--libraries", type=Path, help="folder of other libraries")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shared = ["--device", options.device, "--tokens", str(options.tokens)]
    if options.libraries is not None:
        sys.path.append(str(options.libraries))
        shared += ["--libraries", str(options.libraries)]
    start = time.perf_counter()
    if not options.compile_only and options.device != "cpu":
        compile_kernels(shared, options.parts)
        print(f"compiled in {time.perf_counter() - start:.0f} s", flush=True)
    bench = Bench(options.device, options.tokens, options.compile_only)
    for part in options.parts:
        try:
            PARTS[part](bench)
        except Exception as error:
            bench.add(part, "all", error=f"{type(error).__name__}: {error}"[:300])
    if options.out is not None:
        result = {
            "what": f"{options.tokens:,} tokens, {HEADS} heads of {WIDTH}, bfloat16, lengths lognormal with median 22; "
            "milliseconds of forward, and of forward and backward; errors relative to float64",
            **environment(options.device),
            "rows": bench.rows,
        }
        save_result(result, options.out)
    if not options.compile_only:
        print(f"{time.perf_counter() - start:.0f} s in total")


if __name__ == "__main__":
    main()
