"""Every kind of attention with the heads of a model, over lengths: what its user would win or lose by another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.attention.multi_head import Attention
from regard.evaluation.bench.attention_costs import KINDS, WINDOW, Heads, Row, measure_length, too_slow
from regard.models.folder import CONFIG, build_on_meta, find_model_folder, read_config

COMPARED = ("full", "local", "linear", "routing")
LENGTHS = tuple(2**power for power in range(8, 15))
REPETITIONS = 5


@dataclass(frozen=True)
class AttentionCosts:
    """What came of it, and for which heads."""

    heads: Heads
    rows: list[Row]

    def lines(self) -> list[str]:
        """A table, and what it shows."""
        return [
            self.tabulate(),
            "",
            f"ms and MiB of forward and backward of one sequence; {self._what}; local sees {WINDOW} tokens on a side, "
            "routing has √n clusters",
        ]

    def tabulate(self) -> str:
        """A line a length, and two columns a kind."""
        found = {(row["length"], row["name"]): row for row in self.rows if "both" in row}
        lines = [["tokens", *COMPARED], ["---"] * (1 + len(COMPARED))]
        for length in sorted({length for length, _ in found}):
            lines.append([f"{length:,}", *(_figure(found.get((length, name))) for name in COMPARED)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def as_dict(self) -> dict[str, Any]:
        return {"timed": f"one sequence, {self._what}; seconds and bytes", "attention": self.rows}

    @property
    def _what(self) -> str:
        way = "causal, " if self.heads.causal else ""
        numbers = str(self.heads.dtype).removeprefix("torch.")
        return f"{way}{self.heads.number} heads of width {self.heads.width}, {numbers}"


def time_attention(
    run: str,
    device: torch.device,
    budget: float,
    lengths: Sequence[int] = LENGTHS,
    tell: Callable[[str], None] = lambda text: None,
) -> AttentionCosts:
    """Times the kinds of attention for the heads of a run's model; tells beforehand which length is next.

    Whoever would take longer than `budget` seconds for a call takes no part at that length and longer ones.

    Raises:
        UserError: there is no such model.
    """
    heads, rows = find_heads(Path(run), device), list[Row]()
    torch.manual_seed(0)
    slow: set[str] = set()
    for length in lengths:
        slow |= too_slow(rows, length, budget)
        tell(f"{length:,} tokens")
        people = {name: heads.call(KINDS[name](heads, length)) for name in COMPARED if name not in slow}
        rows += measure_length(people, heads, length, REPETITIONS, budget)
    return AttentionCosts(heads, rows)


def find_heads(path: Path, device: torch.device) -> Heads:
    """Those of a model's first attention; where it writes text, as its decoder has them, token by token.

    Raises:
        UserError: there is no such model.
    """
    folder = find_model_folder(path)
    model = build_on_meta(read_config(folder), folder / CONFIG)
    first = next(module for module in model.modules() if isinstance(module, Attention))
    return Heads(first.heads, first.width // first.heads, model.config.kind == "transformer", device)


def _figure(row: Row | None) -> str:
    return "" if row is None else f"{1000 * row['both']:,.2f} ms, {row['both_bytes'] / 2**20:,.1f} MiB"
