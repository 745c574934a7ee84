"""Measured training steps of base, big and ViT-B/16 on one GPU next to those that `regard plan` computes.

    python benchmarks/plan.py [--gpu h200] [--seconds 20] [--out FILE]
    python benchmarks/plan.py --quick           tiny models on a CPU, to try the script

Runs the training loop of regard on random words and images, without validation and checkpoints. Takes about 4 minutes
on an H200. Writes benchmarks/results/plan-gpu.json or --out. Exits with code 1 if a step or the memory of a GPU differs
by more than 15 %; on a CPU, nothing is compared, because there is no data sheet.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import RESULTS, environment, save_result
from PIL import Image
from rich.console import Console

from regard.training.plan import GPUS, Cluster, make_plan
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.step_timing import time_steps
from regard.training.tasks.registry import load_recipe, task_of

TEXT = {"tokenizer.kind": "word", "tokenizer.size": 32_000, "batch.tokens": 25_000}
MODELS: dict[str, dict[str, Any]] = {
    "base": TEXT | {"model.preset": "base"},
    "big": TEXT | {"model.preset": "big"},
    "ViT-B/16": {"model.kind": "vit", "model.preset": "base", "data.size": 224, "batch.images": 256},
}
QUICK = {"tokenizer.size": 400, "batch.tokens": 512, "model.preset": "tiny"}
QUICK_IMAGES = {"model.preset": "tiny", "data.size": 32, "model.patch": 8, "batch.images": 8}
TOLERANCE = 0.15


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", default="h200", choices=GPUS, help="whose data sheet is used")
    parser.add_argument("--seconds", type=float, default=20.0, help="time per model")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="tiny models")
    parser.add_argument("--out", type=Path, help="result file")
    return parser.parse_args()


def make_images(folder: Path, size: int, number: int) -> Path:
    """Write random images in two class folders."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(number // 2):
            pixels = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.jpg")
    return folder


def make_text(path: Path, pairs: int, words: int) -> Path:
    """Write pairs of random words with Zipf's frequencies and lognormal lengths of median 22."""
    rng = np.random.default_rng(0)
    frequencies = 1 / np.arange(10, words + 10)
    frequencies /= frequencies.sum()
    with path.open("w") as file:
        for length in np.clip(np.rint(np.exp(np.log(22) + 0.6 * rng.standard_normal(pairs))), 2, 200).astype(int):
            text = " ".join(f"w{word}" for word in rng.choice(words, length, p=frequencies))
            file.write(json.dumps({"source": text, "target": text}) + "\n")
    return path


def measure(recipe: Recipe, folder: Path, device: torch.device, seconds: float) -> dict[str, Any]:
    torch.manual_seed(1)
    task_type, progress = task_of(recipe), Progress(1, Console(quiet=True))
    task_type.prepare_data(folder, recipe, progress, None)
    task = task_type.open(folder, recipe.resolve(device), device, progress)
    timing = time_steps(task, recipe.resolve(device), device, seconds)
    return timing.as_dict()


def main() -> None:
    options = parse_options()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for name in options.models:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
            values = dict(MODELS[name])
            if "batch.images" in values:
                values |= QUICK_IMAGES if options.quick else {}
                values["data.images"] = str(make_images(Path(temporary, "images"), values["data.size"], 1024))
            else:
                values |= QUICK if options.quick else {}
                numbers = (300, 500) if options.quick else (40_000, 40_000)
                values["data.source"] = str(make_text(Path(temporary, "text.jsonl"), *numbers))
            recipe = load_recipe(None, [], values)
            (folder := Path(temporary, "data")).mkdir()
            measured = measure(recipe, folder, device, options.seconds)
        plan = make_plan(recipe, Cluster(GPUS[options.gpu]))
        row: dict[str, Any] = {"name": name, "measured": measured, "computed": plan.as_dict()}
        if device.type == "cuda":
            row["step_error"] = round(plan.step_ms / measured["step_ms"] - 1, 3)
            row["memory_error"] = round(1e9 * plan.memory_gb / measured["peak_bytes"] - 1, 3)
        rows.append(row)
        print(json.dumps({key: value for key, value in row.items() if key != "computed"}), flush=True)
    out = options.out or (RESULTS / "plan-gpu.json" if device.type == "cuda" else None)
    if out is not None:
        result = {"what": "steps next to those that regard plan computes", "rows": rows} | environment(device)
        save_result(result, out)
    errors = [abs(row[key]) for row in rows for key in ("step_error", "memory_error") if key in row]
    sys.exit(max(errors, default=0) > TOLERANCE)


if __name__ == "__main__":
    main()
