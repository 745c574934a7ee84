"""Timing in turns, tables and plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.evaluation.benchmark import harness
from regard.evaluation.benchmark.harness import (
    Result,
    SpeedReport,
    Timing,
    check_libraries,
    choose_batch_sizes,
    describe_environment,
    describe_machine,
    measure_speed,
    split_options,
    summarise,
    tabulate,
)
from regard.evaluation.benchmark.plot import (
    COLOURS,
    MARKERS,
    check_plot_path,
    draw_quality_against_speed,
    save_quality_plot,
)
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


def test_batch_sizes_that_exceed_the_data_are_rejected() -> None:
    assert choose_batch_sizes([30], 30, "data") == [30]
    assert choose_batch_sizes([], 64, "data") == [1, 8, 64]
    with pytest.raises(UserError, match="data are fewer than a batch of 31; give a smaller --batch"):
        choose_batch_sizes([31, 2], 30, "data")
    with pytest.raises(UserError, match="data: there is nothing to time"):
        choose_batch_sizes([1], 0, "data")


def test_result_survives_a_json_round_trip() -> None:
    for one in (result("a", 20.0), replace(result("b", 4.0, None), same=0.5)):
        assert Result.from_dict(one.as_dict()) == one


def test_report_explains_same_output_only_if_outputs_were_compared() -> None:
    plain, compared = result("a", 20.0), replace(result("b", 4.0), same=0.5)
    assert "same output: share of outputs equal" in SpeedReport([plain, compared], "timed", "data", 1.0).lines()[-1]
    assert SpeedReport([plain], "timed", "data", 1.0).lines()[-1] == (
        "medians timed; data; in brackets, speed relative to the first system"
    )


def test_settings_follow_a_colon() -> None:
    assert split_options("runs/x:beam=5, max-length =8") == (Path("runs/x"), {"beam": "5", "max_length": "8"})
    assert split_options("C:runs/x") == (Path("C:runs/x"), {})
    with pytest.raises(UserError, match="write RUN:key=value,key=value"):
        split_options("runs/x:beam=5,7")


def test_environment_names_the_machine_and_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = describe_environment(torch.device("cpu"), ["huggingface"])
    assert list(environment["versions"]) == ["python", "torch", "regard", "transformers"]
    line = summarise(environment)
    assert line.startswith(environment["machine"])
    assert f"torch {torch.__version__}, transformers " in line and "regard" not in line and "python" not in line
    for threads, text in ((1, ", 1 thread"), (3, ", 3 threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert describe_machine(torch.device("cpu")).endswith(text)


def test_libraries_are_checked_and_not_repeated() -> None:
    assert check_libraries(["ctranslate2", "huggingface", "ctranslate2"]) == ("ctranslate2", "huggingface")
    with pytest.raises(UserError, match="--library marian: choose one of huggingface, ctranslate2"):
        check_libraries(["ctranslate2", "marian"])


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
    figure = draw_quality_against_speed(results, "Title")
    one, eight = figure.axes
    assert [float(line.get_xdata()[0]) for line in one.lines] == [20.0, 4.0]
    assert [float(line.get_xdata()[0]) for line in eight.lines] == [60.0, 12.0]
    assert [float(line.get_ydata()[0]) for line in eight.lines] == [30.0, 27.5]
    assert one.get_xscale() == eight.get_xscale() == "log"
    assert [axes.get_title("left") for axes in figure.axes] == ["single sentences", "batch of 8"]
    assert {axes.get_xlabel() for axes in figure.axes} == {"milliseconds per batch"}
    assert (one.get_ylabel(), figure.get_suptitle()) == ("BLEU", "Title")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["usual", "fast"]
    assert one.xaxis.get_major_formatter()(20.0, 0) == "20"
    wide, high = figure.get_size_inches()
    assert wide > 1.5 * high, "two panels side by side, each about as wide as high"


def test_every_model_of_a_plot_has_its_own_marker_or_colour() -> None:
    results = [result(f"model {i}", 20.0 + i) for i in range(len(COLOURS) * len(MARKERS))]
    axes, _ = draw_quality_against_speed(results, "Title").axes
    looks = [(line.get_marker(), line.get_color()) for line in axes.lines]
    assert len(set(looks)) == len(looks)
    assert looks[0] == (MARKERS[0], COLOURS[0])
    assert looks[len(COLOURS)] == (MARKERS[1], COLOURS[0])


def test_plot_is_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        save_quality_plot([result("usual", 20.0)], tmp_path / name, "Title")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"dc:date" not in (tmp_path / "a.svg").read_bytes()


@pytest.mark.parametrize("name", ["plot.jpg", "folder.png", "missing/plot.png"])
def test_plot_path_is_checked_in_advance(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UserError, match=f"{name}: a plot is written as .png, .svg, .pdf|{name}: no file can be"):
        check_plot_path(tmp_path / name)
    for good in ("plot.png", "plot.SVG"):
        check_plot_path(tmp_path / good)


def test_unwritable_plot_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save_quality_plot([result("usual", 20.0)], tmp_path / "missing" / "plot.svg", "Title")
