"""Captured training steps against eager steps of the same batches: weights after some steps, and milliseconds per step.

    python benchmarks/captured_steps.py DATA [--only plain r-drop] [--out FILE] [--limit 200] [--device cpu --tiny]

DATA contains multi30k/tok and tatoeba-en-de. For each case, the training loop takes the same steps twice, captured in a
CUDA graph and eagerly; if the weights differ, a second eager run shows whether eager steps are deterministic. Models of
`base` size are only timed, captured. Without --out, writes benchmarks/results/captured-steps-gpu.json, or on a CPU,
where nothing is captured but the same code runs, captured-steps-cpu.json.
"""

import argparse
import gc
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from harness import environment, save_result
from PIL import Image
from rich.console import Console
from torch import Tensor

from regard.ops.dispatch import choose_device
from regard.training import cuda_graph
from regard.training.distributed import Processes, join_processes
from regard.training.loop import TrainingLoop
from regard.training.progress import Progress
from regard.training.tasks.registry import load_recipe, task_of

COMPARED, TIMED_FROM = 50, 30
"""Step after which weights are compared, and step from which eager steps are timed until then."""
TIMED_STEPS = 150
"""Further steps of the captured run, whose times are those of captured steps."""
LOG_EVERY = 10
NEVER = 10**9
Settings = dict[str, Any]

MULTI30K: Settings = {
    "tokenizer.size": 10_000,
    "model.preset": "tiny",
    "model.dropout": 0.3,
    "optim.lr": 5e-3,
    "optim.warmup": 2000,
    "batch.tokens": 8192,
}
"""The recipe multi30k-en-de, as far as steps depend on it."""
BASE: Settings = {"tokenizer.size": 32_000, "model.preset": "base", "batch.tokens": 25_000}
TINY: Settings = {"tokenizer.size": 1000, "model.width": 32, "model.heads": 2, "model.hidden": 64, "batch.tokens": 512}
TINY_LAYERS: Settings = {"model.encoder_layers": 1, "model.decoder_layers": 1}
TINY_IMAGES: Settings = {"model.width": 16, "model.heads": 2, "model.hidden": 32, "batch.images": 16}
TINY_PAIRS: Settings = {"model.preset": "micro", "batch.pairs": 4}


@dataclass(frozen=True)
class Case:
    """Settings of a run: a built-in recipe or a corpus, and changes to it."""

    corpus: str = ""  # multi30k or tatoeba-en-de
    recipe: str = ""
    changes: Settings = field(default_factory=dict)
    launched: bool = False  # as torchrun starts it, with one process
    timed_only: bool = False


def text(changes: Settings | None = None, **options: Any) -> Case:
    """Return a case on Multi30k."""
    return Case("multi30k", changes=MULTI30K | (changes or {}), **options)


def nat(**changes: Any) -> Case:
    return text({"model.kind": "nat"} | {key.replace("__", "."): value for key, value in changes.items()})


def base(**changes: Any) -> Case:
    own = {key.replace("__", "."): value for key, value in changes.items()}
    return Case("tatoeba-en-de", changes=BASE | own, timed_only=True)


WIDE: Settings = {"model.width": 256, "model.hidden": 512, "optim.lr": 3e-3}
CASES: dict[str, Case] = {
    "plain": text({"training.ema": 0.99}),
    "r-drop": text({"objective.r_drop": 5}),
    "simcut": text({"objective.simcut": {"p": 0.05}}),
    "scheduled sampling": text({"objective.scheduled_sampling": {"half_life": 100, "start": 10, "floor": 0.2}}),
    "guided attention": text({"objective.guided_attention": {"steps": 1000}}),
    "accumulation": text({"optim.accumulate": 4}),
    "DDP, one process": text(launched=True),
    "NAT, length classifier": nat(model__length="classifier"),
    "NAT, END": nat(model__length="end"),
    "NAT, CTC": nat(model__length="ctc", objective__reveal="none"),
    "NAT, GLAT": nat(model__length="classifier", objective__reveal="glancing"),
    "NAT, GLAT and CTC": nat(model__length="ctc", objective__reveal="glancing"),
    "ViT with mixing and RandAugment": Case(recipe="cifar10"),
    "CroCo": Case(recipe="croco-scenes", changes={"completion.ramp_steps": 20, "completion.ramp_levels": 2}),
    "base": base(),
    "base, r-drop": base(objective__r_drop=5),
    "base, simcut": base(objective__simcut={"p": 0.05}),
    "width 256": text(WIDE, timed_only=True),
    "width 256, r-drop": text(WIDE | {"objective.r_drop": 5}, timed_only=True),
    "width 256, simcut": text(WIDE | {"objective.simcut": {"p": 0.05}}, timed_only=True),
    "Swin with mixing and RandAugment": Case(recipe="cifar10-swin"),
    "disparity": Case(recipe="disparity-scenes", changes={"model.patch": 4}),
    "guided attention ends": text({"objective.guided_attention": {"steps": 20}}),
}
RELATIVE = {
    f"{prefix}{objective}": (f"{prefix}{objective}", plain)
    for prefix, plain in (("", "plain"), ("width 256, ", "width 256"), ("base, ", "base"))
    for objective in ("r-drop", "simcut")
}
"""Cases whose time is reported relative to that of another case."""


