"""CroCo on rendered scenes: use of the second view, matches of the cross-attention, and transfer to disparity.

    python benchmarks/croco.py train     --out runs/croco-bench [--steps 5000]
    python benchmarks/croco.py evaluate  --out runs/croco-bench [--data stereo-middlebury]
    python benchmarks/croco.py disparity --out runs/croco-bench [--data stereo-middlebury] [--disparity-steps 1600]
    python benchmarks/croco.py all       --out runs/croco-bench

`train` trains cross-view completion; `evaluate` scores the model on held-out scenes and on Middlebury photographs and
checks the criteria of croco_evaluation.py; `disparity` trains disparity for the same number of steps from these weights
and from random ones. Training resumes if the command is repeated. Each stage updates its part of OUT/croco.json;
`evaluate` also draws figures into OUT.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import stubs  # noqa: F401  # before all that imports regard
import torch
from croco_evaluation import evaluate, load_croco
from harness import environment, save_result
from stereo import read_scenes
from torch import Tensor

from regard.models.croco import CroCo
from regard.ops.dispatch import choose_device
from regard.training.run import run_recipe
from regard.training.tasks.croco import CroCoRecipe, predict_disparity
from regard.training.tasks.registry import load_recipe

VALIDATIONS = 10
MAX_RAMP_SHARE, MAX_WARM_UP_SHARE = 1 / 5, 1 / 10
"""Maximum shares of the steps in which the mask ratio and the learning rate rise."""


def load_shortened_recipe(name: str, changes: list[str], steps: int | None, settings: dict[str, Any]) -> CroCoRecipe:
    """Load a recipe; fewer steps also shorten the ramp of the mask ratio and the warm-up of the learning rate."""
    recipe = load_recipe(Path(name), changes, settings, expected=CroCoRecipe)
    if steps is None:
        return recipe
    intervals = {"validate_every": max(1, -(-steps // VALIDATIONS)), "checkpoint_every": steps}
    ramp_steps = max(1, min(recipe.completion.ramp_steps, int(steps * MAX_RAMP_SHARE)))
    return recipe.changed(
        training=recipe.training.model_dump() | intervals | {"steps": steps, "log_every": max(1, steps // 40)},
        optim=recipe.optim.model_dump() | {"warmup": min(recipe.optim.warmup, int(steps * MAX_WARM_UP_SHARE))},
        completion=recipe.completion.model_dump() | {"ramp_steps": ramp_steps},
    )


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train cross-view completion."""
    device = {"training.device": arguments.device}
    recipe = load_shortened_recipe("croco-scenes", arguments.set, arguments.steps, device)
    out = arguments.out / "completion"
    outcome = run_recipe(recipe, out)
    pairs = outcome.steps * recipe.batch.pairs
    return {
        "steps": outcome.steps,
        "pairs": pairs,
        "pairs_per_second": pairs / outcome.seconds,
        "seconds": round(outcome.seconds, 1),
        "parameters": sum(p.numel() for p in load_croco(out, "cpu").parameters()),
        "log": read_validations(out),
    }


