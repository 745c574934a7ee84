"""Test claims about attention by experiments (docs/experiments.md).

    python benchmarks/experiments.py gradients | sharpness | neighbours | self-attention | exposure-bias
        [--runs runs/experiments] [--seeds 1 2 3] [--draw] [--out FOLDER]

Writes benchmarks/results/experiments/NAME.json and docs/images/experiments/NAME.svg; --draw only draws a result again,
and --out writes both files to a folder. The last three train the demo recipe for fewer steps with each seed in --runs,
unless it has been trained there before; exposure-bias also trains it with scheduled sampling.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from claims import exposure_bias, gradients, neighbours, self_attention, sharpness
from harness import RESULTS, environment, save_result

from regard.inspection.fonts import save_figure

IMAGES = Path(__file__).parent.parent / "docs" / "images" / "experiments"
UNTRAINED = {"gradients": gradients, "sharpness": sharpness}
TRAINED = {"neighbours": neighbours, "self-attention": self_attention, "exposure-bias": exposure_bias}
EXPERIMENTS = UNTRAINED | TRAINED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(EXPERIMENTS))
    parser.add_argument("--runs", type=Path, default=Path("runs/experiments"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results, images = (options.out or RESULTS / "experiments"), (options.out or IMAGES)
    path = results / f"{options.name}.json"
    if options.draw:
        result = json.loads(path.read_text("utf-8"))
    else:
        result = measure(options.name, options.seeds, options.runs) | environment()
        save_result(result, path)
    images.mkdir(parents=True, exist_ok=True)
    save_figure(lambda: EXPERIMENTS[options.name].draw(result), [], images / f"{options.name}.svg")


def measure(name: str, seeds: list[int], runs: Path) -> dict[str, object]:
    if name in UNTRAINED:
        return UNTRAINED[name].measure(seeds)
    return TRAINED[name].measure(seeds, runs)


if __name__ == "__main__":
    main()
