"""Training steps of Transformer-base beside Hugging Face's Marian and nn.Transformer, eager and compiled.

    python benchmarks/training.py --device cuda [--who NAME ...] [--merge] [--profile] [--largest] [--curve]
    python benchmarks/training.py --device cpu --preset small --together

6+6 layers, width 512, 8 heads, 32,000 words with tied embeddings, dropout 0.1, label smoothing 0.1; sentence lengths
lognormal with median 22; about 25,000 target tokens a batch; bfloat16 autocast and fused AdamW on a GPU, float32 on a
CPU. Batches lie on the device before anything is timed. Every contender has a process and a time limit of its own, and
what one of them has found is kept though it or another fails. A step's tokens are the real target tokens; its time is
the median; warm-up is what the first steps took beyond that.

--who chooses contenders, --within is the time for all of them, and --merge keeps the earlier rows of the file, so that
several calls can share the work. --profile adds the kernels of a step, --largest the largest batch that fits. --curve
trains 500 steps on the built-in corpus, our fastest path and the float32 reference, each with three seeds of dropout.
With --together systems share one process and alternate step by step, which suits a busy machine. --quick uses a tiny
model, to see that the script runs.

Writes benchmarks/results/training-gpu.json, -cpu.json or -curve.json, or --out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from itertools import combinations, product
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # this checkout, whatever else is installed

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
FASTEST = "regard-captured-bf16"
TOGETHER = ("regard-padded", "regard-packed", "regard-packed-dropouts", "nn")
REFERENCE = "reference"
CURVES = ((FASTEST, 1), (REFERENCE, 1), (REFERENCE, 2), (FASTEST, 2), (REFERENCE, 3), (FASTEST, 3))
"""Who, and from which seed, in an order that leaves something to compare when time runs out."""
TENS = 10
"""Steps that share a figure of a curve."""
SHORTEST = 15
"""Seconds with less of which nobody need begin."""
Row = dict[str, Any]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Training steps beside Marian and nn.Transformer.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base", choices=("base", "small", "toy"))
    parser.add_argument("--who", nargs="+", choices=NAMES, default=None, help="all unless given")
    parser.add_argument("--tokens", type=int, default=25_344, help="places of each side of a batch")
    parser.add_argument("--batches", type=int, default=16, help="different ones, read again and again")
    parser.add_argument("--steps", type=int, default=48, help="that are timed")
    parser.add_argument("--limit", type=int, default=150, help="seconds that each contender may take")
    parser.add_argument("--within", type=int, default=86_400, help="seconds that all of them may take")
    parser.add_argument("--profile", action="store_true", help="also say what a step spends its time on")
    parser.add_argument("--largest", action="store_true", help="also find the largest batch that fits")
    parser.add_argument("--curve", action="store_true", help="only compare losses with the float32 reference")
    parser.add_argument("--curve-steps", type=int, default=500)
    parser.add_argument("--curve-tokens", type=int, default=8192, help="places of each side of a batch")
    parser.add_argument("--together", action="store_true", help="contenders take turns in one process")
    parser.add_argument("--merge", action="store_true", help="keep the other rows of the file")
    parser.add_argument("--quick", action="store_true", help="toy sizes")
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.quick:
        options.preset, options.tokens, options.batches, options.steps = "toy", 256, 3, 6
        options.curve_steps, options.curve_tokens = 20, 128
    return options


# Contenders that take turns in one process


def measure_together(names: list[str], options: argparse.Namespace) -> list[Row]:
    """Step by step in turns, every one on batches of the same sentences, padded or packed as it likes."""
    import torch
    from training_systems import CONTENDERS, SIZES, Trainer
    from training_workload import Workload

    device, size = torch.device(options.device), SIZES[options.preset]
    workload = Workload(size.vocab, options.tokens, options.batches, device)
    batches = workload.make("padded")
    trainers = {name: Trainer(CONTENDERS[name], size, device) for name in names}
    read = {name: [CONTENDERS[name].prepare(batch) for batch in batches] for name in names}
    for name in names:
        if CONTENDERS[name].layout == "packed":
            read[name] = [workload.pack(batch) for batch in batches]
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.steps + 2):
        place = number % len(batches)
        for name in names if number % 2 else names[::-1]:
            begin = time.perf_counter()
            trainers[name].step(batches[place], read[name][place])
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number >= 2:
                times[name].append(batches[place].count / (time.perf_counter() - begin))
    found = {name: round(median(rates)) for name, rates in times.items()}
    return [
        {"name": name, "tokens_per_second": rate, "peer": CONTENDERS[name].peer, "dropouts": CONTENDERS[name].dropouts}
        for name, rate in found.items()
    ]


# In the process that waits for them


class Deadline:
    """When all must be done; a signal to end is the same as time that has run out."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "end", 0.0))

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


