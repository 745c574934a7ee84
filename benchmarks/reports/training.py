"""The tables of docs/training-speed.md, from what benchmarks/training.py found."""

from math import comb
from statistics import mean
from typing import Any

from .kernels import PRODUCTS, REST, sum_by_group
from .markdown import begin_sentence, cite, dates_of, paragraphs, show, table
from .results import Result

GROUPS = {
    "products with weights": rf"{PRODUCTS}|^multiply_and_pass$",  # which lets its gradient through ReLU as well
    "attention": r"^(varlen_forward|varlen_backward_\w+|find_key_ranges)$|flash|fmha",
    "Add & Norm": r"layer_norm|LayerNorm|add_norm|GammaBeta",
    "logits to loss and gradient": r"turn_into_gradient|turn_held_rows|softmax|nll_loss",
    "optimiser": r"multi_tensor_apply",
}
SPEEDS = {
    "tokens a batch": "tokens",
    "tokens/s": "tokens_per_second",
    "ms a step": "step_ms",
    "TFLOP/s": "tflops",
    "warm-up, s": "warm_up_s",
    "dropouts": "dropouts",
}
MEMORY = {
    "KiB a token": "step_kib_per_token",
    "GiB in all": "peak_gib",
    "largest batch, tokens": "largest_batch_tokens",
    "places": "largest_batch_places",
    "GiB with it": "largest_peak_gib",
}
TIMES = "times the best peer"
TOTALS = {"kernels, altogether": "kernels_ms", "the host": "host_ms", "launches": "launches"}
DROPOUTS = {"the paper's": "the paper's dropouts", "all": "all of nn.Transformer's dropouts"}
Row = dict[str, Any]


def write_steps(result: Result) -> str:
    """Every contender's speed, the peers' beside ours."""
    rows = sorted(result["rows"], key=lambda row: -row.get("tokens_per_second", 0))
    cells = ([_name(row), *(show(row.get(key)) for key in SPEEDS.values()), _times(row, rows)] for row in rows)
    return paragraphs(table(["who", *SPEEDS, TIMES], cells), " ".join([*compare(rows), _about(result)]))


def write_steps_in_brief(result: Result) -> str:
    """The speed, warm-up and memory of every contender that was timed."""
    rows = sorted((row for row in result["rows"] if "tokens_per_second" in row), key=_rate, reverse=True)
    keys = ("tokens_per_second", "warm_up_s", "step_kib_per_token", "dropouts")
    cells = ([row["name"], *(show(row.get(key)) for key in keys), _times(row, rows)] for row in rows)
    heads = ("who", "tokens/s", "warm-up, s", "KiB a token", "dropouts", TIMES)
    return paragraphs(table(heads, cells), _about({key: value for key, value in result.items() if key != "note"}))


def write_memory(result: Result) -> str:
    """What a step needs for each token, and the largest batch that went through, the peers' beside ours."""
    rows = sorted((row for row in result["rows"] if "peak_gib" in row), key=lambda row: row["step_kib_per_token"])
    if not rows:
        return ""
    cells = ([_name(row), *(show(row.get(key)) for key in MEMORY.values())] for row in rows)
    ends = [f"{row['name']} by {row['largest_stopped_by']}" for row in rows if "largest_stopped_by" in row]
    stopped = f"Stopped by something else than memory: {'; '.join(ends)}." if ends else ""
    return paragraphs(table(["who", *MEMORY], cells), stopped)


def write_curves(result: Result) -> str:
    """How far the losses of the fastest path lie from those of the reference."""
    found = result["distances"]
    whose = {"two_seeds": "two seeds of the reference", "ours": "ours and the reference"}
    known = [who for who in whose if f"mean_distance_of_{who}" in found]
    if not known:
        return ""
    heads = ("distance of losses, in means of ten steps", *(whose[who] for who in known))
    titles = {"mean": "mean over the second half", "largest": "largest of all"}
    rows = ((title, *(str(found[f"{what}_distance_of_{who}"]) for who in known)) for what, title in titles.items())
    ends = (f"{row['name']} from {row['losses'][0]} to {row['last']}" for row in result["rows"] if "losses" in row)
    about = f"{begin_sentence(result['what'])}, {found['compared_steps']} of them compared"
    return paragraphs(
        table(heads, rows),
        _judge_curves(result),
        f"Losses: {'; '.join(ends)}. {about}; {cite(result, with_command=False)}.",
    )


