"""The tables of docs/attention.md: kernels, cost by length, and quality of the attention kinds."""

import json
import statistics
from pathlib import Path
from typing import Any

from .curves import Law, crossover, fit
from .markdown import begin_sentence, cite, dates_of, paragraphs, table
from .results import Result

PICTURE = Path(__file__).parent.parent.parent / "docs" / "images" / "attention-cost.svg"
KINDS = ("full", "local", "linear", "linear-random", "routing")
MEASURES = {"forward": "forward", "both": "forward and backward"}
FITTED = (4096, 65536)
TAIL = 16384
Row = dict[str, Any]
Costs = dict[str, dict[str, dict[int, float]]]  # by system, measure and length


def write_kernels(result: Result) -> str:
    """Varlen attention, our kernel and torch's."""
    found = {(row["part"], row["name"]): row for row in result["rows"]}
    heads = ("attention", "kernel", "forward", "forward + backward", "same, with host overhead")
    rows = []
    for kind in ("self", "causal", "cross"):
        for path, title in (("triton_varlen", "ours"), ("flash_varlen", "torch varlen_attn")):
            time, error = (found[part, f"{kind}, {path}"] for part in ("workload", "agreement"))
            times = (f"{time[key]:.2f}" for key in ("forward device", "both device", "both eager"))
            rows.append((kind, title, *times, *(f"{error[key]:.5f}" for key in ("out", "dq"))))
    return paragraphs(
        table((*heads, "error of the output", "error of dq"), rows),
        f"{result['what']}; {cite(result)}.",
    )


def write_costs(found: dict[str, Result]) -> str:
    """Growth of cost, crossover with full attention, and other libraries."""
    picture = "![Time and memory of each kind by the number of tokens](images/attention-cost.svg)"
    return paragraphs(*map(_write_cost, found.values()), picture if PICTURE.exists() else "")


def _write_cost(result: Result) -> str:
    costs = _costs(result)
    kinds = [kind for kind in KINDS if kind in costs]
    heads = (
        "kind",
        "time grows as",
        f"time from {TAIL:,} tokens",
        "memory grows as",
        "faster than full from",
        "at the longest",
    )
    return paragraphs(
        f"{cite(result | {'date': dates_of(result)})}: {result['what']}. Figures are of forward plus "
        f"backward. Exponents are fitted over {FITTED[0]:,} to {FITTED[1]:,} tokens, unless a row "
        "states other lengths.",
        table((*heads, "other libraries, same work"), (_cost_of(kind, costs, result) for kind in kinds)),
        _write_flat(kinds, costs),
        _write_quicker(costs, result["other_libraries"]),
    )


def _costs(result: Result) -> Costs:
    found: Costs = {}
    for row in result["rows"]:
        for measure in ("forward", "both", "forward_bytes", "both_bytes"):
            if measure in row:
                found.setdefault(row["name"], {}).setdefault(measure, {})[row["length"]] = row[measure]
    return found


def _cost_of(kind: str, costs: Costs, result: Result) -> tuple[str, ...]:
    time, memory = costs[kind]["both"], costs[kind]["both_bytes"]
    at, longest = crossover(time, costs["full"]["both"]), max(time)
    overtakes = f"{at:,} tokens{' or fewer' if at == min(time) else ''}" if at else "not in the measured range"
    return (
        kind,
        _show_law(fit(time, *FITTED), FITTED[1]),
        _show_law(fit(time, TAIL), max(max(series["both"]) for series in costs.values())),
        _show_law(fit(memory, *FITTED), FITTED[1]),
        "" if kind == "full" else overtakes,
        f"{longest:,}: {time[longest] * 1e3:,.1f} ms, {memory[longest] / 2**20:,.0f} MiB",
        "; ".join(
            _compare(costs, kind, library, result)
            for library, same in result["other_libraries"].items()
            if same == kind
        ),
    )


def _show_law(law: Law | None, longest: int) -> str:
    """The power law, with its range if it ends earlier than others."""
    if law is None:
        return "not measured"
    return str(law) if law.longest == longest else f"{law} ({law.shortest:,} to {law.longest:,})"


