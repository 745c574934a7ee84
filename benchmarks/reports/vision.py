"""How quickly images are read, and how good the recipes of images are."""

import shlex
from itertools import pairwise

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result

RECIPES = ("mnist", "cifar10", "cifar10-plain", "cifar10-swin")
THEIRS = "transformers"
JPEG = "CIFAR-10 (JPEG)"
HEADS = ("recipe", "parameters", "test images", "accuracy, % (95 % interval)", "steps", "training, s", "images/s")


def write_reading(found: dict[str, Result]) -> str:
    """Images a second, by set and by preset."""
    return paragraphs(*map(_write_reading_on, found.values()))


def _write_reading_on(result: Result) -> str:
    rows = (
        (row["set"], str(row["size"]), *(f"{row[key]:,}" for key in ("store", "read_stored", "read_streamed")))
        for row in result["sets"]
    )
    changed = (f"{row['preset']} at {row['size']}: {row['per_second']:,}" for row in result["augmentation"])
    return paragraphs(
        f"Images a second on {cite(result, with_command=False)}:",
        table(("set", "size", "stored", "read from the store", "decoded as asked for"), rows),
        f"Augmentation in batches of 256: {'; '.join(changed)}. Shapes drawn: {result['shapes']:,}.",
    )


def write_speed(result: Result) -> str:
    """Training steps beside transformers with the same weights, and each of ours over each of theirs."""
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
        table(("who", "images/s", "ms a step", "GiB a step", *(f"over {row['name']}" for row in theirs)), rows),
        " ".join((*failed, f"{begin_sentence(result['what'])}; {cite(result, 'transformers')}.")),
    )


def write_recipes(found: dict[str, Result]) -> str:
    """What each recipe reached on test images that it has never seen."""
    runs = {name.removeprefix("vision-"): result for name, result in found.items()}
    jpeg = (
        f"{JPEG} is CIFAR-10 kept as JPEGs of about quality 75, which lose something: these are not figures of the "
        "original images."
    )
    return paragraphs(
        "What came of them, trained from scratch, on test images never trained on:",
        table((*HEADS, "beside it"), (_row(name, run) for name, run in runs.items())),
        _write_mirrored(runs),
        jpeg if any(_set_of(name) == JPEG for name in runs) else "",
        _write_changes(runs),
        f"{'; '.join(dict.fromkeys(cite(run, with_command=False) for run in runs.values()))}; "
        "`python benchmarks/vision.py --data DATA --out OUT`.",
    )


def write_recipes_in_brief(found: dict[str, Result]) -> str:
    """Parameters, accuracy and seconds of some recipes."""
    runs = {name.removeprefix("vision-"): result for name, result in found.items()}
    rows = [_row(name, run) for name, run in runs.items()]
    return paragraphs(
        table((*HEADS[:4], HEADS[5]), ((*row[:4], row[5]) for row in rows)),
        f"{'; '.join(dict.fromkeys(cite(run, with_command=False) for run in runs.values()))}.",
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
        ", ".join(f"`{other}`" for other in run["beside"]) or "nothing",
    )


def _write_mirrored(runs: dict[str, Result]) -> str:
    """What runs reached with each image seen twice, beside the table, in which it is seen once."""
    twice = {name: run["test_seen_both_ways_round"] for name, run in runs.items() if "test_seen_both_ways_round" in run}
    found = ", ".join(
        f"`{name}` {both['accuracy']:.2f} % ({both['interval'][0]:.2f} to {both['interval'][1]:.2f})"
        for name, both in twice.items()
    )
    return f"There each image is seen once. Seen both ways round, with `--mirrored`: {found}." if found else ""


def _set_of(recipe: str) -> str:
    return "MNIST" if recipe == "mnist" else JPEG


def _write_changes(runs: dict[str, Result]) -> str:
    """What runs were given that their recipes do not say."""
    names: dict[str, list[str]] = {}
    for name, run in runs.items():
        changes = [f"`{value}`" for flag, value in pairwise(shlex.split(run["command"])) if flag == "--set"]
        names.setdefault(", ".join(changes), []).append(f"`{name}`")
    return " ".join(f"{', '.join(who)} with {changes}." for changes, who in names.items() if changes)
