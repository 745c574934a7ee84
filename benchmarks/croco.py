"""CroCo on rendered scenes: does the second view help, and only where it can; does the attention find the match; and do
the weights help with disparity?

    python benchmarks/croco.py check
    python benchmarks/croco.py all --minutes 7 --race 1.2 --out runs/croco-bench --data stereo-middlebury

`check` looks at the gradients of a first step, in a few seconds. `race` trains several settings side by side, in a
process each, and says which did best on scenes set aside for that; `train` learns completion for so many minutes,
`prove` scores the run on other scenes never trained on and on photographs, `disparity` trains for disparity for as many
steps from those weights and from none. `all` does all of it, with the settings that won where there is time for a race.
Each writes its part of OUT/croco.json and its pictures into OUT.

For how many steps there is time, a trial tells; compiling is part of it and of the minutes. What other work will come
to the machine no trial can know: say it with --share, or with --steps and --disparity-steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import stubs  # noqa: F401  # before all that imports regard
import torch
from croco_check import check
from croco_evaluation import prove, score_choice
from croco_training import disparity, load, train
from croco_variants import race

from regard.data.two_view import SceneSettings, render_pairs
from regard.runtime import choose_device


def measure_rendering(device: torch.device, size: int = 96, pairs: int = 256) -> float:
    """Rendered pairs a second."""
    settings, numbers = SceneSettings(size=(size, size)), torch.arange(pairs, device=device)

    def once() -> float:
        begin = time.perf_counter()
        float(render_pairs(settings, 0, numbers).views[1].image.mean())
        return time.perf_counter() - begin

    once()
    return pairs / min(once() for _ in range(5))


def tell(word: str, out: Path) -> str:
    """A word of the command without folders of this machine: OUT is a run, any other place outside is its last part."""
    key, equals, value = word.rpartition("=")
    path = Path(value)
    if path == out:
        return f"{key}{equals}runs/{path.name}"
    return f"{key}{equals}{path.name}" if path.is_absolute() or ".." in path.parts else word


def save(out: Path, part: str, result: dict[str, Any], device: torch.device) -> None:
    """Puts a part into OUT/croco.json, in place of what stood there of it."""
    path = out / "croco.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    command = shlex.join(["python", "benchmarks/croco.py", *(tell(word, out) for word in sys.argv[1:])])
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
        "--share", type=float, default=0.8, help="of the training's time that is planned for: less where others come"
    )
    parser.add_argument("--steps", type=int, help="of completion, without a trial; else as many as there is time for")
    parser.add_argument("--disparity-steps", type=int, help="the same of both runs of disparity")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        help="of a race, in place of ours: 'NAME KEY=VALUE...'; of one patch size, in which hits are counted",
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
        plain = load("croco-scenes", [])
        result, changes = race(arguments, racing, lambda run: score_choice(arguments, plain, run))
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
