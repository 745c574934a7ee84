"""The tables of docs/training-speed.md, from the results of benchmarks/training.py."""

from math import comb
from statistics import mean
from typing import Any

from .kernels import MATMULS, REST, sum_by_group
from .markdown import begin_sentence, cite, dates_of, paragraphs, show, table
from .results import Result

GROUPS = {
    "linear layers": rf"{MATMULS}|^matmul_relu_backward$",  # the latter includes the backward pass of ReLU
    "attention": r"^(varlen_forward|varlen_backward_\w+|find_key_ranges)$|flash|fmha",
    "Add & Norm": r"layer_norm|LayerNorm|add_norm|GammaBeta",
    "cross-entropy": r"cross_entropy_\w+_reads?|softmax|nll_loss",
    "optimizer": r"multi_tensor_apply",
}
SPEEDS = {
    "tokens per batch": "tokens",
    "tokens/s": "tokens_per_second",
    "ms per step": "step_ms",
    "TFLOP/s": "tflops",
    "warm-up, s": "warm_up_s",
    "dropouts": "dropouts",
}
MEMORY = {
    "KiB per token": "step_kib_per_token",
    "peak GiB": "peak_gib",
    "largest batch, tokens": "largest_batch_tokens",
    "positions": "largest_batch_positions",
    "its peak GiB": "largest_peak_gib",
}
TIMES = "× best other"
TOTALS = {"all kernels": "kernels_ms", "host": "host_ms", "launches": "launches"}
DROPOUTS = {"the paper's": "the paper's dropouts", "all": "all dropouts of nn.Transformer"}
Row = dict[str, Any]


def write_steps(result: Result) -> str:
    """Speed of every system."""
    rows = sorted(result["rows"], key=lambda row: -row.get("tokens_per_second", 0))
    cells = ([_name(row), *(show(row.get(key)) for key in SPEEDS.values()), _times(row, rows)] for row in rows)
    return paragraphs(table(["system", *SPEEDS, TIMES], cells), " ".join([*compare(rows), _about(result)]))


def write_memory(result: Result) -> str:
    """Memory per token and the largest batch of every system."""
    rows = sorted((row for row in result["rows"] if "peak_gib" in row), key=lambda row: row["step_kib_per_token"])
    if not rows:
        return ""
    cells = ([_name(row), *(show(row.get(key)) for key in MEMORY.values())] for row in rows)
    ends = [f"{row['name']} by {row['largest_stopped_by']}" for row in rows if "largest_stopped_by" in row]
    stopped = f"Not limited by memory: {'; '.join(ends)}." if ends else ""
    return paragraphs(table(["system", *MEMORY], cells), stopped)


def write_curves(result: Result) -> str:
    """Distance between the loss curves of the fastest path and of the reference."""
    found = result["distances"]
    titles_of_groups = {"two_seeds": "two seeds of the reference", "ours": "regard and the reference"}
    known = [group for group in titles_of_groups if f"mean_distance_of_{group}" in found]
    if not known:
        return ""
    heads = ("distance of losses, means of ten steps", *(titles_of_groups[group] for group in known))
    titles = {"mean": "mean over the second half", "largest": "maximum"}
    rows = ((title, *(str(found[f"{what}_distance_of_{group}"]) for group in known)) for what, title in titles.items())
    ends = (f"{row['name']} from {row['losses'][0]} to {row['last']}" for row in result["rows"] if "losses" in row)
    about = f"{begin_sentence(result['what'])}, {found['compared_steps']} of them compared"
    return paragraphs(
        table(heads, rows),
        _judge_curves(result),
        f"Losses: {'; '.join(ends)}. {about}; {cite(result, with_command=False)}.",
    )