def _judge_curves(result: Result) -> str:
    """Whether ours are as near to the reference as that is to itself, and where the curves of each lie."""
    found, curves = result["distances"], {row["name"]: row["losses"] for row in result["rows"] if "losses" in row}
    if not all(f"mean_distance_of_{who}" in found for who in ("ours", "two_seeds")):
        return ""
    words = {}
    for what in ("mean", "largest"):
        ours, seeds = (found[f"{what}_distance_of_{who}"] for who in ("ours", "two_seeds"))
        words[what] = "no further apart" if ours <= seeds else f"further apart, by {ours - seeds:.4f},"
    means: dict[str, list[float]] = {}
    shortest = min(map(len, curves.values()))
    for name, losses in curves.items():
        half = losses[shortest // 2 : shortest]
        means.setdefault("reference" if name.startswith("reference") else "ours", []).append(mean(half))
    listed = {who: ", ".join(f"{one:.2f}" for one in sorted(of)) for who, of in means.items()}
    return (
        f"In the mean ours and the reference are {words['mean']} than two seeds of the reference; at the most they are "
        f"{words['largest']} than these. Mean losses over the second half, by seed: ours {listed['ours']}; the "
        f"reference {listed['reference']}.{_judge_order(means['ours'], means['reference'])}"
    )


def _judge_order(ours: list[float], references: list[float]) -> str:
    """How often chance alone would put all of one kind on one side of all of the other, where they are."""
    side = "below" if max(ours) < min(references) else "above" if min(ours) > max(references) else ""
    orders = comb(len(ours) + len(references), len(ours))
    return f" All of ours lie {side} all of the reference; in 2 of {orders} orders all lie on one side." if side else ""


def write_profile(found: dict[str, Result]) -> str:
    """What a step spends its time on, before and after, by what the kernels are for."""
    titles = {"training-gpu-before": "before", "training-gpu": "after"}
    rows = {titles[name]: row for name, result in found.items() if (row := _profiled(result)) is not None}
    if not rows:
        return ""
    sums = [
        sum_by_group(((one["name"], one["ms"]) for one in row["kernels"]), GROUPS, row["kernels_ms"])
        for row in rows.values()
    ]
    heads = ["ms a step", *(f"{title}: {row['name']}" for title, row in rows.items())]
    groups = [[group, *(f"{one[group]:.1f}" for one in sums)] for group in (*GROUPS, REST)]
    totals = [[title, *(show(row.get(key)) for row in rows.values())] for title, key in TOTALS.items()]
    return table(heads, groups + totals)


def write_cpu(result: Result) -> str:
    """Tokens a second on a CPU, contenders taking turns."""
    rows = result["rows"]
    cells = ((row["name"], show(row["tokens_per_second"]), row["dropouts"], _times(row, rows)) for row in rows)
    return paragraphs(table(("who", "tokens/s", "dropouts", TIMES), cells), " ".join([*compare(rows), _about(result)]))


def _name(row: Row) -> str:
    return f"{row['name']} ({row['error']})" if "error" in row else str(row["name"])


def _profiled(result: Result) -> Row | None:
    """The fastest of ours whose kernels were looked at."""
    rows = [row for row in result["rows"] if "kernels" in row and not row.get("peer")]
    return max(rows, key=lambda row: row["tokens_per_second"], default=None)


def compare(rows: list[Row]) -> list[str]:
    """The best of ours beside the best of the peers, once for each choice of dropouts."""
    theirs = _best_peer(rows)
    if theirs is None:
        return []
    ours = [row for row in rows if "tokens_per_second" in row and not row["peer"]]
    best = {one: max((row for row in ours if row["dropouts"] == one), key=_rate, default=None) for one in DROPOUTS}
    return [
        f"With {title} the best of ours, {row['name']}, is {_times(row, rows)} as fast as the best of the others, "
        f"{theirs['name']}, which has {DROPOUTS[theirs['dropouts']]}."
        for dropouts, title in DROPOUTS.items()
        if (row := best[dropouts]) is not None
    ]


def _times(row: Row, rows: list[Row]) -> str:
    """How many times as fast one of ours is as the best of the peers."""
    theirs = _best_peer(rows)
    if theirs is None or row["peer"] or "tokens_per_second" not in row:
        return ""
    return f"{_rate(row) / _rate(theirs):.2f}×"


def _best_peer(rows: list[Row]) -> Row | None:
    return max((row for row in rows if row["peer"] and "tokens_per_second" in row), key=_rate, default=None)


def _rate(row: Row) -> float:
    return float(row["tokens_per_second"])


def _about(result: Result) -> str:
    libraries = [name for name in ("transformers",) if name in result["versions"]]
    note = f" {begin_sentence(result['note'])}." if "note" in result else ""
    dated = result | {"date": dates_of(result)}
    return f"{begin_sentence(result['what'])}; {cite(dated, *libraries, with_command=False)}.{note}"
