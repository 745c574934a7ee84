"""Training steps of Transformer-base beside Hugging Face's Marian and nn.Transformer, eager and compiled.

    python benchmarks/training.py --device cuda [--who NAME ...] [--merge] [--profile] [--largest] [--curve]
    python benchmarks/training.py --device cpu --preset small --together

6+6 layers, width 512, 8 heads, 32,000 words with tied embeddings, dropout 0.1, label smoothing 0.1; sentence lengths
lognormal with median 22; about 25,000 target tokens a batch; bfloat16 autocast and fused AdamW on a GPU, float32 on a
CPU. Batches lie on the device before anything is timed. Every contender has a process and a time limit of its own, and
what one of them has found is kept though it or another fails. A step's tokens are the real target tokens; its time is
the median; warm-up is what the first steps took beyond that.

--who chooses contenders, and --merge keeps the earlier rows of the file, so that several calls can share the work.
--profile adds the kernels of a step, --largest the largest batch that fits, by doubling. --curve trains 500 steps on
small batches: our fastest path beside the float32 reference with two seeds. With --together contenders share one
process and take turns, step by step, as a busy machine wants it. --quick is a toy, to see that the script runs.

Writes benchmarks/results/training-gpu.json or -cpu.json, or --out.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # this checkout, whatever else is installed

WARM_UP = 10
TRACED = 3
TOP = 40
DOUBLINGS = 8
NAMES = (
    "regard-padded",
    "regard-packed",
    "regard-packed-dropouts",
    "regard-packed-kernels",
    "regard-recorded",
    "regard-recorded-half",
    "regard-compiled-plain",
    "regard-compiled-short",
    "regard-compiled",
    "regard-both",
    "regard-both-half",
    "regard-both-half-dropouts",
    "marian",
    "marian-compiled",
    "nn",
    "nn-compiled",
)
FASTEST = "regard-recorded-half"
TOGETHER = ("regard-padded", "regard-packed", "regard-packed-dropouts", "nn")
CURVES = {"reference 1": ("reference", 1), "reference 2": ("reference", 2), FASTEST: (FASTEST, 1)}
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
    parser.add_argument("--profile", action="store_true", help="also say what a step spends its time on")
    parser.add_argument("--largest", action="store_true", help="also find the largest batch, by doubling")
    parser.add_argument("--curve", action="store_true", help="only compare losses with the float32 reference")
    parser.add_argument("--curve-steps", type=int, default=500)
    parser.add_argument("--curve-tokens", type=int, default=2048)
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


# In the process of a contender


class Measuring:
    """A contender at work; writes what it finds to a file as soon as it is known."""

    def __init__(self, name: str, options: argparse.Namespace, out: Path) -> None:
        import torch
        from training_contenders import CONTENDERS, SIZES, Trainer, Workload

        self.torch, self.options, self.out = torch, options, out
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.contender, self.size = CONTENDERS[name], SIZES[options.preset]
        self.new_trainer, self.new_workload = Trainer, Workload
        self.row: Row = {"name": name}

    def note(self, **found: Any) -> None:
        self.row |= found
        self.out.write_text(json.dumps(self.row), encoding="utf-8")
        brief = {key: value for key, value in found.items() if not isinstance(value, (list, dict))}
        if brief:
            print("   ", *(f"{key}={value}" for key, value in brief.items()), flush=True)

    def batches(self, tokens: int, number: int, seed: int = 0) -> list[tuple[Any, Any]]:
        made = self.new_workload(self.size.vocab, tokens, number, self.device, seed).make(self.contender.layout)
        return [(batch, self.contender.prepare(batch)) for batch in made]

    def wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def measure(self) -> None:
        options = self.options
        batches = self.batches(options.tokens, options.batches)
        counts = [batch.count for batch, _ in batches]
        self.note(tokens=round(mean(counts)), places=batches[0][0].places)
        trainer = self.new_trainer(self.contender, self.size, self.device)
        turns = cycle(batches)
        begin = time.perf_counter()
        loss = trainer.step(*next(turns))
        self.wait()
        self.note(first_step_s=round(time.perf_counter() - begin, 1), first_loss=round(loss.item(), 3))
        for turn in islice(turns, WARM_UP - 1):
            trainer.step(*turn)
        self.wait()
        warm = time.perf_counter() - begin
        held = self.torch.cuda.memory_allocated() if self.cuda else 0
        if self.cuda and not self.contender.record:  # what replays what was recorded asks for no memory any more
            self.torch.cuda.reset_peak_memory_stats()
        times, done = self.clock(trainer, turns, options.steps)
        rates = [batch.count / seconds for (batch, _), seconds in zip(done, times, strict=True)]
        flops = [self.size.flops(batch) / seconds / 1e12 for (batch, _), seconds in zip(done, times, strict=True)]
        self.note(
            tokens_per_second=round(median(rates)),
            slowest=round(min(rates)),
            fastest=round(max(rates)),
            mean_tokens_per_second=round(sum(batch.count for batch, _ in done) / sum(times)),
            step_ms=round(1000 * median(times), 2),
            tflops=round(median(flops), 1),
            warm_up_s=round(max(0.0, warm - WARM_UP * median(times)), 1),
            last_loss=round(trainer.step(*next(turns)).item(), 3),
        )
        if self.cuda:
            peak = self.torch.cuda.max_memory_allocated()
            per_token = (peak - held) / max(counts)
            self.note(peak_gib=round(peak / 2**30, 2), step_kib_per_token=round(per_token / 1024, 1))
        if options.profile:
            self.profile(trainer, turns)
        if options.largest:
            self.note(**self.find_largest(trainer))

    def clock(self, trainer: Any, turns: Iterator[Any], steps: int) -> tuple[list[float], list[Any]]:
        """Seconds of each step, by events in the device's stream, without waiting in between."""
        done = list(islice(turns, steps))
        if not self.cuda:
            times = []
            for turn in done:
                begin = time.perf_counter()
                trainer.step(*turn)
                times.append(time.perf_counter() - begin)
            return times, done
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
        self.wait()
        events[0].record()
        for turn, event in zip(done, events[1:], strict=True):
            trainer.step(*turn)
            event.record()
        self.wait()
        return [one.elapsed_time(other) / 1000 for one, other in pairwise(events)], done

    def profile(self, trainer: Any, turns: Iterator[Any]) -> None:
        """Kernels of a step by time, launches, the host's time, and how long the device had nothing to do."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        self.wait()
        begin = time.perf_counter()
        for turn in islice(turns, TRACED):
            trainer.step(*turn)
        host = time.perf_counter() - begin
        self.wait()
        whole = time.perf_counter() - begin
        self.note(host_ms=round(1000 * host / TRACED, 2), whole_ms=round(1000 * whole / TRACED, 2))
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.cuda else [])]
        with profile(activities=kinds) as traced:
            for turn in islice(turns, TRACED):
                trainer.step(*turn)
            self.wait()
        averages = traced.key_averages()
        calls = Counter({row.key: row.count for row in averages})
        launches = sum(n for name, n in calls.items() if "LaunchKernel" in name or "GraphLaunch" in name)
        time_of = "self_device_time_total" if self.cuda else "self_cpu_time_total"
        # Of operators and of marks round them the device has times, too, but those are the times of their kernels.
        where = DeviceType.CUDA if self.cuda else DeviceType.CPU
        rows = [row for row in averages if row.device_type == where and not row.is_user_annotation]
        rows.sort(key=lambda row: -getattr(row, time_of))
        kernels = [
            {"ms": round(getattr(row, time_of) / 1000 / TRACED, 3), "calls": row.count / TRACED, "name": row.key[:110]}
            for row in rows[:TOP]
        ]
        busy = sum(getattr(row, time_of) for row in rows) / 1000 / TRACED
        idle = max(0.0, 1000 * whole / TRACED - busy)
        self.note(launches=launches / TRACED, kernels_ms=round(busy, 2), idle_ms=round(idle, 2), kernels=kernels)
        for kernel in kernels:
            print(f"    {kernel['ms']:8.3f} ms {kernel['calls']:7.1f} x  {kernel['name']}", flush=True)

    def find_largest(self, trainer: Any) -> Row:
        """The most target tokens of a batch that go through two steps."""
        found: Row = {}
        tokens = self.options.tokens
        for _ in range(DOUBLINGS):
            try:
                batches = self.batches(tokens, 1)
                for _ in range(2):
                    trainer.step(*batches[0])
                self.wait()
            except self.torch.OutOfMemoryError:
                break
            except Exception as error:  # some kernels count in 32 bits
                found |= {"largest_stopped_by": f"{type(error).__name__}: {str(error)[:120]}"}
                break
            peak = self.torch.cuda.max_memory_allocated() if self.cuda else 0
            found |= {"largest_batch_tokens": batches[0][0].count, "largest_peak_gib": round(peak / 2**30, 1)}
            self.note(**found)
            tokens *= 2
        return found

    def curve(self) -> None:
        """The mean loss of every ten steps."""
        options = self.options
        batches = self.batches(options.curve_tokens, options.curve_steps, seed=5)
        trainer = self.new_trainer(self.contender, self.size, self.device, options.seed, lr=5e-4)
        begin, losses = time.perf_counter(), []
        for number, turn in enumerate(batches, start=1):
            trainer.set_rate(5e-4 * min(1, number / 100))
            losses.append(trainer.step(*turn))
        values = self.torch.stack(losses).tolist()
        tens = [round(mean(values[i : i + 10]), 4) for i in range(0, len(values), 10)]
        self.note(seconds=round(time.perf_counter() - begin, 1), last=tens[-1], losses=tens)


def work_as_child(options: argparse.Namespace) -> None:
    faulthandler.dump_traceback_later(0.9 * options.limit)  # says where it is before it is ended
    measuring = Measuring(options.child, options, options.out)
    if options.curve:
        measuring.curve()
    else:
        measuring.measure()


# Contenders that take turns in one process


def measure_together(names: list[str], options: argparse.Namespace) -> list[Row]:
    """Step by step in turns, every one on batches of the same sentences, padded or packed as it likes."""
    import torch
    from training_contenders import CONTENDERS, SIZES, Trainer, Workload

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
    rows = [{"name": name, "tokens_per_second": rate, "peer": CONTENDERS[name].peer} for name, rate in found.items()]
    for row in rows:
        print(f"{row['name']:26} {row['tokens_per_second']:>9,} tokens/s", flush=True)
    return rows


# In the process that waits for them


def run_child(name: str, options: argparse.Namespace, *further: str) -> Row:
    """One contender in a process of its own; whatever it found before it failed is kept."""
    from training_contenders import CONTENDERS

    print(f"{name} {' '.join(further)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        same = ["--device", options.device, "--preset", options.preset, "--tokens", str(options.tokens)]
        same += ["--batches", str(options.batches), "--steps", str(options.steps), "--limit", str(options.limit)]
        same += ["--curve-steps", str(options.curve_steps), "--curve-tokens", str(options.curve_tokens)]
        same += [f"--{flag}" for flag in ("profile", "largest", "curve") if getattr(options, flag)]
        command = [sys.executable, str(Path(__file__)), "--child", name, "--out", str(out), *same, *further]
        caches = {key: str(Path(folder) / key) for key in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        # Caches of its own: whoever comes second must not warm up at the expense of the first.
        environment = os.environ | caches | {"REGARD_KERNELS": "1" if CONTENDERS[name].kernels else "0"}
        failure = {}
        try:
            done = subprocess.run(command, env=environment, timeout=options.limit, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                print(done.stderr[-3000:], flush=True)
                last = (done.stderr.strip().splitlines() or [""])[-1]
                failure = {"error": f"exit status {done.returncode}: {last[:300]}"}
        except subprocess.TimeoutExpired as late:
            print((late.stderr or b"").decode()[-3000:], flush=True)  # where it was
            failure = {"error": f"not done after {options.limit} s"}
        row: Row = json.loads(out.read_text("utf-8")) if out.exists() else {"name": name}
    return row | failure | {"peer": CONTENDERS[name].peer}


def show(rows: list[Row]) -> None:
    columns = ("tokens_per_second", "step_ms", "tflops", "warm_up_s", "step_kib_per_token", "largest_batch_tokens")
    print(f"{'':26} " + " ".join(f"{column:>20}" for column in columns))
    for row in rows:
        figures = " ".join(f"{row.get(column, '')!s:>20}" for column in columns)
        print(f"{row['name']:26} {figures} {row.get('error', '')}", flush=True)
    ours = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row and not row.get("peer")]
    theirs = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row and row.get("peer")]
    if ours and theirs:
        print(f"best of ours over best of peers: {max(ours) / max(theirs):.2f}", flush=True)


def compare_curves(rows: list[Row]) -> Row:
    """How far ours lies from the reference, beside how far two seeds of the reference lie apart, in means of ten."""
    curves = {row["name"]: row["losses"] for row in rows if "losses" in row}
    if len(curves) < len(CURVES):
        return {}
    one, other, ours = (curves[name] for name in CURVES)
    half = len(one) // 2
    seeds = [abs(a - b) for a, b in zip(one, other, strict=True)]
    apart = [abs(a - b) for a, b in zip(one, ours, strict=True)]
    return {
        "mean_distance_of_two_seeds": round(mean(seeds[half:]), 4),
        "mean_distance_of_ours": round(mean(apart[half:]), 4),
        "largest_distance_of_two_seeds": round(max(seeds), 4),
        "largest_distance_of_ours": round(max(apart), 4),
    }


def main() -> None:
    options = parse()
    if options.child:
        work_as_child(options)
        return
    import bare  # noqa: F401  # before all that imports regard
    import torch

    from regard.evaluation.speed import describe_machine

    device = torch.device(options.device)
    out = options.out or HERE / "results" / f"training-{'gpu' if device.type == 'cuda' else device.type}.json"
    before = json.loads(out.read_text("utf-8")) if options.merge and out.exists() else {}
    names = list(options.who or (TOGETHER if options.together else NAMES))
    result: dict[str, Any] = {
        "what": f"training steps of {options.preset} size, at most {options.tokens:,} places on either side of a batch",
        "rows": before.get("rows", []),
        "curves": before.get("curves", []),
        "distances": before.get("distances", {}),
        "machine": describe_machine(device),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commands": [*before.get("commands", []), " ".join(["python benchmarks/training.py", *sys.argv[1:]])],
    }
    try:
        import transformers

        result["versions"]["transformers"] = transformers.__version__
    except ImportError:
        print("transformers is not installed: Marian cannot take part", flush=True)

    def keep(group: str, row: Row) -> None:
        result[group] = [*(old for old in result[group] if old["name"] != row["name"]), row]
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    if options.curve:
        for title, (name, seed) in CURVES.items():
            keep("curves", run_child(name, options, "--seed", str(seed)) | {"name": title})
        result["distances"] = compare_curves(result["curves"])
        print(result["distances"], flush=True)
        for row in result["curves"]:
            keep("curves", row)
    elif options.together:
        for row in measure_together(names, options):
            keep("rows", row)
    else:
        for name in names:
            keep("rows", run_child(name, options))
    show(result["rows"])


if __name__ == "__main__":
    main()
