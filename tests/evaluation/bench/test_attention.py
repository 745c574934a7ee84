"""`regard bench --attention`: what each kind costs with the heads of a model."""

from pathlib import Path

import torch

from regard.evaluation.bench.attention import COMPARED, AttentionCosts, find_heads, time_attention
from regard.evaluation.bench.attention_costs import KINDS, Heads, find_peak, measure_length, too_slow

CPU = torch.device("cpu")


def test_the_heads_are_those_of_the_model(trained_run: Path, image_run: Path) -> None:
    assert find_heads(trained_run, CPU) == Heads(2, 16, True, CPU)
    assert find_heads(image_run, CPU) == Heads(2, 8, False, CPU)


def test_every_kind_is_timed_at_every_length(trained_run: Path) -> None:
    told: list[str] = []
    found = time_attention(str(trained_run), CPU, 10.0, (16, 64), told.append)
    assert told == ["16 tokens", "64 tokens"]
    assert [(row["length"], row["name"]) for row in found.rows] == [(n, name) for n in (16, 64) for name in COMPARED]
    assert all(row["both"] > 0 and row["both_bytes"] > 0 for row in found.rows)
    assert "causal, 2 heads of width 16, float32" in found.lines()[-1]


def test_who_is_too_slow_takes_no_part_at_longer_lengths(trained_run: Path) -> None:
    rows = [{"name": "full", "length": 64, "both": 0.6}, {"name": "linear", "length": 64, "both": 0.4}]
    assert too_slow(rows, 128, 2.0) == {"full"}
    assert too_slow(rows, 256, 2.0) == set()
    found = time_attention(str(trained_run), CPU, 0.0, (16, 32))
    assert {row["length"] for row in found.rows} == {16}


def test_the_peak_is_what_is_held_at_once() -> None:
    def run() -> None:
        for _ in range(3):  # one after the other, so that they are never there together
            torch.empty(1000, 100)

    assert find_peak(run, CPU) == 4 * 1000 * 100


def test_whatever_fails_is_named_and_the_others_go_on() -> None:
    heads = Heads(1, 4, True, CPU)

    def fail(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such length")

    people = {"theirs": fail, "full": heads.call(KINDS["full"](heads, 8))}
    theirs, full = measure_length(people, heads, 8, 1, 1.0)
    assert theirs["error"] == "ValueError: no such length"
    assert full["both"] > 0
    table = AttentionCosts(heads, [theirs, full]).tabulate()
    assert table.splitlines()[2].startswith("| 8 | ")
