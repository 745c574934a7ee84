"""Where a step of completion goes wrong: norms of gradients, the first tensors that are no numbers, and waits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from regard.evaluation.croco import BLANK
from regard.training.loop import autocast
from regard.training.progress import Progress
from regard.training.run import build_task
from regard.training.tasks.croco.recipe import CroCoRecipe
from regard.training.tasks.croco.task import CompletionTask

SHOWN = 8
STEPS = 5


def check(recipe: CroCoRecipe, device: torch.device) -> dict[str, Any]:
    """The gradient of a new model on its first batch as it is, and with blank second views, in both precisions."""
    torch.manual_seed(recipe.training.seed)
    task = build_task(recipe, device, Progress(1, Console(quiet=True)))
    assert isinstance(task, CompletionTask)
    drawn = task.largest_batch()
    batches = {"drawn": drawn, "blank": replace(drawn, view2=torch.full_like(drawn.view2, BLANK))}
    result: dict[str, Any] = {}
    for name, batch in batches.items():
        found = {precision: _examine(task, batch, precision) for precision in ("float32", "bfloat16")}
        plain, half = (found[precision].pop("gradients") for precision in found)
        apart = {name: _apart(plain[name], half[name]) for name in plain}
        result[name] = found | {"apart_most": dict(_largest(apart))}
    result["pairs"] = len(drawn)
    result["milliseconds"] = {
        "make a batch": _time(device, lambda: task.largest_batch()),
        "forward and backward": _time(device, lambda: _learn(task, drawn, recipe.training.precision)),
    }
    result["waits_in_a_step"] = _waits(task, recipe.training.precision) if device.type == "cuda" else None
    norms = [result[name][precision]["norm"] for name in batches for precision in ("float32", "bfloat16")]
    result["shows"] = {"all gradients are small numbers": all(norm < 100 for norm in norms)}
    return result


def _examine(task: CompletionTask, batch: Any, precision: str) -> dict[str, Any]:
    task.model.zero_grad(set_to_none=True)
    with _watched(task.model) as bad:
        loss = _learn(task, batch, precision)
    gradients = {name: p.grad.double() for name, p in task.model.named_parameters() if p.grad is not None}
    norms = {name: float(gradient.norm()) for name, gradient in gradients.items()}  # in double precision: no overflow
    total = sum(norm**2 for norm in norms.values()) ** 0.5
    return {
        "loss": loss / len(batch),
        "norm": total,
        "no_number": bad[:SHOWN],
        "largest": dict(_largest(norms)),
        "gradients": gradients,
    }


def _learn(task: CompletionTask, batch: Any, precision: str) -> float:
    with autocast(task.device, precision):
        loss = task.loss(batch, 1)
    (loss.total / len(batch)).backward()
    return float(loss.total.detach())


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[str]]:
    """Names what comes out of modules, and what comes back to them, that is no number, in the order of its making."""
    bad: list[str] = []

    def note(words: str, tensor: Tensor) -> None:
        if not bool(tensor.isfinite().all()):
            bad.append(words)

    def hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def see(module: nn.Module, given: Any, made: Any) -> None:
            if isinstance(made, Tensor):
                note(f"forward {name}", made.detach())
                if made.requires_grad:
                    made.register_hook(lambda gradient: note(f"backward {name}", gradient))

        return see

    hooks = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    try:
        yield bad
    finally:
        for handle in hooks:
            handle.remove()


def _apart(one: Tensor, other: Tensor) -> float:
    """How far apart two gradients of a parameter are, as a part of the first one's norm."""
    return float((one - other).norm() / one.norm().clamp(min=1e-12))


def _largest(values: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: -item[1])[:SHOWN]


def _time(device: torch.device, work: Callable[[], Any]) -> float:
    def once() -> float:
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return 1000 * (time.perf_counter() - begin)

    once()
    return round(min(once() for _ in range(STEPS)), 2)


def _waits(task: CompletionTask, precision: str) -> list[str]:
    """What a step waits for the device for, of which there should be nothing."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with autocast(task.device, precision):
                loss = task.loss(task.largest_batch(), 1)
            loss.total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [f"{warning.filename}:{warning.lineno}" for warning in heard if "synchroniz" in str(warning.message)]
