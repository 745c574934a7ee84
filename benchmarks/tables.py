"""Writes the tables of README.md and the pages in docs from benchmarks/results and from the settings themselves.

python benchmarks/tables.py           writes them
python benchmarks/tables.py --check   only says whether they are up to date

A table stands between <!-- its name --> and <!-- /its name -->; PAGES says who writes it, and from which results.
"""

import re
import sys
from functools import partial
from pathlib import Path

from reports import attention, croco, decoding, headline, parallel, serving, settings, training, translation, vision
from reports.results import Writer, of, of_all

from regard.models.swin import SwinConfig
from regard.models.vit import ViTConfig

ROOT = Path(__file__).parent.parent
TRANSLATION = of_all(["multi30k-captured-seed*", "multi30k-en-de-seed*"], translation.write_multi30k)
HEADLINE = of_all(
    ["multi30k-captured-seed*", "vision-mnist", "vision-cifar10", "training-gpu", "decoding-gpu", "engines"],
    headline.write_headline,
)
PAGES: dict[str, dict[str, Writer]] = {
    "README.md": {"results": HEADLINE},
    "docs/attention.md": {
        "quality": of("attention-quality", attention.write_quality),
        "cost": of_all(["attention-cpu", "attention-gpu"], attention.write_costs),
        "kinds": settings.write_kinds_of_attention,
        "kernels": of("kernels-gpu", attention.write_kernels),
    },
    "docs/classification.md": {
        "settings of classification": settings.write_classification,
        "recipes": of_all([f"vision-{name}" for name in vision.RECIPES], vision.write_recipes, otherwise=""),
    },
    "docs/croco.md": {"proof": of("croco", croco.write_croco, otherwise="")},
    "docs/decoding-speed.md": {
        "decoding": of("decoding-cpu", decoding.write_cpu),
        "engines on a CPU": of("engines", decoding.write_engine_ratios),
        "speeds": of("decoding-gpu", decoding.write_gpu_speeds),
        "same sentences": of("decoding-gpu", decoding.write_gpu_equality),
        "profile": of("decoding-gpu", decoding.write_gpu_profile),
    },
    "docs/settings.md": {"settings": settings.write_translation},
    "docs/images.md": {
        "images": settings.write_images,
        "augmentation": settings.write_augmentation,
        "speed": of_all(["images-*"], vision.write_reading),
    },
    "docs/web-page.md": {"speed of the page": of("page", serving.write_page)},
    "docs/nat.md": {
        "parallel": settings.write_parallel,
        "trade": of_all([f"parallel-{name}" for name in ("builtin", "gpu", "cpu")], parallel.write_trade),
        "verdict": of_all([f"parallel-{name}" for name in ("gpu", "cpu")], parallel.write_verdict),
    },
    "docs/quantisation.md": {
        "quantised": of("quantised", decoding.write_quantised),
        "engines": of("engines", decoding.write_engines),
    },
    "docs/serving.md": {"serving": of("serving", serving.write_serving)},
    "docs/objectives.md": {"teaching": of("teaching", translation.write_teaching)},
    "docs/training-speed.md": {
        "recipe": TRANSLATION,
        "curves": of("training-curve", training.write_curves),
        "steps": of("training-gpu", training.write_steps),
        "memory": of("training-gpu", training.write_memory),
        "profile": of_all(["training-gpu-before", "training-gpu"], training.write_profile),
        "cpu": of("training-cpu", training.write_cpu),
    },
    "docs/vision.md": {
        "settings of vit": partial(settings.write_image_model, ViTConfig),
        "settings of swin": partial(settings.write_image_model, SwinConfig),
        "speed": of("vision-speed-gpu", vision.write_speed),
    },
}


def put(text: str, name: str, written: str) -> str:
    """The text of a page with what was written in the place of that name."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    new, places = pattern.subn(lambda _: f"{begin}{written}\n{end}" if written else f"{begin}{end}", text)
    if places != 1:
        sys.exit(f"{places} places for the table {name!r} in a page that should have one")
    return new


def main() -> None:
    stale = []
    for page, writers in PAGES.items():
        path = ROOT / page
        new = old = path.read_text("utf-8")
        for name, write in writers.items():
            new = put(new, name, write())
        if new != old:
            stale.append(page)
            if "--check" not in sys.argv:
                path.write_text(new, "utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"{', '.join(stale)}: not up to date; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
