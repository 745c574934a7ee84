"""What a training step of a classifier spends its time on, stage by stage, and what a GPU is asked to do for it."""

from __future__ import annotations

import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from regard.training.loop import autocast, build_optimiser
from regard.training.progress import Progress
from regard.training.run import build_task
from regard.training.state import DataShard, Position, Positioned, TrainingState
from regard.training.tasks.classification.batches import Plan
from regard.training.tasks.classification.recipe import ClassificationRecipe
from regard.training.tasks.classification.task import ClassificationTask

WARM_UP, TIMED, TRACED = 20, 60, 3
TOP = 15


def profile_recipe(name: str, data: Path, changes: list[str], device: torch.device) -> dict[str, Any]:
    """Milliseconds of each stage for the device and for the host, of steps in a row, launches, waits, kernels."""
    recipe = ClassificationRecipe.load(Path(name), changes, {"data.images": str(data)})
    torch.manual_seed(recipe.training.seed)
    task = build_task(recipe, device, Progress(1))
    assert isinstance(task, ClassificationTask)
    steps = Steps(task, recipe)
    for _ in range(WARM_UP):
        steps.step()
    _wait(device)
    begin = time.perf_counter()
    for _ in range(TIMED):
        steps.step()
    host = time.perf_counter() - begin
    _wait(device)
    whole = time.perf_counter() - begin
    stages = [steps.timed() for _ in range(TIMED // 4)]
    result: dict[str, Any] = {
        "what": f"a training step of the recipe {name}, {task.train_batches.size} images",
        "step_ms": 1000 * whole / TIMED,
        "images_per_second": task.train_batches.size * TIMED / whole,
        "host_ms": 1000 * host / TIMED,
        "stages_device_ms": {stage: statistics.median(one[stage][0] for one in stages) for stage in stages[0]},
        "stages_host_ms": {stage: statistics.median(one[stage][1] for one in stages) for stage in stages[0]},
    }
    if device.type == "cuda":
        result["waits"] = _find_waits(steps)
    return result | _trace(steps, device)


class Steps:
    """Training steps as the loop makes them, in stages that can be timed."""

    def __init__(self, task: ClassificationTask, recipe: ClassificationRecipe) -> None:
        self.task, self.recipe, self.device = task, recipe, task.device
        self.state = TrainingState(task.model, build_optimiser(task.model, recipe.optim), None, recipe.training.ema)
        self.batches: Iterator[Positioned[Any]] = task.batches(Position(), DataShard())
        self.plans: Iterator[Positioned[Plan]] = task.train_batches.plan(Position())
        self.number = 0
        task.model.train()

    def step(self, stage: Callable[[str, Callable[[], Any]], Any] = lambda name, work: work()) -> None:
        """One step; `stage` does the work of each, and may time it."""
        self.number += 1
        state, model, optimiser = self.state, self.task.model, self.state.optimiser
        batch = stage("batch", lambda: next(self.batches).batch)
        with autocast(self.device, self.recipe.training.precision):
            loss = stage("forward", lambda: self.task.loss(batch, self.number))
        stage("backward", (loss.total / len(batch)).backward)
        bound = self.recipe.optim.clip or float("inf")
        norm = stage("clip", lambda: nn.utils.clip_grad_norm_(model.parameters(), bound))
        taken = stage("judge", lambda: state.skips.judge(self.number, loss.total.detach() / len(batch), norm))
        stage("optimiser", lambda: self._move(optimiser, taken))
        stage("log", lambda: state.meter.add(loss.total.detach(), len(batch), {}, taken))
        if self.recipe.training.ema:
            stage("average", state.update_average)

    def _move(self, optimiser: torch.optim.Optimizer, taken: Tensor) -> None:
        optimiser.found_inf = (~taken).float()  # type: ignore[attr-defined]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def timed(self) -> dict[str, tuple[float, float]]:
        """For each stage of a step, and each part of making a batch, the device's and the host's milliseconds."""
        clock = Clock(self.device)
        plan, augmentation = next(self.plans).batch, self.task.train_batches.stages[0]
        chance = torch.Generator().manual_seed(self.number)
        pixels = clock("batch: gather", lambda: self.task.train_batches.dataset.take(plan.rows).to(self.device))
        images = clock("batch: augment", lambda: augmentation(pixels, chance))
        if self.recipe.augmentation.mixes:
            labels = self.task.train_batches.labels[plan.rows.to(self.device)]
            clock("batch: mix", lambda: augmentation.mix(images, labels, self.task.classes, chance))
        self.step(clock)
        return clock.read()


class Clock:
    """Times stages: what the device takes for each by events in its stream, and how long the host is busy with it."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.host: dict[str, float] = {}
        self.events: dict[str, tuple[torch.cuda.Event, torch.cuda.Event]] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        if self.cuda:
            torch.cuda.synchronize()  # so that the host's lead from earlier stages is not counted here
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
        begin = time.perf_counter()
        result = work()
        self.host[name] = 1000 * (time.perf_counter() - begin)
        if self.cuda:
            end.record()
            self.events[name] = start, end
        return result

    def read(self) -> dict[str, tuple[float, float]]:
        if not self.cuda:
            return {name: (0.0, host) for name, host in self.host.items()}
        torch.cuda.synchronize()
        return {name: (self.events[name][0].elapsed_time(self.events[name][1]), self.host[name]) for name in self.host}


def _find_waits(steps: Steps) -> list[str]:
    """Where in the code a step waits for the device: there should be no such place."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            steps.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{warning.filename}:{warning.lineno}" for warning in heard if "synchroniz" in str(warning.message)]


def _trace(steps: Steps, device: torch.device) -> dict[str, Any]:
    """Launches and copies of a step, and the kernels that take most of the device's time."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds) as traced:
        for _ in range(TRACED):
            steps.step()
        _wait(device)
    calls = Counter(event.name for event in traced.events())
    operators = sum(count for name, count in calls.items() if name.startswith("aten::"))
    found: dict[str, Any] = {"operators": operators / TRACED}
    if device.type == "cuda":
        launches = sum(
            count for name, count in calls.items() if name.startswith(("cudaLaunchKernel", "cuLaunchKernel"))
        )
        copies = {
            name: count / TRACED for name, count in calls.items() if name.startswith(("Memcpy", "cudaStreamSync"))
        }
        rows = [
            row for row in traced.key_averages() if row.self_device_time_total > 0 and not row.key.startswith("aten::")
        ]
        rows.sort(key=lambda row: -row.self_device_time_total)
        kernels = {row.key[:90]: round(row.self_device_time_total / 1000 / TRACED, 3) for row in rows[:TOP]}
        total = sum(row.self_device_time_total for row in rows) / 1000 / TRACED
        found |= {"launches": launches / TRACED, "copies": copies, "kernels_ms": total, "top_kernels_ms": kernels}
    return found


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
