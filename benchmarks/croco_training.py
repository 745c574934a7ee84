"""Training of two-view models by the clock: as many steps as there is time for, and how many were done."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from croco_evaluation import load_croco
from croco_planning import TRIAL, count_steps, fitted, measure_speed
from torch import Tensor

from regard.data.two_view.stereo import read_scenes
from regard.models.croco import CroCo
from regard.runtime import Interrupted, Interruptions, choose_device
from regard.training.checkpoint import load_checkpoint
from regard.training.metrics_log import CHECKPOINTS
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.croco.recipe import CroCoRecipe
from regard.training.tasks.croco.task import predict_disparity


class Clock:
    """The seconds that something was given, from now on."""

    def __init__(self, given: float) -> None:
        self.given, self.begin = given, time.perf_counter()

    @property
    def gone(self) -> float:
        return time.perf_counter() - self.begin

    @property
    def left(self) -> float:
        return self.given - self.gone


def load(name: str, changes: list[str], **given: Any) -> CroCoRecipe:
    return CroCoRecipe.load(Path(name), changes, {key.replace("__", "."): value for key, value in given.items()})


def run_within(recipe: CroCoRecipe, out: Path, seconds: float) -> int:
    """Trains; asks the run to stop when its time is up, whatever the machine is busy with; the steps that were done."""
    timer = threading.Timer(seconds, signal.raise_signal, (signal.SIGTERM,))  # SIGINT is ignored in the background
    timer.daemon = True
    try:
        with Interruptions():  # before and behind the run's own
            timer.start()
            return run_recipe(recipe, out).steps
    except Interrupted:
        print(f"stopped after {seconds:.0f} s, before the last step")
    finally:
        timer.cancel()
    saved = load_checkpoint(out / CHECKPOINTS, print)
    return 0 if saved is None else saved.step


def plan(recipe: CroCoRecipe, clock: Clock, share: float) -> int:
    """As many steps as take this share of the time that a trial leaves; ends the program where it leaves none."""
    speed = measure_speed(recipe, TRIAL * clock.given)
    if clock.left <= 0:
        sys.exit(f"the trial took {clock.gone:.0f} s, all the time there was; give more --minutes, or the steps")
    steps = count_steps(recipe, speed, share * clock.left)
    print(f"{speed}: {steps} steps of {recipe.batch.pairs} pairs; the trial took {clock.gone:.0f} s", flush=True)
    return steps


def train(arguments: argparse.Namespace, minutes: float) -> dict[str, Any]:
    """Completion for so many minutes."""
    clock = Clock(60 * minutes)
    recipe = load("croco-scenes", arguments.set, training__device=arguments.device)
    planned = arguments.steps or plan(recipe, clock, arguments.share)
    trial = clock.gone
    recipe = fitted(recipe, planned)
    out = arguments.out / "completion"
    done = run_within(recipe, out, clock.left)
    return {
        "steps_planned": planned,
        "trial_seconds": round(trial, 1),
        "steps": done,
        "pairs": done * recipe.batch.pairs,
        "pairs_per_second": done * recipe.batch.pairs / (clock.gone - trial),
        "seconds": round(clock.gone, 1),
        "parameters": sum(p.numel() for p in load_croco(out, "cpu").parameters()),
        "log": read_validations(out),
    }


def read_validations(run: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [{"step": entry["step"]} | entry["validation"] for entry in entries if "validation" in entry]


def disparity(arguments: argparse.Namespace, minutes: float) -> dict[str, Any]:
    """The same steps, chosen before either begins, from the completion's weights and from random ones."""
    clock = Clock(60 * minutes)
    run = arguments.out / "completion"
    source = Recipe.load(run / "recipe.yaml")
    assert isinstance(source, CroCoRecipe)
    shape = {key: value for key, value in source.model.items() if key not in ("kind", "head")}
    scenes = source.data.scenes.model_dump(mode="json")
    given = {"training__device": arguments.device, "data__scenes": scenes, "model": {"kind": "croco", "head": "dense"}}
    scratch = load("disparity-scenes", arguments.set_disparity, **given | {"model": given["model"] | shape})
    pretrained = load("disparity-scenes", arguments.set_disparity, **given, init__from=str(run))
    steps = arguments.disparity_steps or plan(scratch, clock, 0.75 / 2)
    each = clock.left / 2
    result: dict[str, Any] = {"steps_planned": steps, "pairs": steps * scratch.batch.pairs}
    for name, recipe in (("pretrained", pretrained), ("scratch", scratch)):
        out = arguments.out / f"disparity-{name}"
        done = run_within(fitted(recipe, steps), out, each)
        result[name] = {"steps": done, "log": read_validations(out)}
        if arguments.data is not None:
            device = choose_device(arguments.device)
            result[name]["photographs"] = score_photographs(load_croco(out, device), scratch, arguments.data, device)
    result["shows"] = judge_disparity(result["pretrained"], result["scratch"], steps)
    result["seconds"] = round(clock.gone, 1)
    return result


def judge_disparity(pretrained: dict[str, Any], scratch: dict[str, Any], steps: int) -> dict[str, bool]:
    """Whether the weights help: both runs must have done all of their steps, and have been scored at the last.

    Two runs that have learned nothing yet differ by chance, so the better one must also be better than one number.
    """
    ends = [(run["steps"], run["log"][-1]["step"]) if run["log"] else (0, 0) for run in (pretrained, scratch)]
    equal = all(end == (steps, steps) for end in ends)
    last, other = (run["log"][-1] if equal else {} for run in (pretrained, scratch))
    return {
        "pretrained beats scratch after equal steps": equal and last["pixels_off"] < other["pixels_off"],
        "pretrained beats one disparity for a whole view": equal and last["pixels_off"] < last["pixels_off_flat"],
    }


@torch.no_grad()
def score_photographs(model: CroCo, recipe: CroCoRecipe, data: Path, device: torch.device) -> dict[str, float]:
    """By how many pixels disparities of photographs are off where they were measured, and how often by more than 1."""
    size = recipe.data.scenes.size
    photos = [photo.resized(size[0]) for photo in read_scenes(data)]
    errors: list[Tensor] = []
    for photo in photos:
        for left in (0, photo.left.shape[-1] - size[1]):
            part = (slice(0, size[0]), slice(left, left + size[1]))
            views = [view[None, :, *part].to(device) for view in (photo.left, photo.right)]
            found = predict_disparity(model, *views)[0].cpu()
            errors.append((found - photo.disparity[part]).abs()[photo.known[part]])
    error = torch.cat(errors)
    return {"pixels_off": float(error.mean()), "share_off_by_one": float((error > 1).float().mean())}
