"""Generate the tables of README.md and docs/*.md from benchmarks/results and from the settings classes.

    python benchmarks/tables.py           update the pages
    python benchmarks/tables.py --check   exit with code 1 if a page is out of date

A table is placed between <!-- name --> and <!-- /name -->; PAGES maps names to writers and results.
"""

import re
import sys
from functools import partial
from pathlib import Path

from reports import (
    attention,
    attribution,
    cleaning,
    confidence,
    configurations,
    croco,
    decoding,
    domain,
    experiments,
    glossary,
    headline,
    nat,
    serving,
    settings,
    speed,
    training,
    translation,
    vision,
)
from reports.results import Writer, of, of_all

ROOT = Path(__file__).parent.parent
TRANSLATION = of_all(["multi30k-captured-seed*", "multi30k-en-de-seed*"], translation.write_multi30k)
MULTI30K = ["multi30k-captured-seed*", "multi30k/*"]
HEADLINE = of_all(
    [*MULTI30K, "vision-mnist", "vision-cifar10", "training-gpu", "decoding-gpu", "engines"], headline.write_headline
)
TRANSLATION_TABLES = {
    "multi30k": "Multi30k English-German, test_2016_flickr, tokenised and lowercased",
    "multi30k-en-fr": "Multi30k English-French, test_2016_flickr, tokenised and lowercased",
    "ablations": "Ablations on Multi30k English-German, test_2016_flickr, tokenised and lowercased",
    "tatoeba-en-de": "Tatoeba English-German",
    "tatoeba-de-en": "Tatoeba German-English",
    "en-zh": "English-Chinese",
    "zh-en": "Chinese-English",
}
"""Results of benchmarks/translation.py: the folder and the title of each table."""


def of_table(name: str, title: str) -> Writer:
    return of_all([f"{name}/*"], partial(configurations.write_configurations, name, title), otherwise="")


def of_confidence(language: str) -> dict[str, Writer]:
    writers = {"confidence": confidence.write_calibration, "flags": confidence.write_flags}
    return {name: of("confidence", partial(write, language=language)) for name, write in writers.items()}


def of_experiments(language: str) -> dict[str, Writer]:
    writers = {
        "gradients": experiments.write_gradients,
        "sharpness": experiments.write_sharpness,
        "neighbours": experiments.write_neighbours,
        "self-attention": experiments.write_self_attention,
        "exposure-bias": experiments.write_exposure_bias,
    }
    return {name: of(f"experiments/{name}", partial(write, language=language)) for name, write in writers.items()}


PAGES: dict[str, dict[str, Writer]] = {
    "README.md": {"results": HEADLINE},
    "docs/attention.md": {
        "quality": of("attention-quality", attention.write_quality),
        "cost": of_all(["attention-cpu", "attention-gpu"], attention.write_costs),
        "kinds": settings.write_kinds_of_attention,
        "kernels": of("kernels-gpu", attention.write_kernels),
    },
    "docs/guides/cleaning.md": {
        "rules": cleaning.write_rules,
        "thresholds": cleaning.write_settings,
        "noise": of_all(["noisy-mix-*"], cleaning.write_noise),
        "memory": of("cleaning-cpu", cleaning.write_memory),
        "training": of("cleaning-gpu", cleaning.write_training, otherwise=""),
    },
    "docs/classification.md": {
        "recipes": of_all([f"vision-{name}" for name in vision.RECIPES], vision.write_recipes, otherwise=""),
    },
    "docs/croco.md": {"proof": of("croco", croco.write_croco, otherwise="")},
    "docs/decoding-speed.md": {
        "decoding": of("decoding-cpu", decoding.write_cpu),
        "engines": of("engines", decoding.write_engines),
        "speeds": of("decoding-gpu", decoding.write_gpu_speeds),
        "same sentences": of("decoding-gpu", decoding.write_gpu_equality),
        "profile": of("decoding-gpu", decoding.write_gpu_profile),
    },
    "docs/guides/explaining.md": {"attribution": of("attribution", attribution.write_alignment, otherwise="")},
    "docs/guides/confidence.md": of_confidence("en"),
    "docs/zh/guides/confidence.md": of_confidence("zh"),
    "docs/guides/glossary.md": {"results": of("glossary", glossary.write_glossary)},
    "docs/experiments.md": of_experiments("en"),
    "docs/zh/experiments.md": of_experiments("zh"),
    "docs/guides/domain.md": {"results": of("domain", domain.write_domain, otherwise="")},
    "docs/images.md": {
        "images": settings.write_images,
        "augmentation": settings.write_augmentation,
        "speed": of_all(["images-*"], vision.write_reading),
    },
    "docs/web-page.md": {"speed of the page": of("web-page", serving.write_page)},
    "docs/nat.md": {
        "settings of NAT": settings.write_nat,
        "quality of NAT": of_all(["multi30k-nat/*"], nat.write_quality, otherwise=""),
        "trade-off": of_all([f"nat-{name}" for name in ("builtin", "gpu", "cpu")], nat.write_trade_off),
        "claims": of_all([f"nat-{name}" for name in ("gpu", "cpu")], nat.write_claims),
    },
    "docs/quantisation.md": {
        "quantisation": of("quantisation", decoding.write_quantisation),
    },
    "docs/serving.md": {"serving": of("serving", serving.write_serving)},
    "docs/objectives.md": {
        "effects": of("objectives", translation.write_objectives),
        **{name: of_table(name, title) for name, title in TRANSLATION_TABLES.items()},
    },
    "docs/training-speed.md": {
        "recipe": TRANSLATION,
        "defaults": of_all(["training-defaults-gpu", "kills-gpu"], speed.write_defaults, otherwise=""),
        "captured": of("captured-steps-gpu", speed.write_captured, otherwise=""),
        "time to quality": of_all(["time-to-quality-*"], speed.write_time_to_quality, otherwise=""),
        "curves": of("training-curve", training.write_curves),
        "steps": of("training-gpu", training.write_steps),
        "memory": of("training-gpu", training.write_memory),
        "profile": of_all(["training-gpu-before", "training-gpu"], training.write_profile),
        "cpu": of("training-cpu", training.write_cpu),
    },
    "docs/vision.md": {
        "speed": of("vision-speed-gpu", vision.write_speed),
    },
}


def put(text: str, name: str, written: str) -> str:
    """Return the page with the table of this name replaced."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    new, count = pattern.subn(lambda _: f"{begin}{written}\n{end}" if written else f"{begin}{end}", text)
    if count != 1:
        sys.exit(f"the page has {count} markers of the table {name!r}, expected one")
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
        sys.exit(f"{', '.join(stale)}: out of date; run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
