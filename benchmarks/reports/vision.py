"""Speed of image data and results of the image recipes."""

import shlex
from itertools import pairwise

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result

RECIPES = ("mnist", "cifar10", "cifar10-cct", "cifar10-plain", "cifar10-swin")
THEIRS = "transformers"
JPEG = "CIFAR-10 (JPEG)"
HEADS = ("recipe", "parameters", "test images", "accuracy, % (95 % interval)", "steps", "training, s", "images/s")


def write_reading(found: dict[str, Result]) -> str:
    """Images per second by data set and augmentation preset."""
    return paragraphs(*map(_write_reading_on, found.values()))


def _write_reading_on(result: Result) -> str:
    rows = (
        (row["set"], str(row["size"]), *(f"{row[key]:,}" for key in ("store", "read_stored", "read_streamed")))
        for row in result["sets"]
    )
    changed = (f"{row['preset']} at {row['size']}: {row['per_second']:,}" for row in result["augmentation"])
    return paragraphs(
        f"Images per second on {cite(result, with_command=False)}:",
        table(("set", "size", "decoded and stored", "read from the store", "decoded on demand"), rows),
        f"Augmentation in batches of 256: {'; '.join(changed)}. Rendered shapes: {result['shapes']:,}.",
    )


def write_speed(result: Result) -> str:
    """Training steps next to transformers with the same weights."""
    timed = sorted((row for row in result["rows"] if "error" not in row), key=lambda row: -row["images_per_second"])
    theirs = [row for row in timed if row["name"].startswith(THEIRS)]
    rows = (
        (
            row["name"],
            f"{row['images_per_second']:,.0f}",
            f"{row['step_ms']:.1f}",
            f"{row['step_gib']:.1f}",
            *("" if row in theirs else f"{row['images_per_second'] / one['images_per_second']:.2f}×" for one in theirs),
        )
        for row in timed
    )
    failed = (f"{row['name']} failed: {row['error']}." for row in result["rows"] if "error" in row)
    return paragraphs(
        table(("system", "images/s", "ms per step", "GiB per step", *(f"× {row['name']}" for row in theirs)), rows),
        " ".join((*failed, f"{begin_sentence(result['what'])}; {cite(result, 'transformers')}.")),
    )


def write_recipes(found: dict[str, Result]) -> str:
    """Test accuracy of each recipe."""
    runs = {name.removeprefix("vision-"): result for name, result in found.items()}
    jpeg = f"{JPEG} is CIFAR-10 stored as JPEG of about quality 75, so figures do not compare with the original images."
    return paragraphs(
        "Test accuracy after training from scratch:",
        table((*HEADS, "run in parallel with"), (_row(name, run) for name, run in runs.items())),
        _write_mirrored(runs),
        jpeg if any(_set_of(name) == JPEG for name in runs) else "",
        _write_changes(runs),
        f"{'; '.join(dict.fromkeys(cite(run, with_command=False) for run in runs.values()))}; "
        "`python benchmarks/vision.py --data DATA --out OUT`.",
    )


def _row(name: str, run: Result) -> tuple[str, ...]:
    test = run["test"]
    low, high = test["interval"]
    return (
        f"`{name}`",
        f"{run['parameters'] / 1e6:.1f} M",
        f"{_set_of(name)}, {test['conditions']['images']:,}",
        f"**{test['accuracy']:.2f}** ({low:.2f} to {high:.2f})",
        f"{run['steps']:,}{'' if run['finished'] else ', stopped'}",
        f"{run['training_seconds']:,.0f}",
        "" if run["images_per_second"] is None else f"{run['images_per_second']:,.0f}",
        ", ".join(f"`{other}`" for other in run["parallel_with"]) or "",
    )


def _write_mirrored(runs: dict[str, Result]) -> str:
    """Accuracy with mirror averaging."""
    twice = {name: run["test_mirrored"] for name, run in runs.items() if "test_mirrored" in run}
    found = ", ".join(
        f"`{name}` {both['accuracy']:.2f} % ({both['interval'][0]:.2f} to {both['interval'][1]:.2f})"
        for name, both in twice.items()
    )
    return f"With `--mirrored`: {found}." if found else ""


def _set_of(recipe: str) -> str:
    return "MNIST" if recipe == "mnist" else JPEG


def _write_changes(runs: dict[str, Result]) -> str:
    """Settings of the runs that differ from their recipes."""
    names: dict[str, list[str]] = {}
    for name, run in runs.items():
        changes = [f"`{value}`" for flag, value in pairwise(shlex.split(run["command"])) if flag == "--set"]
        names.setdefault(", ".join(changes), []).append(f"`{name}`")
    return " ".join(f"{', '.join(recipes)} with {changes}." for changes, recipes in names.items() if changes)