def read_validations(run: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [{"step": entry["step"]} | entry["validation"] for entry in entries if "validation" in entry]


def train_disparity(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train disparity from the weights of the completion and from random weights, for the same number of steps."""
    completion = arguments.out / "completion"
    source = load_recipe(completion / "recipe.yaml")
    assert isinstance(source, CroCoRecipe)
    sizes = {key: value for key, value in source.model.items() if key not in ("kind", "head")}
    shared = {"training.device": arguments.device, "data.scenes": source.data.scenes.model_dump(mode="json")}
    model = {"kind": "croco", "head": "dense"}
    variants = {
        "pretrained": shared | {"model": model, "init.from": str(completion)},
        "scratch": shared | {"model": model | sizes},
    }
    device = choose_device(arguments.device)
    result: dict[str, Any] = {}
    for name, settings in variants.items():
        recipe = load_shortened_recipe("disparity-scenes", arguments.set_disparity, arguments.disparity_steps, settings)
        out = arguments.out / f"disparity-{name}"
        result[name] = {"steps": run_recipe(recipe, out).steps, "log": read_validations(out)}
        if arguments.data is not None:
            result[name]["photographs"] = score_photographs(load_croco(out, device), recipe, arguments.data, device)
    result["pairs"] = result["scratch"]["steps"] * recipe.batch.pairs
    result["criteria"] = check_disparity(result["pretrained"], result["scratch"])
    return result


def check_disparity(pretrained: dict[str, Any], scratch: dict[str, Any]) -> dict[str, bool]:
    """Check whether pretraining helps after equal steps, and whether anything was learned at all."""
    runs = (pretrained, scratch)
    ends = {run["log"][-1]["step"] if run["log"] else 0 for run in runs} | {run["steps"] for run in runs}
    equal = len(ends) == 1 and ends != {0}
    with_pretraining, without = (run["log"][-1] if equal else {} for run in runs)
    return {
        "pretraining beats random initialisation after equal steps": (
            equal and with_pretraining["pixels_off"] < without["pixels_off"]
        ),
        "pretraining beats a constant disparity": (
            equal and with_pretraining["pixels_off"] < with_pretraining["pixels_off_flat"]
        ),
    }


@torch.no_grad()
def score_photographs(model: CroCo, recipe: CroCoRecipe, data: Path, device: torch.device) -> dict[str, float]:
    """Return the mean disparity error of photographs in pixels, and the share of errors above one pixel."""
    height, width = recipe.data.scenes.size
    errors: list[Tensor] = []
    for photo in (photo.resized(height) for photo in read_scenes(data)):
        for left in (0, photo.left.shape[-1] - width):
            crop = (slice(0, height), slice(left, left + width))
            views = [view[None, :, *crop].to(device) for view in (photo.left, photo.right)]
            predicted = predict_disparity(model, *views)[0].cpu()
            errors.append((predicted - photo.disparity[crop]).abs()[photo.known[crop]])
    error = torch.cat(errors)
    return {"pixels_off": float(error.mean()), "share_off_by_one": float((error > 1).float().mean())}


def save_stage(out: Path, stage: str, result: dict[str, Any], device: torch.device) -> None:
    """Add or replace the result of a stage in OUT/croco.json."""
    path = out / "croco.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    about = {"what": "cross-view completion on rendered scenes, and disparity after it", **environment(device)}
    del about["command"]
    commands = list(dict.fromkeys([*before.get("commands", []), portable_command(out)]))
    save_result(before | about | {"commands": commands, stage: result}, path)
    print(stage, json.dumps({key: value for key, value in result.items() if key != "log"}, indent=1), flush=True)


def portable_command(out: Path) -> str:
    """Return the command line with OUT as runs/NAME, and without folders of other paths outside the repository."""

    def shorten(word: str) -> str:
        key, equals, value = word.rpartition("=")
        path = Path(value)
        if path == out:
            return f"{key}{equals}runs/{path.name}"
        return f"{key}{equals}{path.name}" if path.is_absolute() or ".." in path.parts else word

    return shlex.join(["python", "benchmarks/croco.py", *map(shorten, sys.argv[1:])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("train", "evaluate", "disparity", "all"))
    parser.add_argument("--out", type=Path, default=Path("runs/croco-bench"))
    parser.add_argument("--data", type=Path, help="folder of Middlebury stereo scenes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=1024, help="number of pairs of each evaluation")
    parser.add_argument("--set", action="append", default=[], help="a setting of croco-scenes, KEY=VALUE")
    parser.add_argument("--set-disparity", action="append", default=[], help="a setting of disparity-scenes, KEY=VALUE")
    parser.add_argument("--steps", type=int, help="steps of completion; by default those of the recipe")
    parser.add_argument("--disparity-steps", type=int, help="steps of disparity; by default those of the recipe")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = choose_device(arguments.device)
    stages = {"train": train, "evaluate": evaluate, "disparity": train_disparity}
    for stage in stages if arguments.stage == "all" else (arguments.stage,):
        save_stage(arguments.out, stage, stages[stage](arguments), device)


if __name__ == "__main__":
    main()
