"""The tables of docs/training-speed.md, from what benchmarks/training.py found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
NOTHING = "No results yet."
GROUPS = {
    "products with weights": r"nvjet|gemm|cutlass|splitK",
    "attention": r"^(forward|backward_keys|backward_queries)$|flash|fmha",
    "Add & Norm": r"layer_norm|LayerNorm|add_norm|GammaBeta",
    "logits to loss and gradient": r"turn_into_gradient|softmax|nll_loss",
    "optimiser": r"multi_tensor_apply",
}
"""What a kernel's name says about what it is for; the first that fits."""
COLUMNS = ("tokens_per_second", "step_ms", "tflops", "warm_up_s", "step_kib_per_token", "largest_batch_tokens")
Row = dict[str, Any]


def write_steps() -> str:
    """Every contender's speed and memory, the peers' beside ours."""
    result = _read("training-gpu.json")
    if result is None:
        return NOTHING
    lines = [
        "| who | tokens/s | ms a step | TFLOP/s | warm-up, s | KiB a token | largest batch, tokens |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(result["rows"], key=lambda row: -row.get("tokens_per_second", 0)):
        figures = " | ".join(_show(row.get(key)) for key in COLUMNS)
        name = f"{row['name']} ({row['error']})" if "error" in row else row["name"]
        lines.append(f"| {name} | {figures} |")
    return "\n".join((*lines, "", f"{_best(result['rows'])} {_how(result)}"))


def write_curves() -> str:
    """How far the losses of the fastest path lie from those of the reference."""
    result = _read("training-gpu.json")
    if result is None or not result["distances"]:
        return NOTHING
    found = result["distances"]
    lines = ["| distance of losses, in means of ten steps | two seeds of the reference | ours and the reference |"]
    lines.append("| --- | --- | --- |")
    for what, title in (("mean", "mean over the second half"), ("largest", "largest of all")):
        figures = (found[f"{what}_distance_of_{who}"] for who in ("two_seeds", "ours"))
        lines.append(f"| {title} | {' | '.join(map(str, figures))} |")
    ends = (f"{row['name']} {row['last']}" for row in result["curves"])
    return "\n".join((*lines, "", f"Losses at the end: {', '.join(ends)}."))


def write_profile() -> str:
    """What a step spends its time on, before and after, by what the kernels are for."""
    before, after = _profiled("training-gpu-before.json"), _profiled("training-gpu.json")
    shown = {title: row for title, row in (("before", before), ("after", after)) if row is not None}
    if not shown:
        return NOTHING
    titles = (f"{title}: {row['name']}" for title, row in shown.items())
    lines = [f"| ms a step | {' | '.join(titles)} |"]
    lines.append(f"| --- |{' --- |' * len(shown)}")
    sums = [_by_group(row) for row in shown.values()]
    for group in (*GROUPS, "the rest"):
        lines.append(f"| {group} | {' | '.join(f'{found[group]:.1f}' for found in sums)} |")
    totals = {"kernels, altogether": "kernels_ms", "the host": "host_ms", "launches": "launches"}
    for title, key in totals.items():
        lines.append(f"| {title} | {' | '.join(_show(row.get(key)) for row in shown.values())} |")
    return "\n".join(lines)


def write_cpu() -> str:
    """Tokens a second on a CPU, contenders taking turns."""
    result = _read("training-cpu.json")
    if result is None:
        return NOTHING
    lines = ["| who | tokens/s |", "| --- | --- |"]
    lines += [f"| {row['name']} | {_show(row['tokens_per_second'])} |" for row in result["rows"]]
    return "\n".join((*lines, "", f"{_best(result['rows'])} {_how(result)}"))


def _read(name: str) -> Row | None:
    path = RESULTS / name
    found: Row | None = json.loads(path.read_text("utf-8")) if path.exists() else None
    return found


def _profiled(name: str) -> Row | None:
    """The fastest of ours whose kernels were looked at."""
    rows = [row for row in (_read(name) or {"rows": []})["rows"] if "kernels" in row and not row.get("peer")]
    return max(rows, key=lambda row: row["tokens_per_second"], default=None)


def _by_group(row: Row) -> dict[str, float]:
    sums = dict.fromkeys(GROUPS, 0.0)
    for kernel in row["kernels"]:
        group = next((name for name, pattern in GROUPS.items() if re.search(pattern, kernel["name"])), None)
        if group is not None:
            sums[group] += kernel["ms"]
    return sums | {"the rest": row["kernels_ms"] - sum(sums.values())}


def _best(rows: list[Row]) -> str:
    ours, theirs = (
        max(
            (row["tokens_per_second"] for row in rows if row.get("peer", False) is peer and "tokens_per_second" in row),
            default=0,
        )
        for peer in (False, True)
    )
    return f"The best of ours is {ours / theirs:.2f} times as fast as the best of the others." if theirs else ""


def _how(result: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{result['what'].capitalize()}; {result['machine']}, {versions}, {result['date']}."


def _show(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
