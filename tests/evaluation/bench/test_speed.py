"""Times from text to text, a table, a picture."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from regard.decoding.config import SearchSettings
from regard.errors import UserError
from regard.evaluation.bench.plot import draw_quality_against_speed, save_quality_plot
from regard.evaluation.bench.speed import Contender, Result, race, tabulate
from regard.evaluation.bench.timing import Timing, measure_speed
from regard.evaluation.metrics import Score

SOURCES = ["I love apples", "They buy tea and dogs", "We see cats", "You want books", "Children love tea"]


def result(name: str, milliseconds: float, score: float | None = 30.0) -> Result:
    timings = [Timing(1, milliseconds, 9), Timing(8, 3 * milliseconds, 9)]
    return Result(name, {"beam": 1}, 1_300_000, timings, None if score is None else Score("BLEU", score, "x"))


def test_the_median_is_of_whole_batches_in_order() -> None:
    seen: list[list[str]] = []

    def translate(sentences: Sequence[str]) -> None:
        seen.append(list(sentences))
        time.sleep(0.05 if len(seen) == 5 else 0.002)  # one that is slow by accident, among the timed ones

    (timing,) = measure_speed([translate], SOURCES, 2, seconds=0)
    assert (timing.batch, timing.batches) == (2, 5)
    assert seen == [SOURCES[:2], SOURCES[2:4]] * 4  # three to warm up; the fifth sentence makes no batch
    assert 2 <= timing.milliseconds < 25
    assert timing.per_second == pytest.approx(2000 / timing.milliseconds)


def test_it_goes_on_for_as_long_as_asked() -> None:
    (timing,) = measure_speed([lambda sentences: time.sleep(0.01)], SOURCES, 5, seconds=0.15)
    assert 5 <= timing.batches <= 15


def test_contenders_take_turns() -> None:
    seen: list[str] = []
    measure_speed([lambda _: seen.append("a"), lambda _: seen.append("b")], SOURCES, 1, seconds=0)
    assert "".join(seen) == "aaabbb" + "ab" * 5  # three each to warm up


def test_too_few_sentences_are_refused() -> None:
    with pytest.raises(UserError, match="5 sentences do not make a batch of 8"):
        measure_speed([len], SOURCES, 8, 0)


def test_a_contender_is_a_run_with_settings(trained_run: Path) -> None:
    plain = Contender.open(str(trained_run))
    assert plain.settings == SearchSettings()
    chosen = Contender.open(f"{trained_run}:beam=2,length-penalty=none")
    assert chosen.settings == SearchSettings(beam=2, length_penalty="none")
    (found,) = race([chosen], SOURCES, None, [1, 2], 0)
    assert found.settings["beam"] == 2
    assert [timing.batch for timing in found.timings] == [1, 2]
    assert found.score is None
    assert found.same is None
    assert found.parameters == sum(p.numel() for p in plain.translator.model.parameters())
    assert Result.from_dict(json.loads(json.dumps(found.as_dict()))) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (":iterations=4", "iterations is a setting of non-autoregressive models"),
        (":beam=x", "beam: input should be a valid integer"),
        (":beam=2,wide", "write RUN:key=value,key=value"),
        ("-no", "no such model folder"),
    ],
)
def test_what_cannot_run_is_refused(trained_run: Path, options: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Contender.open(f"{trained_run}{options}")


def test_the_table_sets_everyone_against_the_first() -> None:
    lines = tabulate([result("usual", 20.0), result("fast", 4.0, 27.5), result("unscored", 40.0, None)]).splitlines()
    assert lines[2] == "| usual | 30.00 | 1.3 M | 20.0 (1.00×) | 60.0 (1.00×) |"
    assert lines[3] == "| fast | 27.50 | 1.3 M | 4.0 (5.00×) | 12.0 (5.00×) |"
    assert lines[4] == "| unscored |  | 1.3 M | 40.0 (0.50×) | 120.0 (0.50×) |"


def test_the_table_has_no_column_that_nobody_fills() -> None:
    lines = tabulate([result("alone", 20.0, None)]).splitlines()
    assert lines[0] == "|  | parameters | ms a batch of 1 | ms a batch of 8 |"


def test_images_are_counted_by_the_second() -> None:
    ours = replace(result("ours", 4.0, None), unit="images", same=1.0)
    lines = tabulate([ours, replace(ours, name="theirs", same=0.875)]).splitlines()
    assert lines[0] == "|  | as the first | parameters | images/s, 1 at once | images/s, 8 at once |"
    assert lines[3] == "| theirs | 87.5% | 1.3 M | 250 (1.00×) | 667 (1.00×) |"
    assert ours.as_dict()["timings"][1]["images_per_second"] == pytest.approx(666.67)


def test_what_two_models_say_can_be_compared(trained_run: Path) -> None:
    same = [Contender.open(f"{trained_run}:beam=1"), Contender.open(f"{trained_run}:max_length=2")]
    first, cut = race(same, SOURCES, None, [1], 0, compare=True)
    assert first.same == 1
    assert cut.same == 0


def test_the_picture_has_a_panel_a_batch_and_a_point_a_model() -> None:
    figure = draw_quality_against_speed(
        [result("usual", 20.0), result("fast", 4.0, 27.5), result("unscored", 4.0, None)], "Trade"
    )
    one, eight = figure.axes
    assert [float(line.get_xdata()[0]) for line in one.lines] == [20.0, 4.0]
    assert [float(line.get_ydata()[0]) for line in eight.lines] == [30.0, 27.5]
    assert one.get_xscale() == "log"


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save_quality_plot([result("usual", 20.0)], tmp_path / "no" / "trade.svg", "Trade")
