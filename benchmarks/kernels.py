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
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # this checkout, whatever else is installed

from kernel_suites import beside, feed, kinds, pictures, sequences, tokens  # noqa: E402
from kernel_suites.bench import HEADS, WIDTH, Bench  # noqa: E402

PARTS: dict[str, Callable[[Bench], None]] = {
    "agreement": sequences.measure_agreement,
    "workload": sequences.measure_workload,
    **{f"tiles-{kernel}": partial(sequences.measure_tiles, kernel=kernel) for kernel in sequences.TILES},
    "slots": sequences.measure_slots,
    "norms": beside.measure_norms,
    "embedding": tokens.measure_embedding,
    "biases": beside.measure_biases,
    "relu": beside.measure_relu,
    "feed-forward": feed.measure_feed_forward,
    "weights": beside.measure_weights,
    "head": beside.measure_head,
    "lengths": sequences.measure_lengths,
    "routing": kinds.measure_routing,
    "linear": kinds.measure_linear,
    "stem": pictures.measure_stem,
    "turning": pictures.measure_turning,
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


def name_command(words: Sequence[str]) -> str:
    """What measures it again; folders of this machine are of no use elsewhere."""
    places = {"--peers": "FOLDER", "--out": "FILE"}
    named = [places.get(before, word) for before, word in pairwise(["", *words])]
    return " ".join(["python benchmarks/kernels.py", *named])


def about(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "what": f"{options.tokens:,} tokens, {HEADS} heads of {WIDTH}, bfloat16, lengths lognormal with median 22; "
        "milliseconds of forward, and of forward and backward; errors relative to float64",
        "machine": torch.cuda.get_device_name(options.device) if options.device != "cpu" else os.uname().machine,
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": name_command(sys.argv[1:]),
    }


if __name__ == "__main__":
    main()