class EnoughStepsError(Exception):
    """Ends the training loop."""


class Clock(Progress):
    """Records when steps are logged, copies the weights after some steps, and ends the loop."""

    def __init__(self, unit: str, steps: int, compared: int) -> None:
        super().__init__(NEVER, Console(quiet=True), unit)
        self.last, self.compared = steps, compared
        self.times: dict[int, float] = {}
        self.losses: dict[int, float] = {}
        self.peak = 0.0
        self.notes: list[str] = []
        self.loop: TrainingLoop[Any]
        self.weights: dict[str, Tensor] = {}

    def print(self, text: str) -> None:
        self.notes.append(text)

    def step(self, step: int, report: dict[str, float]) -> None:
        self.times[step], self.losses[step] = time.perf_counter(), report["loss"]
        self.peak = max(self.peak, report["memory"])
        if step == self.compared:
            state = self.loop.state
            models = {"model": state.model} | ({} if state.average is None else {"average": state.average.module})
            self.weights = {
                f"{kind}.{name}": parameter.detach().clone()
                for kind, model in models.items()
                for name, parameter in model.named_parameters()
            }
        if step >= self.last:
            raise EnoughStepsError

    def milliseconds(self, first: int, last: int) -> float:
        """Return the mean time of the steps after `first` up to `last`."""
        return 1000 * (self.times[last] - self.times[first]) / (last - first)


@dataclass
class Measured:
    """A run of a case."""

    clock: Clock
    started: float
    replays: int

    @property
    def first_captured(self) -> float:
        """Seconds from the start of the loop, with the model and the data ready, to the first captured steps."""
        return self.clock.times[5] - self.started


class Bench:
    """Runs cases with data in a temporary folder."""

    def __init__(self, data: Path, folder: Path, device: torch.device, tiny: bool) -> None:
        self.data, self.folder, self.device, self.tiny = data, folder, device, tiny
        self.images = folder / "images"

    def settings(self, case: Case) -> Settings:
        """Return all settings of a case."""
        device = {"training.device": str(self.device), "training.cuda_graph": True}
        if case.recipe.startswith("cifar10"):
            if not self.images.exists():
                paint(self.images, 40 if self.tiny else 800)
            reduced = {} if not self.tiny else {"batch.images": 16} if "swin" in case.recipe else TINY_IMAGES
            return case.changes | device | {"data.images": str(self.images)} | reduced
        if case.recipe:
            return case.changes | device | (TINY_PAIRS if self.tiny else {})
        reduced = (TINY | TINY_LAYERS) if self.tiny else {}
        source, target = (self.text(case.corpus, language) for language in ("en", "de"))
        files: Settings = {
            "data.source": str(source),
            "data.target": str(target),
            "data.store": str(self.folder / case.corpus),
        }
        return case.changes | device | reduced | files

    def text(self, corpus: str, language: str) -> Path:
        return self.data / ("multi30k/tok" if corpus == "multi30k" else corpus) / f"train.{language}.gz"

    def run(self, case: Case, captured: bool, steps: int) -> Measured:
        """Train for some steps, captured or eagerly, and return what was measured."""
        replays = 0
        replay = cuda_graph._CapturedStep.replay

        def count(self: Any, batches: Any) -> Any:
            nonlocal replays
            replays += 1
            return replay(self, batches)

        eager = patch.object(cuda_graph, "WARMUP_STEPS", cuda_graph.WARMUP_STEPS if captured else NEVER)
        counted = patch.object(cuda_graph._CapturedStep, "replay", count)
        with eager, counted, tempfile.TemporaryDirectory(dir=self.folder) as name, launched(case.launched):
            recipe = load_recipe(Path(case.recipe) if case.recipe else None, [], self.settings(case))
            with join_processes(str(self.device)) if case.launched else nothing(self.device) as processes:
                clock, started = self.train(recipe, Path(name), processes, steps)
        return Measured(clock, started, replays)

    def train(self, recipe: Any, folder: Path, processes: Processes, steps: int) -> tuple[Clock, float]:
        """Prepare the data and train; return the clock, and the time at which the loop started."""
        task_type = task_of(recipe)
        clock = Clock(task_type.unit, steps, COMPARED)
        torch.manual_seed(recipe.training.seed)
        recipe = recipe.resolve(self.device)
        (folder / "data").mkdir()
        task_type.prepare_data(folder / "data", recipe, clock, None)
        task = task_type.open(folder / "data", recipe, self.device, clock)
        training = recipe.training.changed(
            steps=NEVER, log_every=LOG_EVERY, validate_every=NEVER, checkpoint_every=NEVER
        )
        clock.loop = TrainingLoop(task, recipe.optim, training, folder, clock, processes)
        started = time.perf_counter()
        with suppress(EnoughStepsError):
            clock.loop.train()
        del clock.loop
        return clock, started


