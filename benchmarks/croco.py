"""CroCo on rendered scenes: does the second view help, and only where it can; does the attention find the match; and do
the weights help with disparity?

    python benchmarks/croco.py check
    python benchmarks/croco.py all --minutes 7 --race 1.2 --out runs/croco-bench --data stereo-middlebury

`check` looks at the gradients of a first step, in a few seconds. `race` trains several settings side by side, in a
process each, and says which did best on scenes set aside for that; `train` learns completion for so many minutes,
`prove` scores the run on other scenes never trained on and on photographs, `disparity` trains for disparity for as many
steps from those weights and from none. `all` does all of it, with the settings that won where there is time for a race.
Each writes its part of OUT/croco.json and its pictures into OUT.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import bare  # noqa: F401  # before all that imports regard
import torch
from croco_check import check
from croco_race import race
from torch import Tensor

from regard.devices import choose_device
from regard.evaluation.completion import LabelledPairs, choose_seen, score_completion, second_views
from regard.inspection.matching import draw_matches, find_attended
from regard.inspection.reconstruction import draw_reconstructions
from regard.interruption import Interrupted, Interruptions
from regard.models.croco import CroCo
from regard.models.folder import find_model, load_model
from regard.training.completion.disparity import predict_disparity
from regard.training.completion.pairs import HELD_OUT
from regard.training.completion.recipe import TwoViewRecipe
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.vision.scenes import SceneSettings, render_pairs
from regard.vision.scenes.draws import Draws
from regard.vision.stereo import StereoPhotos, read_scenes

TRIAL = 60
"""Steps of a run that only tells how fast this machine is."""
CHOICE, TEST, FAR, APART = (factor * HELD_OUT for factor in (2, 3, 4, 5))
"""The numbers from which on scenes choose the layer, are like those of training, move all the way, lie apart."""
AT_A_TIME = 128


def load(name: str, changes: list[str], **given: Any) -> TwoViewRecipe:
    return TwoViewRecipe.load(Path(name), changes, {key.replace("__", "."): value for key, value in given.items()})


def measure_speed(recipe: TwoViewRecipe) -> float:
    """Steps a second, rendering included, once the machine is warm."""
    trial = recipe.training.model_dump() | {"steps": TRIAL, "log_every": TRIAL // 2, "validate_every": TRIAL}
    with tempfile.TemporaryDirectory() as name:
        run_recipe(recipe.changed(training=trial), Path(name) / "run")
        logged = [json.loads(line) for line in (Path(name) / "run" / "log.jsonl").read_text("utf-8").splitlines()]
    (last,) = [entry for entry in logged if entry["step"] == TRIAL and "loss" in entry]
    return float(last["pairs_per_second"]) / recipe.batch.pairs


def fitted(recipe: TwoViewRecipe, steps: int, looks: int = 10) -> TwoViewRecipe:
    """The recipe for so many steps: what it does in the first ones takes no larger share of fewer."""
    every = max(1, -(-steps // looks))
    training = {"steps": steps, "validate_every": every, "checkpoint_every": steps, "log_every": max(1, steps // 40)}
    return recipe.changed(
        training=recipe.training.model_dump() | training,
        optim=recipe.optim.model_dump() | {"warmup": min(recipe.optim.warmup, steps // 10)},
        completion=recipe.completion.model_dump() | {"rising": max(1, min(recipe.completion.rising, steps // 5))},
    )


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """Asks the run within to stop when its time is up, whatever the machine is busy with."""
    timer = threading.Timer(seconds, signal.raise_signal, (signal.SIGTERM,))  # SIGINT is ignored in the background
    timer.daemon = True
    timer.start()
    try:
        with Interruptions():  # before and behind the run's own
            yield
    except Interrupted:
        print(f"stopped after {seconds:.0f} s, before the last step")
    finally:
        timer.cancel()


def train(arguments: argparse.Namespace, minutes: float) -> dict[str, Any]:
    begin, seconds = time.perf_counter(), 60 * minutes
    recipe = load("croco-scenes", arguments.set, training__device=arguments.device)
    rate = measure_speed(recipe)
    left = seconds - (time.perf_counter() - begin)
    steps = max(20, int(0.9 * left * rate))
    recipe = fitted(recipe, steps)
    print(f"{rate:.1f} steps a second: {steps} steps of {recipe.batch.pairs} pairs")
    out = arguments.out / "completion"
    with stopped_after(left):
        run_recipe(recipe, out)
    return {
        "steps": steps,
        "pairs": steps * recipe.batch.pairs,
        "pairs_per_second": rate * recipe.batch.pairs,
        "seconds": round(time.perf_counter() - begin, 1),
        "parameters": sum(p.numel() for p in load_croco(out, "cpu").parameters()),
        "log": read_validations(out),
    }


def read_validations(run: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    return [{"step": entry["step"]} | entry["validation"] for entry in entries if "validation" in entry]


def load_croco(run: Path, device: torch.device | str) -> CroCo:
    model, _ = load_model(find_model(run), device)
    assert isinstance(model, CroCo)
    return model


def prove(arguments: argparse.Namespace) -> dict[str, Any]:
    run = arguments.out / "completion"
    device = choose_device(arguments.device)
    recipe = Recipe.load(run / "recipe.yaml")
    assert isinstance(recipe, TwoViewRecipe)
    model, masked, seed = load_croco(run, device), recipe.completion.masked, recipe.training.seed
    near, apart = recipe.data.scenes.changed(apart=0.0), recipe.data.scenes.changed(apart=1.0)
    far = near.changed(gradual=False)
    count = arguments.pairs

    def scenes(settings: SceneSettings, first: int, many: int = count) -> Iterator[LabelledPairs]:
        for numbers in (torch.arange(many, device=device) + first).split(AT_A_TIME):
            yield LabelledPairs.rendered(settings, seed, numbers)

    chosen = score_completion(model, scenes(far, CHOICE), masked)
    layer = max(chosen.hits, key=chosen.hits.__getitem__)
    test = score_completion(model, scenes(near, TEST), masked)
    moved = score_completion(model, scenes(far, FAR), masked)
    away = score_completion(model, scenes(apart, APART), masked)
    gap, gap_apart = (scores.losses["shuffled"] - scores.losses["true"] for scores in (test, away))
    gain, gain_apart = (scores.losses["none"] - scores.losses["true"] for scores in (test, away))
    result = {
        "scenes": asdict(test),
        "far": asdict(moved),
        "apart": asdict(away),
        "layer": layer,
        "layer_hits_on_other_scenes": chosen.hits[layer],
        "gap": gap,
        "gap_apart": gap_apart,
        "better_than_none": gain,
        "better_than_none_apart": gain_apart,
        "shows": {
            "true at most half of shuffled": test.losses["true"] <= 0.5 * test.losses["shuffled"],
            "shuffled no better than none": test.losses["shuffled"] >= test.losses["none"],
            "the gap closes where views do not overlap": gap_apart <= 0.1 * gap and gain_apart <= 0.1 * gain,
            "the peak hits the true patch for at least 70 %": min(test.hits[layer], moved.hits[layer]) >= 0.7,
        },
    }
    draw(arguments.out, "scenes", model, next(scenes(far, FAR, AT_A_TIME)), masked, layer)
    if arguments.data is not None:
        photos = [photo.resized(near.size[0]) for photo in read_scenes(arguments.data)]
        crops = list(cut_photos(photos, near.size, device))
        result["photographs"] = asdict(score_completion(model, crops, masked))
        draw(arguments.out, "photographs", model, crops[0], masked, layer)
    return result


def score_choice(arguments: argparse.Namespace, run: Path) -> dict[str, float]:
    """How a run does on the scenes that choose, which are the recipe's own, whatever the run was trained on."""
    device, recipe = choose_device(arguments.device), load("croco-scenes", [])
    settings, model = recipe.data.scenes.changed(apart=0.0), load_croco(run, device)
    batches = (
        LabelledPairs.rendered(settings, recipe.training.seed, numbers)
        for numbers in (torch.arange(arguments.pairs, device=device) + CHOICE).split(AT_A_TIME)
    )
    scores = score_completion(model, batches, recipe.completion.masked)
    losses = scores.losses
    return {"ratio": losses["true"] / losses["shuffled"], "hits": max(scores.hits.values())} | losses


