"""Training steps of Transformer-base next to Marian of transformers and nn.Transformer, eager and compiled.

    python benchmarks/training.py --device cuda [--systems NAME ...] [--merge] [--profile] [--largest] [--curve]
    python benchmarks/training.py --device cpu --preset small --alternate

6+6 layers, width 512, 8 heads, vocabulary 32,000 with tied embeddings, dropout 0.1, label smoothing 0.1; lognormal
sentence lengths with median 22; about 25,000 target tokens per batch; bfloat16 autocast and fused AdamW on a GPU,
float32 on a CPU. Batches are on the device before timing starts. Every system runs in its own process with a time
limit; if it fails, its results so far are kept. Tokens are real target tokens, times are medians, and the warm-up is
the additional time of the first steps.

--merge keeps the other rows of the result file, so that several calls can share the work. --profile adds the kernels of
a step, --largest the largest batch that fits into memory. --curve compares losses of 500 steps on the built-in corpus
between the fastest system and the float32 reference, with three seeds of dropout each. With --alternate, systems
alternate step by step in one process, which reduces the effect of other load. --quick uses a tiny model.

Writes benchmarks/results/training-gpu.json, -cpu.json or -curve.json, or --out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from harness import RESULTS, environment, save_result, synchronize
from training_measurement import STEPS_PER_POINT, Measurement
from training_systems import SIZES, SYSTEMS, Trainer
from training_workload import Workload

NAMES = (
    "regard-captured-bf16",
    "regard-captured-bf16-dropouts",
    "regard-captured",
    "regard-compiled",
    "regard-packed-kernels",
    "regard-packed",
    "regard-packed-dropouts",
    "regard-padded",
    "marian",
    "nn",
    "marian-compiled",
    "nn-compiled",
)
FASTEST, REFERENCE = "regard-captured-bf16", "reference"
ALTERNATING = ("regard-padded", "regard-packed", "regard-packed-dropouts", "nn")
CURVES = ((FASTEST, 1), (REFERENCE, 1), (REFERENCE, 2), (FASTEST, 2), (REFERENCE, 3), (FASTEST, 3))
"""System and seed; the first curves can already be compared."""
WARM_UP = 2
Row = dict[str, Any]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base", choices=SIZES)
    parser.add_argument("--systems", nargs="+", choices=NAMES, metavar="NAME", help="all by default")
    parser.add_argument("--tokens", type=int, default=25_344, help="positions of each side of a batch")
    parser.add_argument("--batches", type=int, default=16, help="number of different batches")
    parser.add_argument("--steps", type=int, default=48, help="number of timed steps")
    parser.add_argument("--limit", type=int, default=150, help="time limit of each system in seconds")
    parser.add_argument("--profile", action="store_true", help="also profile a step")
    parser.add_argument("--largest", action="store_true", help="also find the largest batch that fits into memory")
    parser.add_argument("--curve", action="store_true", help="only compare losses with the float32 reference")
    parser.add_argument("--alternate", action="store_true", help="alternate systems in one process")
    parser.add_argument("--merge", action="store_true", help="keep the other rows of the result file")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.curve_steps, options.curve_tokens = 500, 8192
    if options.quick:
        options.preset, options.tokens, options.batches, options.steps = "toy", 256, 3, 6
        options.curve_steps, options.curve_tokens = 20, 128
    return options


def measure_alternating(names: list[str], options: argparse.Namespace) -> list[Row]:
    """Alternate systems step by step, on padded or packed batches of the same sentences."""
    device, size = torch.device(options.device), SIZES[options.preset]
    workload = Workload(size.vocab, options.tokens, options.batches, device)
    batches = workload.make("padded")
    trainers = {name: Trainer(SYSTEMS[name], size, device) for name in names}
    prepared = {
        name: [
            workload.pack(batch) if SYSTEMS[name].layout == "packed" else SYSTEMS[name].prepare(batch)
            for batch in batches
        ]
        for name in names
    }
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for step in range(options.steps + WARM_UP):
        index = step % len(batches)
        for name in names if step % 2 else names[::-1]:
            start = time.perf_counter()
            trainers[name].step(batches[index], prepared[name][index])
            synchronize(device)
            if step >= WARM_UP:
                speeds[name].append(batches[index].count / (time.perf_counter() - start))
    return [describe_system(name) | {"tokens_per_second": round(median(speeds[name]))} for name in names]


def describe_system(name: str) -> Row:
    system = SYSTEMS[name]
    return {"name": name, "other_library": system.other_library, "dropouts": system.dropouts}


def run_child(name: str, options: argparse.Namespace, seed: int = 0) -> Row:
    """Measure a system in its own process; its results are kept even if it fails later."""
    print(f"{name}, seed {seed}" if options.curve else name, flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        out, errors = folder / "row.json", folder / "errors.txt"
        arguments = [*sys.argv[1:], "--child", name, "--seed", str(seed), "--out", str(out)]
        # Separate caches, so that no system profits from kernels compiled for another.
        caches = {key: str(folder / key) for key in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        variables = os.environ | caches | {"REGARD_KERNELS": "1" if SYSTEMS[name].kernels else "0"}
        with errors.open("wb") as stderr:
            child = subprocess.Popen(
                [sys.executable, __file__, *arguments], env=variables, stderr=stderr, process_group=0
            )
            failure = wait_for(child, options.limit)
        if failure:
            text = errors.read_text("utf-8", "replace").strip()
            print(text[-3000:], flush=True)
            last_line = (text.splitlines() or [""])[-1][:300] if child.returncode > 0 else ""
            failure = f"{failure}: {last_line}" if last_line else failure
        row: Row = json.loads(out.read_text("utf-8")) if out.exists() else {}
    return describe_system(name) | row | ({"error": failure} if failure else {})


def wait_for(child: subprocess.Popen[bytes], limit: float) -> str:
    """Wait for a process, end its process group, and return the reason if it failed."""
    try:
        status: int | None = child.wait(limit)
    except subprocess.TimeoutExpired:
        status = None
    finally:  # also after Ctrl-C; workers of a compiler outlive their parent
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if status is None:
        return f"not finished after {limit:.0f} s"
    return f"exit status {status}" if status else ""


def print_rows(rows: list[Row]) -> None:
    from reports.training import compare

    columns = {
        "tokens/s": "tokens_per_second",
        "ms": "step_ms",
        "TFLOP/s": "tflops",
        "warm-up": "warm_up_s",
        "KiB/token": "step_kib_per_token",
        "largest": "largest_batch_tokens",
        "positions": "largest_batch_positions",
        "dropouts": "dropouts",
    }
    print(f"{'':30} " + " ".join(f"{title:>11}" for title in columns))
    for row in rows:
        values = " ".join(f"{row.get(key, '')!s:>11}" for key in columns.values())
        print(f"{row['name']:30} {values} {row.get('error', '')}", flush=True)
    for sentence in compare(rows):
        print(sentence, flush=True)


def compare_curves(rows: list[Row]) -> Row:
    """Return distances between loss curves of regard and the reference, and between seeds of the reference.

    Mean distances are over the second half of the steps that all curves have, maxima over all of these steps.
    """
    curves = {row["name"]: row["losses"] for row in rows if row.get("losses")}
    ours = [losses for name, losses in curves.items() if name.startswith(FASTEST)]
    references = [losses for name, losses in curves.items() if name.startswith(REFERENCE)]
    shortest = min(map(len, curves.values()), default=0)

    def distances(one: list[float], other: list[float]) -> list[float]:
        return [abs(a - b) for a, b in zip(one[:shortest], other[:shortest], strict=True)]

    groups = {
        "two_seeds": [distances(*pair) for pair in combinations(references, 2)],
        "ours": [distances(*pair) for pair in product(ours, references)],
    }
    result: Row = {}
    for name, pairs in groups.items():
        if pairs:
            result[f"mean_distance_of_{name}"] = round(mean(mean(pair[shortest // 2 :]) for pair in pairs), 4)
            result[f"largest_distance_of_{name}"] = round(max(map(max, pairs)), 4)
    return result | ({"compared_steps": STEPS_PER_POINT * shortest} if result else {})


class Results:
    """The result file, which is written after every row."""

    def __init__(self, options: argparse.Namespace) -> None:
        device = torch.device(options.device)
        name = "curve" if options.curve else "gpu" if device.type == "cuda" else device.type
        self.path = options.out or RESULTS / f"training-{name}.json"
        self.has_curves = options.curve
        before = json.loads(self.path.read_text("utf-8")) if options.merge and self.path.exists() else {}
        current = environment(device, *(["transformers"] if find_spec("transformers") else []))
        command = current.pop("command")
        if before and (before["machine"], before["versions"]["torch"]) != (current["machine"], torch.__version__):
            sys.exit(f"{self.path} was measured on another machine or with another PyTorch; omit --merge")
        self.result: dict[str, Any] = {
            "what": describe(options),
            "rows": [{"date": before["date"]} | row for row in before.get("rows", [])],
            **current,
            "commands": [*before.get("commands", []), command],
        }
        self.result |= {"note": before["note"]} if "note" in before else {}

    def add(self, row: Row) -> None:
        """Add a row, or replace the row of the same name."""
        others = [other for other in self.result["rows"] if other["name"] != row["name"]]
        self.result["rows"] = [*others, row | {"date": self.result["date"]}]
        if self.has_curves:
            self.result["distances"] = compare_curves(self.result["rows"])
        save_result(self.result, self.path)


def describe(options: argparse.Namespace) -> str:
    steps, tokens = "training steps", options.tokens
    if options.curve:
        steps, tokens = f"{options.curve_steps} steps on the built-in corpus", options.curve_tokens
    return f"{steps} of {options.preset} size, at most {tokens:,} positions on either side of a batch"


def main() -> None:
    options = parse_options()
    if options.child:
        measurement = Measurement(options)
        if options.curve:
            measurement.measure_curve()
        else:
            measurement.measure()
        sys.stdout.flush()
        os._exit(0)  # after a failed capture, the destructors of CUDA graphs may raise
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # `wait_for` then ends the child
    results = Results(options)
    if options.curve:
        for name, seed in CURVES:
            results.add(run_child(name, options, seed) | {"name": f"{name} {seed}"})
            print(results.result["distances"], flush=True)
        return
    if options.alternate:
        for row in measure_alternating(list(options.systems or ALTERNATING), options):
            results.add(row)
    else:
        for name in options.systems or NAMES:
            results.add(run_child(name, options))
    print_rows(results.result["rows"])


if __name__ == "__main__":
    main()
