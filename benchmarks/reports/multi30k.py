"""BLEU of the configurations of Multi30k, by seed."""

import re
import statistics
from collections import defaultdict

from .markdown import cite, paragraphs, table
from .results import Result

HEADS = ("configuration", "changes", "seeds", "BLEU val", "BLEU test", "± of seeds", "each seed", "training s")


def group_by_configuration(found: dict[str, Result]) -> dict[str, list[Result]]:
    """Group results by the name of their configuration, the highest validation BLEU first."""
    runs: dict[str, list[Result]] = defaultdict(list)
    for name, run in found.items():
        runs[re.sub(r"-seed\d+$", "", name)].append(run)
    return dict(sorted(runs.items(), key=lambda item: -validation_bleu(item[1])))


def validation_bleu(runs: list[Result]) -> float:
    """The mean over seeds of the BLEU on the validation data, with the chosen length penalty."""
    return statistics.mean(max(run["val"].values()) for run in runs)


def best_configuration(found: dict[str, Result], seeds: int = 3) -> list[Result]:
    """The results on the test set of the configuration with the highest validation BLEU, of those with enough seeds."""
    runs = ([run for run in runs if "score" in run] for runs in group_by_configuration(found).values())
    return next((runs for runs in runs if len(runs) >= seeds), [])


def write_configurations(found: dict[str, Result]) -> str:
    """One row per configuration, with the mean and the standard deviation of the seeds."""
    rows = [_row(name, runs) for name, runs in group_by_configuration(found).items()]
    first = next((run for run in found.values() if "score" in run), next(iter(found.values())))
    shared = " ".join(f"`{change}`" for change in first["configuration"]["all"])
    signature = f"signature `{first['score']['signature']}`, " if "score" in first else ""
    return paragraphs(
        "Multi30k English-German, test_2016_flickr, tokenised and lowercased, beam 5, length penalty chosen on the "
        "validation data:",
        table(HEADS, rows),
        f"Recipe `multi30k-en-de` with {shared} and the changes of the row; {signature}"
        f"{cite(first, with_command=False)}; "
        "`python benchmarks/multi30k.py DATA OUT CONFIGURATION --seed 1 2 3 --test`.",
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
    if "teachers" in configuration:
        teachers = configuration["teachers"]
        models = f"{len(teachers['seeds'])} models `{teachers['name']}` of each direction"
        parts.append(f"with translations of {' and '.join(teachers['texts'])} by {models}")
    return "; ".join(part for part in parts if part)