def cut_photos(photos: list[StereoPhotos], size: tuple[int, int], device: torch.device) -> Iterator[LabelledPairs]:
    """Crops of all photographs at the left, in the middle and at the right: the next pair is always another scene."""
    height, width = size
    x, y = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    for share in (0.0, 0.5, 1.0):
        views1, views2, places, covisible = [], [], [], []
        for photo in photos:
            left = round(share * (photo.left.shape[-1] - width))
            part = (slice(0, height), slice(left, left + width))
            place = torch.stack((x - photo.disparity[part], y), -1)
            views1.append(photo.left[:, *part])
            views2.append(photo.right[:, *part])
            places.append(place)
            covisible.append(photo.covisible[part] & (place[..., 0] >= 0))
        yield LabelledPairs(*(torch.stack(values).to(device) for values in (views1, views2, places, covisible)))


def draw(out: Path, name: str, model: CroCo, pairs: LabelledPairs, masked: float, layer: str) -> None:
    """Completions with the true second view, another one and none; and what the attention takes for matches."""
    view1, seconds = pairs.view1[:8], second_views(pairs.view2[:8])
    seen = choose_seen(model, view1, masked, Draws(0, torch.arange(len(view1), device=view1.device)))
    draw_reconstructions(model, view1, seen, list(seconds.values())).save(out / f"{name}-completed.png")
    attended = find_attended(model, view1, seconds["true"], seen, [layer])[layer]
    for row in range(min(2, len(view1))):
        picture = draw_matches(view1, seconds["true"], attended, model.config.patch, row)
        picture.save(out / f"{name}-matches-{row}.png")


