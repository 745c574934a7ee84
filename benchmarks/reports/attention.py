"""The tables of docs/attention.md: kernels, cost by length, and what other kinds of attention cost in quality."""

import json
import statistics
from pathlib import Path
from typing import Any

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result

PICTURE = Path(__file__).parent.parent.parent / "docs" / "images" / "attention-cost.svg"
KINDS = ("full", "local", "linear", "linear-random", "routing")
Row = dict[str, Any]
RowsByLength = dict[tuple[str, int], Row]


def write_kernels(result: Result) -> str:
    """Attention of short sequences, ours beside PyTorch's."""
    found = {(row["part"], row["name"]): row for row in result["rows"]}
    heads = ("attention of short sequences", "who", "forward", "both", "both, host included")
    rows = []
    for kind in ("self", "causal", "cross"):
        for path, who in (("short", "ours"), ("varlen", "PyTorch's varlen_attn")):
            time, error = (found[part, f"{kind}, {path}"] for part in ("workload", "agreement"))
            times = (f"{time[key]:.2f}" for key in ("forward device", "both device", "both eager"))
            rows.append((kind, who, *times, *(f"{error[key]:.5f}" for key in ("out", "dq"))))
    return paragraphs(
        table((*heads, "error of the context", "of dq"), rows),
        f"{result['what']}; {cite(result)}.",
    )


def write_costs(found: dict[str, Result]) -> str:
    """How cost grows, where each kind overtakes full attention, and how it stands beside its fastest peer."""
    picture = "![Time and memory of each kind by the number of tokens](images/attention-cost.svg)"
    return paragraphs(*map(_write_cost, found.values()), picture if PICTURE.exists() else "")


def _write_cost(result: Result) -> str:
    rows = {(row["name"], row["length"]): row for row in result["rows"] if "both" in row}
    heads = ("kind", "time grows as", "memory grows as", "faster than full from", "at the longest")
    return paragraphs(
        f"{cite(result, with_command=False)}: {result['what']}. Exponents are fitted over 4,096 to 65,536 tokens; all "
        "figures are of forward and backward together.",
        table(
            (*heads, "same work by peers"),
            (_cost_of(kind, rows, result) for kind in KINDS if kind in result["summary"]),
        ),
    )


def _cost_of(kind: str, rows: RowsByLength, result: Result) -> tuple[str, ...]:
    summary, lengths = result["summary"][kind], [length for name, length in rows if name == kind]
    row = rows[kind, max(lengths)]
    exponents = (summary["exponents"][what] for what in ("both", "both_bytes"))
    at = summary["overtakes_full_at"]["both"]
    overtakes = f"{at:,} tokens{' or fewer' if at == min(lengths) else ''}" if at else "no length measured"
    return (
        kind,
        *("" if exponent is None else f"n^{exponent:.2f}" for exponent in exponents),
        "" if kind == "full" else overtakes,
        f"{max(lengths):,}: {row['both'] * 1e3:,.1f} ms, {row['both_bytes'] / 2**20:,.0f} MiB",
        "; ".join(_compare(rows, kind, peer, result) for peer, same in result["peers"].items() if same == kind),
    )


def _compare(rows: RowsByLength, kind: str, peer: str, result: Result) -> str:
    """A peer beside ours at the longest length that both have been measured at."""
    lengths = [length for name, length in rows if name == peer and (kind, length) in rows]
    if not lengths:
        failed = any(row["name"] == peer for row in result["rows"])
        return f"{peer}: {'does not run here' if failed else 'not measured'}"
    ours, theirs = rows[kind, max(lengths)], rows[peer, max(lengths)]
    time, memory = (theirs[what] / ours[what] for what in ("both", "both_bytes"))
    return f"{peer} at {max(lengths):,}: {time:.2f}× our time, {memory:.2f}× our memory"


def write_quality(result: Result) -> str:
    """What each kind of attention learns, over several seeds."""

    def cell(task: str, kind: str) -> str:
        return _show_seeds([row for row in result["rows"] if (row["task"], row["kind"]) == (task, kind)])

    rows = (
        (f"`{json.dumps(settings)}`", *(cell(task, kind) for task in ("recall", "copy", "corpus")))
        for kind, settings in result["kinds"].items()
    )
    seeds = len({row["seed"] for row in result["rows"]})
    how = f"{begin_sentence(result['what'])}; means of {seeds} seeds, in brackets the worst and the best"
    return paragraphs(table(("kind", "recall", "copying", "demo corpus, BLEU"), rows), f"{how}; {cite(result)}.")


def _show_seeds(rows: list[Row]) -> str:
    """The mean over seeds, with its range."""
    values = [row["bleu"] if "bleu" in row else 100 * row["accuracy"] for row in rows]
    if not values:
        return ""
    digits, unit = (2, "") if "bleu" in rows[0] else (1, "%")
    mean, least, most = (f"{value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values)))
    return f"{mean}{unit} ({least} to {most})"