def _judge_curves(result: Result) -> str:
    """Whether regard is as close to the reference as two seeds of the reference are to each other."""
    found, curves = result["distances"], {row["name"]: row["losses"] for row in result["rows"] if "losses" in row}
    if not all(f"mean_distance_of_{group}" in found for group in ("ours", "two_seeds")):
        return ""
    words = {}
    for what in ("mean", "largest"):
        ours, seeds = (found[f"{what}_distance_of_{group}"] for group in ("ours", "two_seeds"))
        words[what] = "not larger" if ours <= seeds else f"larger by {ours - seeds:.4f}"
    means: dict[str, list[float]] = {}
    shortest = min(map(len, curves.values()))
    for name, losses in curves.items():
        half = losses[shortest // 2 : shortest]
        means.setdefault("reference" if name.startswith("reference") else "ours", []).append(mean(half))
    listed = {group: ", ".join(f"{one:.2f}" for one in sorted(values)) for group, values in means.items()}
    return (
        f"The mean distance between regard and the reference is {words['mean']} than between two seeds of the "
        f"reference; the maximum is {words['largest']}. Mean loss of the second half by seed: regard {listed['ours']}; "
        f"reference {listed['reference']}.{_judge_order(means['ours'], means['reference'])}"
    )


def _judge_order(ours: list[float], references: list[float]) -> str:
    """Note if all curves of one kind lie on one side of the other, with the probability of that by chance."""
    side = "below" if max(ours) < min(references) else "above" if min(ours) > max(references) else ""
    orders = comb(len(ours) + len(references), len(ours))
    return (
        f" All curves of regard lie {side} the reference, which happens by chance in 2 of {orders} orders."
        if side
        else ""
    )


def write_profile(found: dict[str, Result]) -> str:
    """Profile of a step before and after, by the purpose of its kernels."""
    titles = {"training-gpu-before": "before", "training-gpu": "after"}
    rows = {titles[name]: row for name, result in found.items() if (row := _profiled(result)) is not None}
    if not rows:
        return ""
    sums = [
        sum_by_group(((one["name"], one["ms"]) for one in row["kernels"]), GROUPS, row["kernels_ms"])
        for row in rows.values()
    ]
    heads = ["ms per step", *(f"{title}: {row['name']}" for title, row in rows.items())]
    groups = [[group, *(f"{one[group]:.1f}" for one in sums)] for group in (*GROUPS, REST)]
    totals = [[title, *(show(row.get(key)) for row in rows.values())] for title, key in TOTALS.items()]
    return table(heads, groups + totals)


def write_cpu(result: Result) -> str:
    """Tokens per second on a CPU, systems alternating."""
    rows = result["rows"]
    cells = ((row["name"], show(row["tokens_per_second"]), row["dropouts"], _times(row, rows)) for row in rows)
    return paragraphs(
        table(("system", "tokens/s", "dropouts", TIMES), cells), " ".join([*compare(rows), _about(result)])
    )


def _name(row: Row) -> str:
    return f"{row['name']} ({row['error']})" if "error" in row else str(row["name"])


def _profiled(result: Result) -> Row | None:
    """The fastest profiled row of regard."""
    rows = [row for row in result["rows"] if "kernels" in row and not row.get("other_library")]
    return max(rows, key=lambda row: row["tokens_per_second"], default=None)


def compare(rows: list[Row]) -> list[str]:
    """The best of regard against the best other system, for each choice of dropouts."""
    theirs = _best_other(rows)
    if theirs is None:
        return []
    ours = [row for row in rows if "tokens_per_second" in row and not row["other_library"]]
    best = {one: max((row for row in ours if row["dropouts"] == one), key=_rate, default=None) for one in DROPOUTS}
    return [
        f"With {title}, {row['name']} is {_times(row, rows)} as fast as the best other system, "
        f"{theirs['name']} ({DROPOUTS[theirs['dropouts']]})."
        for dropouts, title in DROPOUTS.items()
        if (row := best[dropouts]) is not None
    ]


def _times(row: Row, rows: list[Row]) -> str:
    """Speed relative to the best other system."""
    theirs = _best_other(rows)
    if theirs is None or row["other_library"] or "tokens_per_second" not in row:
        return ""
    return f"{_rate(row) / _rate(theirs):.2f}×"


def _best_other(rows: list[Row]) -> Row | None:
    return max((row for row in rows if row["other_library"] and "tokens_per_second" in row), key=_rate, default=None)


def _rate(row: Row) -> float:
    return float(row["tokens_per_second"])


def _about(result: Result) -> str:
    libraries = [name for name in ("transformers",) if name in result["versions"]]
    note = f" {begin_sentence(result['note'])}." if "note" in result else ""
    dated = result | {"date": dates_of(result)}
    return f"{begin_sentence(result['what'])}; {cite(dated, *libraries, with_command=False)}.{note}"