def disparity(arguments: argparse.Namespace, minutes: float) -> dict[str, Any]:
    """The same steps from the completion's weights and from random ones."""
    begin = time.perf_counter()
    run = arguments.out / "completion"
    source = Recipe.load(run / "recipe.yaml")
    assert isinstance(source, TwoViewRecipe)
    shape = {key: value for key, value in source.model.items() if key not in ("kind", "head")}
    scenes = source.data.scenes.model_dump(mode="json")
    given = {"training__device": arguments.device, "data__scenes": scenes, "model": {"kind": "croco", "head": "dense"}}
    scratch = load("disparity-scenes", arguments.set_disparity, **given | {"model": given["model"] | shape})
    pretrained = load("disparity-scenes", arguments.set_disparity, **given, start__from=str(run))
    rate = measure_speed(scratch)
    left = 60 * minutes - (time.perf_counter() - begin)
    steps = max(20, int(0.85 * left / 2 * rate))
    print(f"{rate:.1f} steps a second: twice {steps} steps of {scratch.batch.pairs} pairs")
    result: dict[str, Any] = {"steps": steps, "pairs": steps * scratch.batch.pairs}
    for name, recipe in (("pretrained", pretrained), ("scratch", scratch)):
        out = arguments.out / f"disparity-{name}"
        with stopped_after(left / 2 + 5):
            run_recipe(fitted(recipe, steps), out)
        result[name] = read_validations(out)
        if arguments.data is not None:
            device = choose_device(arguments.device)
            result[f"{name}_photographs"] = score_photographs(load_croco(out, device), scratch, arguments.data, device)
    last = [result[name][-1]["pixels_off"] for name in ("pretrained", "scratch")]
    result["shows"] = {"pretrained beats scratch": last[0] < last[1]}
    result["seconds"] = round(time.perf_counter() - begin, 1)
    return result


@torch.no_grad()
def score_photographs(model: CroCo, recipe: TwoViewRecipe, data: Path, device: torch.device) -> dict[str, float]:
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


def measure_rendering(device: torch.device, size: int = 96, pairs: int = 256) -> float:
    """Rendered pairs a second."""
    settings, numbers = SceneSettings(size=(size, size)), torch.arange(pairs, device=device)

    def once() -> float:
        begin = time.perf_counter()
        float(render_pairs(settings, 0, numbers).views[1].image.mean())
        return time.perf_counter() - begin

    once()
    return pairs / min(once() for _ in range(5))


def save(out: Path, part: str, result: dict[str, Any], device: torch.device) -> None:
    """Puts a part into OUT/croco.json, in place of what stood there of it."""
    path = out / "croco.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    command = shlex.join(["python", "benchmarks/croco.py", *sys.argv[1:]])
    about = {
        "what": "cross-view completion on rendered scenes, and disparity after it",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commands": list(dict.fromkeys([*before.get("commands", []), command])),
    }
    path.write_text(json.dumps(before | about | {part: result}, indent=1) + "\n", encoding="utf-8")
    print(part, json.dumps({key: value for key, value in result.items() if key != "log"}, indent=1), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="CroCo on rendered scenes.")
    parser.add_argument("what", choices=("check", "race", "train", "prove", "disparity", "all"))
    parser.add_argument("--minutes", type=float, default=7.0, help="for the whole command, but for the proof's seconds")
    parser.add_argument("--race", type=float, default=0.0, help="of all: so many of these minutes for a race at first")
    parser.add_argument("--out", type=Path, default=Path("runs/croco-bench"))
    parser.add_argument("--data", type=Path, help="a folder of Middlebury's stereo scenes")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=1024, help="scenes of each part of the proof")
    parser.add_argument("--set", action="append", default=[], help="a setting of croco-scenes, key=value")
    parser.add_argument("--set-disparity", action="append", default=[], help="a setting of disparity-scenes, key=value")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        help="of a race, in place of ours: 'NAME KEY=VALUE...'",
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = choose_device(arguments.device)
    every, minutes = arguments.what == "all", arguments.minutes
    if every or arguments.what == "check":
        recipe = load("croco-scenes", arguments.set, training__device=arguments.device)
        save(arguments.out, "check", check(recipe, device), device)
    if every:
        save(arguments.out, "rendering", {"pairs_per_second": measure_rendering(device), "size": 96}, device)
    if arguments.what == "race" or (every and arguments.race):
        racing = arguments.race if every else minutes
        result, changes = race(arguments, racing, lambda run: score_choice(arguments, run))
        save(arguments.out, "race", result, device)
        arguments.set, minutes = arguments.set + changes, minutes - racing
    if every or arguments.what == "train":
        save(arguments.out, "train", train(arguments, minutes * (0.78 if every else 1)), device)
    if every or arguments.what == "prove":
        save(arguments.out, "prove", prove(arguments), device)
    if every or arguments.what == "disparity":
        save(arguments.out, "disparity", disparity(arguments, minutes * (0.22 if every else 1)), device)


if __name__ == "__main__":
    main()