def run_child(name: str, options: argparse.Namespace, deadline: Deadline, *further: str) -> Row:
    """One contender in a process of its own; whatever it found before it failed is kept."""
    from training_systems import CONTENDERS

    limit = min(options.limit, int(deadline.left))
    print(f"{name} {' '.join(further)}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        out, errors = folder / "row.json", folder / "errors.txt"
        same = ["--device", options.device, "--preset", options.preset, "--tokens", str(options.tokens)]
        same += ["--batches", str(options.batches), "--steps", str(options.steps), "--limit", str(limit)]
        same += ["--curve-steps", str(options.curve_steps), "--curve-tokens", str(options.curve_tokens)]
        same += [f"--{flag}" for flag in ("profile", "largest", "curve") if getattr(options, flag)]
        command = [sys.executable, str(Path(__file__)), "--child", name, "--out", str(out), *same, *further]
        # Caches of its own: whoever comes second must not warm up at the expense of the first.
        caches = {key: str(folder / key) for key in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        environment = os.environ | caches | {"REGARD_KERNELS": "1" if CONTENDERS[name].kernels else "0"}
        with errors.open("wb") as said:
            child = subprocess.Popen(command, env=environment, stderr=said, process_group=0)
            failure = wait_for(child, limit, deadline)
        said_last = errors.read_text("utf-8", "replace").strip()
        if failure:
            print(said_last[-3000:], flush=True)  # where it was
            last = (said_last.splitlines() or [""])[-1] if child.returncode > 0 else ""
            failure = f"{failure}: {last[:300]}" if last else failure
        row: Row = json.loads(out.read_text("utf-8")) if out.exists() else {"name": name}
    contender = CONTENDERS[name]
    return row | ({"error": failure} if failure else {}) | {"peer": contender.peer, "dropouts": contender.dropouts}


def wait_for(child: subprocess.Popen[bytes], limit: float, deadline: Deadline) -> str:
    """Why it came to no good end, if so; when its time or the waiting is over, it ends with all that it started."""
    begin = time.monotonic()
    try:
        while child.poll() is None and time.monotonic() < begin + limit and deadline.left > 0:
            time.sleep(0.2)
        late = child.poll() is None
    finally:  # Ctrl-C reaches this process alone
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # a compiler's workers outlive it
        status = child.wait()
    if late:
        return f"not done after {time.monotonic() - begin:.0f} s"
    return f"exit status {status}" if status else ""


def show(rows: list[Row]) -> None:
    """All rows side by side, and how ours compare with the best of the peers."""
    from reports.training import compare

    columns = {
        "tokens/s": "tokens_per_second",
        "ms": "step_ms",
        "TFLOP/s": "tflops",
        "warm-up": "warm_up_s",
        "KiB/token": "step_kib_per_token",
        "largest": "largest_batch_tokens",
        "its places": "largest_batch_places",
        "dropouts": "dropouts",
    }
    print(f"{'':30} " + " ".join(f"{title:>11}" for title in columns))
    for row in rows:
        figures = " ".join(f"{row.get(key, '')!s:>11}" for key in columns.values())
        print(f"{row['name']:30} {figures} {row.get('error', '')}", flush=True)
    for sentence in compare(rows):
        print(sentence, flush=True)


def compare_curves(rows: list[Row]) -> Row:
    """How far ours lie from the reference, beside how far seeds of the reference lie apart, in means of ten.

    Means are over the second half, the largest distance over all, of as many steps as all have gone.
    """
    curves = {row["name"]: row["losses"] for row in rows if row.get("losses")}
    ours = [losses for name, losses in curves.items() if name.startswith(FASTEST)]
    references = [losses for name, losses in curves.items() if name.startswith(REFERENCE)]
    shortest = min(map(len, curves.values()), default=0)

    def measure(one: list[float], other: list[float]) -> list[float]:
        return [abs(a - b) for a, b in zip(one[:shortest], other[:shortest], strict=True)]

    found = {
        "two_seeds": [measure(*pair) for pair in combinations(references, 2)],
        "ours": [measure(*pair) for pair in product(ours, references)],
    }
    distances: Row = {}
    for who, apart in found.items():
        if apart:
            distances[f"mean_distance_of_{who}"] = round(mean(mean(one[shortest // 2 :]) for one in apart), 4)
            distances[f"largest_distance_of_{who}"] = round(max(map(max, apart)), 4)
    return distances | ({"compared_steps": TENS * shortest} if distances else {})


def command() -> str:
    """The command line without the output file."""
    words = ["python benchmarks/training.py"]
    given = iter(part for word in sys.argv[1:] for part in (word.split("=", 1) if word.startswith("--") else [word]))
    for word in given:
        if word == "--out":
            next(given)
        else:
            words.append(word)
    return " ".join(words)


class Results:
    """The file, which is written anew whenever something is found."""

    def __init__(self, options: argparse.Namespace) -> None:
        import stubs  # noqa: F401  # before anything imports regard
        import torch

        from regard.evaluation.bench.environment import describe_machine

        device = torch.device(options.device)
        name = "curve" if options.curve else "gpu" if device.type == "cuda" else device.type
        self.file = options.out or HERE / "results" / f"training-{name}.json"
        self.curves = options.curve
        before = json.loads(self.file.read_text("utf-8")) if options.merge and self.file.exists() else {}
        machine = describe_machine(device)
        if before and (before["machine"], before["versions"]["torch"]) != (machine, torch.__version__):
            sys.exit(
                f"{self.file}: is of another machine or PyTorch, beside which times say nothing; leave --merge out"
            )
        self.all: dict[str, Any] = {
            "what": describe(options),
            "rows": [{"date": before["date"]} | row for row in before.get("rows", [])],
            "machine": machine,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commands": [*before.get("commands", []), command()],
        }
        self.all |= {"note": before["note"]} if "note" in before else {}
        if find_spec("transformers") is None:
            print("transformers is not installed: Marian cannot take part", flush=True)
        else:
            self.all["versions"]["transformers"] = version("transformers")

    def keep(self, row: Row) -> None:
        """Puts a row in the place of the one of its name."""
        others = [old for old in self.all["rows"] if old["name"] != row["name"]]
        self.all["rows"] = [*others, row | {"date": self.all["date"]}]
        if self.curves:
            self.all["distances"] = compare_curves(self.all["rows"])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.all, indent=1) + "\n", encoding="utf-8")


def describe(options: argparse.Namespace) -> str:
    steps, tokens = "training steps", options.tokens
    if options.curve:
        steps, tokens = f"{options.curve_steps} steps on the built-in corpus", options.curve_tokens
    return f"{steps} of {options.preset} size, at most {tokens:,} places on either side of a batch"


def main() -> None:
    options = parse()
    if options.child:
        from training_measurement import work_as_child

        work_as_child(options)
        sys.stdout.flush()
        os._exit(0)  # what a recording that failed left behind must not spoil the end
    deadline, results = Deadline(options.within), Results(options)
    if options.together:
        for row in measure_together(list(options.who or TOGETHER), options):
            results.keep(row)
    elif options.curve:
        for name, seed in CURVES:
            title = f"{name} {seed}"
            if has_time(title, deadline):
                results.keep(run_child(name, options, deadline, "--seed", str(seed)) | {"name": title})
                print(results.all["distances"], flush=True)
        return
    else:
        for name in options.who or NAMES:
            if has_time(name, deadline):
                results.keep(run_child(name, options, deadline))
    show(results.all["rows"])


def has_time(name: str, deadline: Deadline) -> bool:
    """Whether somebody can still begin; if not, it is said."""
    if deadline.left >= SHORTEST:
        return True
    print(f"{name}: no time left", flush=True)
    return False


if __name__ == "__main__":
    main()
