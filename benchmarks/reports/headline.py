"""The results table of the README."""

import statistics

from .configurations import best_configuration
from .markdown import paragraphs, table
from .results import Result

OURS_TRAINING = "regard-captured-bf16-dropouts"
OTHERS_TRAINING = ("nn-compiled", "marian-compiled", "marian", "nn")
OURS_DECODING = "regard, captured"
OTHERS_DECODING = ("huggingface", "huggingface, static cache")
BOTH_DIRECTIONS = ("forward", "backward")
"""Directions of teachers by default, as in benchmarks/translation.py."""


def write_headline(found: dict[str, Result]) -> str:
    """One row per headline result: what, our figure, and the best other library in the same benchmark."""
    rows = [
        _multi30k(_multi30k_runs(found)),
        *(_images(name, found[f"vision-{name}"]) for name in ("mnist", "cifar10")),
        _training(found["training-gpu"]),
        *(_decoding_gpu(found["decoding-gpu"], batch, beam) for batch, beam in ((1, 1), (128, 4))),
        *(_decoding_cpu(found["engines"], batch, beam) for batch, beam in ((1, 1), (32, 4))),
    ]
    dates = sorted({result["date"] for result in found.values()})
    about = (
        f"GPU: {found['training-gpu']['machine']}; CPU: {found['engines']['machine']}; {dates[0]} to {dates[-1]}. "
        "Protocols, signatures, seeds and commands are on the linked pages."
    )
    return paragraphs(table(("task", "regard", "best other library, same benchmark", "details"), rows), about)


def _multi30k_runs(found: dict[str, Result]) -> list[Result]:
    """The seeds of the best configuration by validation BLEU, or else of the built-in recipe."""
    configurations = {name: run for name, run in found.items() if "configuration" in run}
    recipe = [run for name, run in found.items() if name.startswith("multi30k-captured")]
    return best_configuration(configurations) or recipe


def _multi30k(runs: list[Result]) -> tuple[str, ...]:
    scores = [run["score"]["value"] for run in runs]
    seconds = statistics.mean(run["training_seconds"] for run in runs)
    teachers = runs[0].get("configuration", {}).get("teachers", ())
    models = sum(len(entry["seeds"]) * len(entry.get("directions", BOTH_DIRECTIONS)) for entry in teachers)
    effort = f"{seconds:.0f} s of training each" + (f", after that of {models} teachers" if models else "")
    return (
        "Multi30k en→de, test_2016_flickr, tokenised BLEU",
        f"**{statistics.mean(scores):.2f}** (mean of {len(runs)} seeds, {effort})",
        "",
        "[objectives](docs/objectives.md#effects-on-real-data)"
        if "val" in runs[0]
        else "[training speed](docs/training-speed.md)",
    )


def _images(name: str, result: Result) -> tuple[str, ...]:
    title = {"mnist": "MNIST", "cifar10": "CIFAR-10 (JPEG)"}[name]
    accuracy, parameters = result["test"]["accuracy"], result["parameters"] / 1e6
    return (
        f"{title}, test accuracy, from scratch",
        f"**{accuracy:.2f} %** ({parameters:.1f} M parameters, {result['training_seconds']:.0f} s of training)",
        "",
        "[classification](docs/classification.md)",
    )


def _training(result: Result) -> tuple[str, ...]:
    rates = {row["name"]: row["tokens_per_second"] for row in result["rows"] if "tokens_per_second" in row}
    ours, best = rates[OURS_TRAINING], max((name for name in OTHERS_TRAINING if name in rates), key=rates.__getitem__)
    return (
        "Training Transformer-base on a GPU, all dropouts, target tokens/s",
        f"**{ours:,.0f}** ({ours / rates[best]:.1f}×)",
        f"{rates[best]:,.0f} (`{best}`)",
        "[training speed](docs/training-speed.md)",
    )


def _decoding_gpu(result: Result, batch: int, beam: int) -> tuple[str, ...]:
    rates = {
        row["system"]: row["tokens_per_second"]
        for row in result["rows"]
        if (row["batch"], row["beam"]) == (batch, beam) and row.get("kind", "forced") == "forced"
    }
    ours, best = rates[OURS_DECODING], max((name for name in OTHERS_DECODING if name in rates), key=rates.__getitem__)
    return (
        f"Decoding on a GPU, batch {batch}, beam {beam}, tokens/s",
        f"**{ours:,.0f}** ({ours / rates[best]:.1f}×)",
        f"{rates[best]:,.0f} (transformers)",
        "[decoding speed](docs/decoding-speed.md)",
    )


def _decoding_cpu(result: Result, batch: int, beam: int) -> tuple[str, ...]:
    rates = {
        row["engine"]: row["tokens_per_second"]
        for row in result["rows"]
        if (row["batch"], row["beam"]) == (batch, beam)
    }
    ours = max((name for name in rates if name.startswith("regard")), key=rates.__getitem__)
    best = max((name for name in rates if not name.startswith("regard")), key=rates.__getitem__)
    return (
        f"Decoding on 2 CPU cores, batch {batch}, beam {beam}, tokens/s",
        f"**{rates[ours]:,.0f}** ({ours.removeprefix('regard ')}, {rates[ours] / rates[best]:.2f}×)",
        f"{rates[best]:,.0f} ({best})",
        "[decoding speed](docs/decoding-speed.md)",
    )