@contextmanager
def nothing(device: torch.device) -> Iterator[Processes]:
    yield Processes(device=device)


@contextmanager
def launched(as_by_torchrun: bool) -> Iterator[None]:
    """Set the environment variables of torchrun for one process."""
    if not as_by_torchrun:
        yield
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    variables = {name: str(value) for name, value in names.items()}
    loopback = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    with patch.dict(os.environ, variables | loopback):
        yield


def paint(folder: Path, number: int) -> None:
    """Write folders of random images of two classes."""
    rng = np.random.default_rng(1)
    for split, name in (("train", "a"), ("train", "b"), ("test", "a"), ("test", "b")):
        (folder / split / name).mkdir(parents=True)
        for i in range(number if split == "train" else 4):
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / split / name / f"{i}.png")


def differences(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the maximum difference of weights; 0 if they are bit-identical."""
    assert one.keys() == other.keys()
    differing = [name for name, tensor in one.items() if not torch.equal(tensor, other[name])]
    return max((float((one[name] - other[name]).abs().max()) for name in differing), default=0.0)


def measure(bench: Bench, name: str, case: Case, timed: int) -> dict[str, Any]:
    """Return the row of a case."""
    captured = bench.run(case, True, COMPARED + timed)
    row: dict[str, Any] = {
        "name": name,
        "ms": round(captured.clock.milliseconds(COMPARED, COMPARED + timed), 3),
        "replays": captured.replays,
        "first_captured_s": round(captured.first_captured, 2),
        "peak_mb": captured.clock.peak,
        "loss": captured.clock.losses[COMPARED],
    }
    if notes := [note for note in captured.clock.notes if note.startswith("step ")]:
        row["notes"] = notes
    if case.timed_only:
        return row
    eager = bench.run(case, False, COMPARED)
    row["eager_ms"] = round(eager.clock.milliseconds(TIMED_FROM, COMPARED), 3)
    row["eager_peak_mb"] = eager.clock.peak
    row["gain"] = round(row["eager_ms"] / row["ms"], 2)
    row["max_difference"] = differences(captured.clock.weights, eager.clock.weights)
    row["identical"] = row["max_difference"] == 0
    if not row["identical"]:
        again = bench.run(case, False, COMPARED)
        row["eager_loss"] = eager.clock.losses[COMPARED]
        row["max_difference_of_eager_runs"] = differences(eager.clock.weights, again.clock.weights)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--limit", type=float, default=86_400, help="seconds after which no further case is started")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="small models, to try the script")
    parser.add_argument("--timed", type=int, default=TIMED_STEPS, help="captured steps that are timed")
    arguments = parser.parse_args()
    end, device = time.monotonic() + arguments.limit, choose_device(arguments.device)
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "what": f"training steps captured in a CUDA graph and eager steps: weights after {COMPARED} steps, seed 1",
        "rows": rows,
        "relative": {},
        **environment(device),
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.data, Path(folder), device, arguments.tiny)
        for name in arguments.only:
            if time.monotonic() > end:
                result["not_started"] = arguments.only[len(rows) :]
                break
            started = time.monotonic()
            try:
                row = measure(bench, name, CASES[name], arguments.timed)
            except Exception as error:  # the other cases are still worth measuring
                row = {"name": name, "error": f"{type(error).__name__}: {error}"[:2000]}
            rows.append(row)
            times = {row["name"]: row["ms"] for row in rows if "ms" in row}
            result["relative"] = {
                name: round(times[one] / times[other], 3)
                for name, (one, other) in RELATIVE.items()
                if one in times and other in times
            }
            print(f"{time.monotonic() - started:.1f} s", row, flush=True)
            save_result(result, arguments.out or f"captured-steps-{'gpu' if device.type == 'cuda' else 'cpu'}")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print("relative to plain steps:", result["relative"], flush=True)


if __name__ == "__main__":
    main()
