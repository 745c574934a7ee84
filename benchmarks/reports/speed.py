"""Tables of docs/training-speed.md about the defaults: time to quality, captured steps, and killed runs."""

from .markdown import begin_sentence, cite, paragraphs, show, table
from .results import Result


def write_time_to_quality(found: dict[str, Result]) -> str:
    """Seconds from raw data to a trained model, for each task that was measured."""
    heads = ("task", "score required", "score, mean", "each", "seconds, mean", "each", "steps alone")
    rows = [
        (
            result["recipe"],
            f"{result['bound']:g} {result['what']}",
            f"{result['score']:.2f}",
            ", ".join(f"{run['score']:.2f}" for run in result["runs"]),
            f"**{result['seconds']:.1f}**",
            ", ".join(f"{run['seconds']:.1f}" for run in result["runs"]),
            ", ".join(f"{run['phases']['steps']:.1f}" for run in result["runs"]),
        )
        for result in found.values()
    ]
    settings = [
        f"{result['recipe']}{' with ' if result['settings'] else ''}"
        f"{', '.join(f'`{setting}`' for setting in result['settings'])}: {cite(result, with_command=False)}"
        for result in found.values()
    ]
    return paragraphs(table(heads, rows), f"{'; '.join(settings)}.")


def write_captured(result: Result) -> str:
    """Milliseconds per step, captured and eager, and whether the weights are equal."""
    compared = [row for row in result["rows"] if "identical" in row]
    rows = [
        (
            row["name"],
            f"{row['ms']:.2f}",
            f"{row['eager_ms']:.1f}",
            f"{row['gain']:.1f}×",
            "identical" if row["identical"] else f"differ by {row['max_difference']:.1g}{_of_eager_runs(row)}",
        )
        for row in compared
    ]
    relative = "; ".join(f"{name}: {value:.2f}" for name, value in result["relative"].items())
    times = f"Times relative to teacher forcing with the same model: {relative}." if relative else ""
    return paragraphs(
        table(("step", "captured, ms", "eager, ms", "gain", "weights"), rows),
        f"{begin_sentence(result['what'])}. {times} {cite(result)}.",
    )


def _of_eager_runs(row: Result) -> str:
    between = row["max_difference_of_eager_runs"]
    return f" (two eager runs: {between:.1g})" if between else ""


def write_defaults(found: dict[str, Result]) -> str:
    """Speed of `regard train` without settings, and the runs that were killed and resumed."""
    parts = []
    if "training-defaults-gpu" in found:
        result = found["training-defaults-gpu"]
        first, phases = result["seconds_until_step"], result["phases"]
        what = result["what"].replace("regard train", "`regard train`")
        parts.append(
            f"{what}: {show(result['tokens_per_second'])} target tokens per second "
            f"({show(result['slowest'])} to {show(result['fastest'])}); {phases['start-up']:.1f} s until the data are "
            f"read, tokenised and in memory, then {first['1']:.1f} s until the end of the first step and "
            f"{first['10']:.1f} s until the tenth, when steps are captured; {cite(result, with_command=False)}."
        )
    if "kills-gpu" in found:
        result = found["kills-gpu"]
        identical = sum(job["identical"] for job in result["jobs"])
        jobs = "; ".join(job["job"] for job in result["jobs"])
        parts.append(
            f"{show(result['kills'])} processes with captured steps were killed and resumed on the GPU; models, "
            f"checkpoints and logs of {identical} of {len(result['jobs'])} runs equal those of uninterrupted runs to "
            f"the bit ({jobs})."
        )
    return paragraphs(*parts)