def _compare(costs: Costs, kind: str, library: str, result: Result) -> str:
    """Another library relative to ours at the longest common length."""
    if library not in costs:
        failed = any(row["name"] == library for row in result["rows"])
        return f"{library}: {'does not run on this machine' if failed else 'not measured'}"
    longest = max(costs[library]["both"].keys() & costs[kind]["both"].keys())
    time, memory = (costs[library][what][longest] / costs[kind][what][longest] for what in ("both", "both_bytes"))
    return f"{library} at {longest:,}: {time:.2f}× our time, {memory:.2f}× our memory"


def _write_flat(kinds: list[str], costs: Costs) -> str:
    """Note on exponents that reflect kernel launches rather than work."""
    flat = []
    for kind in kinds:
        time = costs[kind]["both"]
        short, long = FITTED[0], max(n for n in time if n <= FITTED[1])
        if short in time and long >= 4 * short and time[long] / time[short] < 2:
            flat.append(f"{kind} takes {time[long] / time[short]:.1f} times as long for {long // short} times as many")
    if not flat:
        return ""
    return (
        f"From {FITTED[0]:,} to {FITTED[1]:,} tokens some times are nearly constant: {_join(flat)}. They are dominated "
        "by kernel launches, so exponents far below 1 do not describe the growth of the work."
    )


def _write_quicker(costs: Costs, libraries: dict[str, str]) -> str:
    """Lengths at which another library is faster."""
    found = []
    for library, kind in libraries.items():
        if not kind or library not in costs or kind not in costs:
            continue
        for measure, name in MEASURES.items():
            ours, theirs = costs[kind][measure], costs[library][measure]
            quicker = [n for n in sorted(ours.keys() & theirs.keys()) if theirs[n] < ours[n]]
            if quicker:
                times = (f"{n:,} ({theirs[n] * 1e3:.2f} against {ours[n] * 1e3:.2f} ms)" for n in quicker)
                found.append(f"{library} in {name} at {_join(list(times))}")
    if not found:
        return "No other library is faster at any measured length."
    return f"Other libraries are faster in these cases: {'; '.join(found)}."


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def write_quality(result: Result) -> str:
    """Quality of each attention kind over several seeds."""

    def cell(task: str, kind: str) -> str:
        return _show_seeds([row for row in result["rows"] if (row["task"], row["kind"]) == (task, kind)])

    rows = (
        (f"`{json.dumps(settings)}`", *(cell(task, kind) for task in ("recall", "copy", "corpus")))
        for kind, settings in result["kinds"].items()
    )
    seeds = len({row["seed"] for row in result["rows"]})
    how = f"{begin_sentence(result['what'])}; means of {seeds} seeds, range in parentheses"
    return paragraphs(
        table(("kind", "recall", "copying", "demo corpus, BLEU"), rows), _write_worse(result), f"{how}; {cite(result)}."
    )


def _write_worse(result: Result) -> str:
    """Kinds that are worse than full attention with every seed."""
    parts = []
    for task, name in (("recall", "recall"), ("copy", "copying"), ("corpus", "the demo corpus")):
        values = {
            kind: [_score(row) for row in result["rows"] if (row["task"], row["kind"]) == (task, kind)]
            for kind in result["kinds"]
        }
        worse = [kind for kind, scores in values.items() if scores and max(scores) < min(values["full"])]
        if worse:
            parts.append(f"in {name} {_join(worse)}")
    return f"Worse than full attention with every seed: {'; '.join(parts)}." if parts else ""


def _score(row: Row) -> float:
    score: float = row["bleu"] if "bleu" in row else 100 * row["accuracy"]
    return score


def _show_seeds(rows: list[Row]) -> str:
    """Mean over seeds with the range."""
    values = [_score(row) for row in rows]
    if not values:
        return ""
    digits, unit = (2, "") if "bleu" in rows[0] else (1, "%")
    mean, least, most = (f"{value:.{digits}f}" for value in (statistics.mean(values), min(values), max(values)))
    return f"{mean}{unit} ({least} to {most})"
