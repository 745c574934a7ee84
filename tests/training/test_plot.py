"""Plots of runs: panels, curves, file formats and errors."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from PIL import Image

from regard.training.plot import PANELS, draw, name_runs, read_log
from tests.conftest import Command


def entry(step: int, **figures: Any) -> dict[str, Any]:
    return {"step": step, "seconds": step / 2, "tokens": 100 * step} | figures


FULL = [
    entry(1, loss=4.0, tokens_per_second=10.0, lr=0.1, gradient_norm=2.0, memory=50.0),
    entry(2, event="skipped step 2: its loss was nan and its gradient's norm nan"),
    entry(2, loss=None, tokens_per_second=11.0, lr=0.2, gradient_norm=None, memory=51.0, skipped=1),
    entry(3, loss=3.0, tokens_per_second=12.0, lr=0.3, gradient_norm=1.0, memory=52.0, skipped=1),
    entry(3, validation={"loss": 3.5, "bleu": 20.0, "chrf": 40.0, "score": 20.0}),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "run", FULL)


def write(folder: Path, entries: list[dict[str, Any]], tail: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in entries) + tail, encoding="utf-8")
    return folder


def lines(axes: Axes, style: str) -> list[list[tuple[float, float]]]:
    found = [line for line in axes.get_lines() if line.get_linestyle() == style]
    return [list(zip(*(np.asarray(line.get_data()).tolist()), strict=True)) for line in found]


def test_every_metric_has_a_panel_and_a_curve() -> None:
    figure = draw(["a"], [FULL], "step")
    assert [axes.get_title("left") for axes in figure.axes] == [panel.title for panel in PANELS]
    loss, validation, score, rate, gradient, speed, memory = figure.axes
    training = lines(loss, "-")[0]
    assert training[0] == (1, 4.0)
    assert np.isnan(training[1][1]), "a skipped step is a gap"
    assert training[2] == (3, 3.0)
    assert lines(loss, "--") == [], "the validation loss, without label smoothing, has its own axis"
    assert lines(validation, "--") == [[(3, 3.5)]]
    assert lines(score, "--") == [[(3, 20.0)]]
    assert lines(score, ":") == [[(3, 40.0)]]
    assert lines(rate, "-") == [[(1, 0.1), (2, 0.2), (3, 0.3)]]
    assert gradient.get_yscale() == "log"
    assert lines(speed, "-")[0][-1] == (3, 12.0)
    assert lines(memory, "-")[0][-1] == (3, 52.0)
    assert [line.get_xdata().tolist() for line in loss.get_lines() if line.get_marker() == "|"] == [[2]]


@pytest.mark.parametrize(("x_axis", "positions"), [("seconds", [0.5, 1, 1.5]), ("tokens", [100, 200, 300])])
def test_x_axis_can_be_chosen(x_axis: str, positions: list[float]) -> None:
    figure = draw(["a"], [FULL], x_axis)
    assert [x for x, _ in lines(figure.axes[3], "-")[0]] == positions


def test_each_run_has_its_own_colour() -> None:
    figure = draw(["a", "b"], [FULL, FULL[:1]], "step")
    drawn = [line for line in figure.axes[3].get_lines() if len(line.get_xdata())]
    assert len({line.get_color() for line in drawn}) == 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]


def test_run_without_validation_has_no_score_panel() -> None:
    titles = [axes.get_title("left") for axes in draw(["a"], [FULL[:1]], "step").axes]
    assert not {"score", "validation loss"} & set(titles)
    assert "training loss" in titles


def test_panels_have_the_same_height_in_large_and_small_figures() -> None:
    few = draw(["a"], [[entry(1, loss=4.0), entry(2, loss=3.0)]], "step")
    assert len(few.axes) == 1
    for figure, rows in ((few, 1), (draw(["a"], [FULL], "step"), 4)):
        width, height = figure.get_size_inches()
        assert width == 11
        assert 2.5 < height / rows < 4


def test_runs_are_named_by_the_distinguishing_part_of_their_path(tmp_path: Path) -> None:
    assert name_runs([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert name_runs([Path("x/en-de/big"), Path("x/en-fr/big")]) == ["en-de/big", "en-fr/big"]
    assert name_runs([Path("x/a"), Path("x/a")]) == ["a", "a"]


def test_incomplete_last_line_is_ignored(tmp_path: Path) -> None:
    assert read_log(write(tmp_path / "run", FULL, '{"step": 4, "lo')) == FULL


# The command


def test_two_runs_can_be_plotted(run: Path, trained_run: Path, tmp_path: Path, command: Command) -> None:
    answer = command("plot", run, trained_run, "--out", tmp_path / "p.png")
    assert (answer.code, answer.out) == (0, f"{tmp_path / 'p.png'}\n")
    with Image.open(tmp_path / "p.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(10**6) or []) > 20
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_suffix_selects_the_format_and_existing_file_is_replaced(run: Path, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "p.svg"
    out.write_text("old")
    assert command("plot", run, "--out", out, "--x", "tokens").code == 0
    assert "<svg" in out.read_text(encoding="utf-8")


def test_invalid_input_is_rejected_in_one_sentence(run: Path, tmp_path: Path, command: Command) -> None:
    empty, damaged, bare = tmp_path / "empty", tmp_path / "damaged", tmp_path / "bare"
    write(empty, [])
    write(damaged, FULL[:1], "{oops}\n" + json.dumps(FULL[2]) + "\n")
    words = write(tmp_path / "words", [entry(1, loss="low")])
    lists = write(tmp_path / "lists", [entry(1, validation={"bleu": [1]})])
    times = write(tmp_path / "times", [{"step": 1, "seconds": {}, "loss": 2.0}])
    bare.mkdir()
    old = write(tmp_path / "old", [{"step": 1, "loss": 2.0}])
    out = tmp_path / "p.png"
    for arguments, message in (
        ((tmp_path / "none",), "none: no such run folder"),
        ((bare,), "bare: not a training run"),
        ((empty,), "empty/log.jsonl: no entries yet"),
        ((run, damaged), "damaged/log.jsonl, line 2: not a log entry: '{oops}'"),
        ((words,), "words/log.jsonl, line 1: not a log entry"),
        ((lists,), "lists/log.jsonl, line 1: not a log entry"),
        ((times,), "times/log.jsonl, line 1: not a log entry"),
        ((old, "--x", "tokens"), "old: its log has no tokens; choose another --x"),
        ((run, "--x", "epochs"), "--x epochs: choose step, seconds, tokens"),
        ((run, "--out", tmp_path / "p.doc"), "p.doc: unknown format; the name must end in .png, .svg, .pdf"),
        ((run, "--out", tmp_path / "nowhere" / "p.png"), "nowhere/p.png: cannot be written"),
    ):
        assert message in command("plot", *arguments, *(() if "--out" in arguments else ("--out", out))).error
    assert not out.exists()


def test_run_in_progress_can_be_plotted(trained_run: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run, run)
    text = (run / "log.jsonl").read_text(encoding="utf-8")
    (run / "log.jsonl").write_text(text[: len(text) // 2], encoding="utf-8")
    assert command("plot", run, "--out", tmp_path / "p.png").code == 0


@pytest.mark.parametrize(("number", "height"), [(1, 3.7), (2, 3.7), (3, 6.6)])
def test_figure_has_two_panels_in_a_row(number: int, height: float) -> None:
    metrics = {"loss": 1.0, "lr": 0.1, "gradient_norm": 2.0}
    kept = dict(list(metrics.items())[:number])
    figure = draw(["a"], [[entry(1, **kept), entry(2, **kept)]], "step")
    assert tuple(figure.get_size_inches()) == pytest.approx((11, height))
    places = [axes.get_subplotspec() for axes in figure.axes]
    assert [(place.rowspan.start, place.colspan.start) for place in places] == [(0, 0), (0, 1), (1, 0)][:number]


def test_number_of_tokens_has_units_and_the_panel_says_what_it_counts() -> None:
    log = [entry(1000 * step, loss=1.0) for step in (1, 2, 3)]
    counted, timed = (draw(["a"], [log], x_axis).axes[0] for x_axis in ("tokens", "seconds"))
    assert (counted.get_xlabel(), timed.get_xlabel()) == ("training tokens", "seconds")
    assert counted.xaxis.get_major_formatter()(2000) == "2k"
    assert timed.xaxis.get_major_formatter()(2000) != "2k"
    assert not counted.spines["top"].get_visible() and not counted.spines["right"].get_visible()
