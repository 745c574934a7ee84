"""BLEU of the configurations of a table of benchmarks/translation.py, by seed."""

import re
import statistics
from collections import defaultdict

from .markdown import cite, paragraphs, table
from .results import Result

HEADS = ("configuration", "changes", "seeds", "BLEU valid", "BLEU test", "± of seeds", "each seed", "training s")


def group_by_configuration(found: dict[str, Result]) -> dict[str, list[Result]]:
    """Group results by configuration, and by test set if there are several, the highest validation BLEU first."""
    runs: dict[str, list[Result]] = defaultdict(list)
    for name, run in found.items():
        configuration = re.sub(r"-seed\d+$", "", name)
        for each, scores in run.get("sets", {"": {}}).items():
            runs[f"{configuration}, {each}" if each else configuration].append(run | scores)
    return dict(sorted(runs.items(), key=lambda item: -validation_bleu(item[1])))


def validation_bleu(runs: list[Result]) -> float:
    """The mean over seeds of the BLEU on the validation data."""
    return statistics.mean(run["val"] for run in runs)


def best_configuration(found: dict[str, Result], seeds: int = 3) -> list[Result]:
    """The results on the test set of the configuration with the highest validation BLEU, of those with enough seeds."""
    runs = ([run for run in runs if "score" in run] for runs in group_by_configuration(found).values())
    return next((runs for runs in runs if len(runs) >= seeds), [])


def write_configurations(name: str, title: str, found: dict[str, Result]) -> str:
    """One row per configuration and test set, with the mean and the standard deviation of the seeds."""
    groups = group_by_configuration(found)
    first = next((run for runs in groups.values() for run in runs if "score" in run), next(iter(groups.values()))[0])
    shared = " ".join(f"`{change}`" for change in first["configuration"]["all"])
    signature = f" Signature `{first['score']['signature']}`." if "score" in first else ""
    command = f"python benchmarks/translation.py {name} DATA OUT CONFIGURATION --seed 1 2 3 --test"
    notes = sorted({run["note"] for run in found.values() if "note" in run})
    return paragraphs(
        f"{title}, beam 5, default length penalty:",
        table(HEADS, [_row(*group) for group in groups.items()]),
        f"Recipe `multi30k-en-de` with {shared} and the changes of the row.{signature} "
        f"{cite(first, with_command=False)}; `{command}`. {' '.join(notes)}".rstrip(),
    )


def _row(name: str, runs: list[Result]) -> tuple[str, ...]:
    tested = [run["score"]["value"] for run in runs if "score" in run]
    return (
        name,
        _describe(runs[0]["configuration"]),
        str(len(runs)),
        f"{validation_bleu(runs):.2f}",
        f"**{statistics.mean(tested):.2f}**" if tested else "",
        f"{statistics.stdev(tested):.2f}" if len(tested) > 1 else "",
        ", ".join(f"{score:.2f}" for score in tested),
        f"{statistics.mean(run['training_seconds'] for run in runs):.0f}",
    )


def _describe(configuration: Result) -> str:
    """The changes of a configuration in a table cell."""
    parts = [" ".join(f"`{change}`" for change in configuration.get("set", ()))]
    for phase in ("first", "then"):
        if phase in configuration:
            parts.append(f"{phase} " + " ".join(f"`{change}`" for change in configuration[phase]))
    for teachers in configuration.get("teachers", ()):
        models = f"{len(teachers['seeds'])} models `{teachers['name']}`" + " as an ensemble" * bool(
            teachers.get("ensemble")
        )
        directions = " and ".join(teachers.get("directions", ("forward", "backward")))
        parts.append(f"{' and '.join(teachers.get('texts', ('train',)))} translated {directions} by {models}")
    if "init" in configuration:
        parts.append(f"from `{configuration['init']}`")
    return "; ".join(part for part in parts if part)
