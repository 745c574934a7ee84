"""Timing in turns, tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from regard.errors import UserError
from regard.evaluation.bench import harness
from regard.evaluation.bench.harness import Result, Timing, choose_batch_sizes, measure_speed, tabulate
from regard.evaluation.bench.plot import draw_quality_against_speed, save_quality_plot
from regard.evaluation.metrics import Score

ITEMS = ["a", "b", "c", "d", "e"]


def result(name: str, milliseconds: float, score: float | None = 30.0) -> Result:
    timings = [Timing(1, milliseconds, 9), Timing(8, 3 * milliseconds, 9)]
    return Result(name, {"beam": 1}, 1_300_000, timings, None if score is None else Score("BLEU", score, "x"))


@pytest.fixture
def spend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A function that advances the clock of the harness."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(harness.time, "perf_counter", lambda: now)
    return advance


def test_timing_is_the_median_over_complete_batches(spend: Callable[[float], None]) -> None:
    batches: list[list[str]] = []

    def process(batch: Sequence[str]) -> None:
        batches.append(list(batch))
        spend(0.05 if len(batches) == 5 else 0.002)  # one slow batch among the timed ones

    (timing,) = measure_speed([process], ITEMS, 2, seconds=0)
    assert (timing.batch, timing.batches) == (2, 5)
    assert batches == [ITEMS[:2], ITEMS[2:4]] * 4  # three for warm-up; the fifth item does not fill a batch
    assert timing.milliseconds == pytest.approx(2)
    assert timing.per_second == pytest.approx(1000)


def test_timing_continues_for_the_given_time(spend: Callable[[float], None]) -> None:
    (timing,) = measure_speed([lambda batch: spend(0.01)], ITEMS, 5, seconds=0.149)
    assert timing.batches == 15


def test_systems_take_turns() -> None:
    calls: list[str] = []
    measure_speed([lambda _: calls.append("a"), lambda _: calls.append("b")], ITEMS, 1, seconds=0)
    assert "".join(calls) == "aaabbb" + "ab" * 5  # three calls each for warm-up


def test_too_few_items_for_a_batch_are_rejected() -> None:
    with pytest.raises(UserError, match="5 sentences are fewer than a batch of 8"):
        measure_speed([len], ITEMS, 8, 0)


def test_default_batch_sizes_do_not_exceed_the_data() -> None:
    assert choose_batch_sizes([], 30, "data") == [1, 8]
    assert choose_batch_sizes([4, 2, 4], 30, "data") == [2, 4]


def test_table_compares_every_system_with_the_first() -> None:
    lines = tabulate([result("usual", 20.0), result("fast", 4.0, 27.5), result("unscored", 40.0, None)]).splitlines()
    assert lines[2] == "| usual | 30.00 | 1.3 M | 20.0 (1.00×) | 60.0 (1.00×) |"
    assert lines[3] == "| fast | 27.50 | 1.3 M | 4.0 (5.00×) | 12.0 (5.00×) |"
    assert lines[4] == "| unscored |  | 1.3 M | 40.0 (0.50×) | 120.0 (0.50×) |"


def test_table_omits_empty_columns() -> None:
    lines = tabulate([result("alone", 20.0, None)]).splitlines()
    assert lines[0] == "|  | parameters | ms per batch of 1 | ms per batch of 8 |"


def test_table_of_image_models_has_images_per_second() -> None:
    ours = replace(result("ours", 4.0, None), unit="images", same=1.0)
    lines = tabulate([ours, replace(ours, name="theirs", same=0.875)]).splitlines()
    assert lines[0] == "|  | same output | parameters | images/s, batch of 1 | images/s, batch of 8 |"
    assert lines[3] == "| theirs | 87.5% | 1.3 M | 250 (1.00×) | 667 (1.00×) |"
    assert ours.as_dict()["timings"][1]["images_per_second"] == pytest.approx(666.67)


def test_plot_has_a_panel_per_batch_size_and_a_point_per_model() -> None:
    results = [result("usual", 20.0), result("fast", 4.0, 27.5), result("unscored", 4.0, None)]
    one, eight = draw_quality_against_speed(results, "Title").axes
    assert [float(line.get_xdata()[0]) for line in one.lines] == [20.0, 4.0]
    assert [float(line.get_ydata()[0]) for line in eight.lines] == [30.0, 27.5]
    assert one.get_xscale() == "log"


def test_unwritable_plot_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save_quality_plot([result("usual", 20.0)], tmp_path / "missing" / "plot.svg", "Title")
