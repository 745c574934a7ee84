"""Translation quality: the Multi30k recipe and training objectives."""

import re
import statistics

from .markdown import begin_sentence, cite, paragraphs, show, table
from .results import Result

KINDS = {"captured": "multi30k-captured-seed", "eager": "multi30k-en-de-seed"}
"""Training modes and the prefixes of their result files."""


def write_multi30k(found: dict[str, Result]) -> str:
    """BLEU and training time of every seed, with captured and with eager steps."""
    runs = {kind: [run for name, run in found.items() if name.startswith(stem)] for kind, stem in KINDS.items()}
    runs = {kind: of for kind, of in runs.items() if of}
    first = next(iter(runs.values()))[0]
    heads = ("steps", "BLEU, mean of seeds", "each seed", "training time of each, s")
    about = (
        f"Signature `{first['score']['signature']}`; recipe `multi30k-en-de`, {first['steps']:,} steps including "
        "validation, weights averaged over the last fifth."
    )
    return paragraphs(
        f"{first['what']}:",
        table(heads, map(_score_of, runs, runs.values())),
        " ".join((about, *map(_cite_runs, runs, runs.values()))),
    )


def _score_of(kind: str, runs: list[Result]) -> tuple[str, ...]:
    scores = [run["score"]["value"] for run in runs]
    times = (show(run.get("training_seconds")) or "unknown" for run in runs)
    return kind, f"**{statistics.mean(scores):.2f}**", ", ".join(f"{score:.2f}" for score in scores), ", ".join(times)


def _cite_runs(kind: str, runs: list[Result]) -> str:
    """Citation of the runs with their notes; a note that does not apply to all seeds names its seeds."""
    command = re.sub(r"--seed \d+", "--seed N", runs[0]["command"])
    seeds: dict[str, list[str]] = {}
    for run in runs:
        if "note" in run:
            seeds.setdefault(run["note"], []).append(str(run["seed"]))
    notes = (
        f" ({note})" if len(of) == len(runs) else f" (seed{'s' if len(of) > 1 else ''} {' and '.join(of)}: {note})"
        for note, of in seeds.items()
    )
    return begin_sentence(f"{kind}: {cite(runs[0] | {'command': command})}{''.join(notes)}.")


def write_objectives(result: Result) -> str:
    rows = (
        (
            row["method"],
            f"{row['bleu']['value']:.2f}",
            row["what"],
            *("" if row[key] is None else f"{row[key]:.3f}" for key in ("value", "without")),
        )
        for row in result["rows"]
    )
    return paragraphs(
        table(("method", "BLEU", "quantity that it should change", "with", "without"), rows),
        f"{begin_sentence(result['what'])}; signature `{result['rows'][0]['bleu']['signature']}`; {cite(result)}.",
    )
