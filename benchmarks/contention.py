"""Training and translating on an idle machine and beside busy processes, by how OpenMP threads wait.

    python benchmarks/contention.py --run runs/demo
    python benchmarks/contention.py --run runs/demo --rounds 3 --save

Each figure is from a process of its own that starts as `regard` does. Variants of waiting: "regard" is what
`regard.threads.configure_threads` chooses, "openmp" the default of OpenMP, "passive" never spins. Conditions: "idle";
"busy" beside as many busy processes as CPUs; "quota" within a cgroup whose quota is half of the CPUs. Variants
alternate, and the result contains medians and ratios of the same rounds. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from regard.threads import THREADS, WAITING, available_cpus, configure_threads

VARIANTS = {"regard": None, "openmp": {}, "passive": {"OMP_WAIT_POLICY": "PASSIVE"}}
TASKS = ("training", "translating")
BUSY = "while True: pass"
CGROUP = Path("/sys/fs/cgroup")
SENTENCES = 64
"""Sentences of a batch that is translated repeatedly."""
TOKENS, LENGTH = 1536, 24
"""Tokens of a training batch, as in the recipe of the demo, and of each of its sentences."""


def measure(run: Path, task: str, seconds: float) -> float:
    """Return the target tokens of training, or the sentences of translating, per second; called in a new process."""
    import torch

    from regard.pipelines.translator import Translator

    translator = Translator.load(run)
    if task == "translating":
        texts = [line.strip() for line in Path(os.environ["SENTENCES"]).read_text("utf-8").splitlines()][:SENTENCES]

        def work() -> int:
            translator.hypotheses(texts, split=False)
            for text in texts[:8]:
                translator.hypotheses([text], split=False)
            return len(texts) + 8
    else:
        model = translator.model.train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        tokens = torch.randint(4, model.config.source_vocab, (TOKENS // LENGTH, LENGTH + 1))

        def work() -> int:
            logits = model(tokens[:, :-1], tokens[:, :-1])
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
            return TOKENS

    work()
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        done += work()
    return done / (time.perf_counter() - started)


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Runs processes that never sleep."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def quota(cpus: int) -> Iterator[Path | None]:
    """Yield a cgroup (version 2) with a CPU quota; None if this user cannot create one."""
    group = CGROUP / f"regard-contention-{os.getpid()}"
    if not (CGROUP / "cgroup.controllers").exists():
        yield None
        return
    try:
        group.mkdir()
        (group / "cpu.max").write_text(f"{cpus * 100_000} 100000")
    except OSError:
        with suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def run_child(arguments: argparse.Namespace, task: str, variant: str, group: Path | None = None) -> float:
    """Return the figure of a new process with this way of waiting, in a cgroup."""
    environment = {name: value for name, value in os.environ.items() if name not in (*WAITING, *THREADS)}
    chosen = VARIANTS[variant]
    command = [sys.executable, __file__, "--run", str(arguments.run), "--task", task, "--variant", variant]
    command += ["--seconds", str(arguments.seconds)]
    join = None if group is None else lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None
    done = subprocess.run(
        command, env=environment | (chosen or {}), stdout=subprocess.PIPE, text=True, check=True, preexec_fn=join
    )
    figure = float(json.loads(done.stdout.splitlines()[-1]))
    print(f"{task}, {variant}: {figure:.4g} per second", file=sys.stderr, flush=True)
    return figure


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return medians by task, condition and variant."""
    cpus = available_cpus()
    figures: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for task in TASKS:
            for variant in VARIANTS:
                figures.setdefault((task, "idle", variant), []).append(run_child(arguments, task, variant))
            with busy(cpus):
                for variant in VARIANTS:
                    figures.setdefault((task, "busy", variant), []).append(run_child(arguments, task, variant))
            with quota(max(1, cpus // 2)) as group:
                for variant in VARIANTS if group else ():
                    figures.setdefault((task, "quota", variant), []).append(run_child(arguments, task, variant, group))
    return {" ".join(key): statistics.median(values) for key, values in figures.items()}


def ratios(figures: dict[str, float]) -> dict[str, float]:
    """Return the share of idle speed beside busy processes, and idle speed relative to the default of OpenMP."""
    result = {}
    for task in TASKS:
        for variant in VARIANTS:
            idle = figures[f"{task} idle {variant}"]
            result[f"{task} {variant}: busy / idle"] = figures[f"{task} busy {variant}"] / idle
            result[f"{task} {variant}: idle / idle of openmp"] = idle / figures[f"{task} idle openmp"]
    return result


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="a run of `regard demo`")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/contention.json")
    parser.add_argument("--task", choices=TASKS, help="measure only this, in this process")
    parser.add_argument("--variant", choices=VARIANTS, default="regard")
    arguments = parser.parse_args()
    if arguments.task:
        if arguments.variant == "regard":
            configure_threads()
        print(json.dumps(measure(arguments.run, arguments.task, arguments.seconds)))
        return
    from regard.data.builtin.corpus import load_pairs

    with tempfile.TemporaryDirectory() as folder:
        os.environ["SENTENCES"] = str(Path(folder) / "sentences")
        lines = [pair.source for pair in load_pairs("test", SENTENCES)]
        Path(os.environ["SENTENCES"]).write_text("\n".join(lines) + "\n", "utf-8")
        figures = measure_all(arguments)
    from harness import environment, save_result

    result = environment() | {"figures": figures, "ratios": ratios(figures)}
    for name, value in (figures | result["ratios"]).items():
        print(f"{name:44} {value:10.3g}")
    if arguments.save:
        save_result(result, "contention")


if __name__ == "__main__":
    main()
