"""How good translators are: the recipe of Multi30k, and ways to teach."""

import re
import statistics

from .markdown import begin_sentence, cite, paragraphs, show, table
from .results import Result


def write_multi30k(found: dict[str, Result]) -> str:
    """BLEU of every seed, and what its training took where that was written down."""
    runs = list(found.values())
    first, scores = runs[0], [run["score"]["value"] for run in runs]
    cells = [first["what"], f"**{statistics.mean(scores):.2f}**", ", ".join(f"{score:.2f}" for score in scores)]
    heads = ["what", "BLEU, mean of seeds", "each seed"]
    if any("training_seconds" in run for run in runs):
        heads.append("training of each, s")
        cells.append(", ".join(show(run.get("training_seconds")) or "unknown" for run in runs))
    commands = dict.fromkeys(re.sub(r"--seed \d+", "--seed N", run["command"]) for run in runs)
    return paragraphs(
        table(heads, [cells]),
        f"Signature `{first['score']['signature']}`; recipe `multi30k-en-de`, {first['steps']:,} steps, weights "
        f"averaged over the last fifth; {cite(first | {'command': '`, `'.join(commands)})}.",
        _write_notes(runs),
    )


def write_recorded(found: dict[str, Result]) -> str:
    """What a small recipe takes and scores with its steps recorded, beside runs of plain steps."""
    kinds = {"recorded": "multi30k-recorded", "plain": "multi30k-en-de"}
    runs = {kind: [run for name, run in found.items() if name.startswith(stem)] for kind, stem in kinds.items()}
    heads = ("steps", "training of each seed, s", "BLEU of each", "mean")
    rows = [
        (
            kind,
            ", ".join(show(run.get("training_seconds")) or "unknown" for run in of),
            ", ".join(f"{run['score']['value']:.2f}" for run in of),
            f"{statistics.mean(run['score']['value'] for run in of):.2f}",
        )
        for kind, of in runs.items()
        if of
    ]
    first = runs["recorded"][0]
    about = f"Recipe `multi30k-en-de`, {first['steps']:,} steps with their validations; recorded: {cite(first)}."
    return paragraphs(table(heads, rows), f"{about} {_write_notes(runs['recorded'])}")


def _write_notes(runs: list[Result]) -> str:
    """What is noted of the runs, each note once, with the seeds that it is about where those are not all."""
    seeds: dict[str, list[str]] = {}
    for run in runs:
        if "note" in run:
            seeds.setdefault(run["note"], []).append(str(run["seed"]))
    about = {note: "" if len(of) == len(runs) else f"Seed {' and '.join(of)}: " for note, of in seeds.items()}
    return " ".join(begin_sentence(f"{which}{note}.") for note, which in about.items())


def write_teaching(result: Result) -> str:
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
        table(("method", "BLEU", "what it should change", "with it", "without"), rows),
        f"{begin_sentence(result['what'])}; signature `{result['rows'][0]['bleu']['signature']}`; {cite(result)}.",
    )
