"""`regard bench`: times from text to text, a table, a picture."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.evaluation.metrics import Score
from regard.evaluation.speed import Contender, Result, Timing, measure_speed, race, tabulate
from regard.evaluation.trade import draw_trade, save_trade

Command = Callable[..., "Answer"]  # noqa: F821  the fixtures of tests/conftest.py
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
    assert timing.sentences_per_second == pytest.approx(2000 / timing.milliseconds)


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
    assert found.parameters == sum(p.numel() for p in plain.translator.model.parameters())
    assert Result.from_dict(json.loads(json.dumps(found.as_dict()))) == found


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (":rounds=4", "rounds is for a model that writes all tokens at once"),
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


def test_the_picture_has_a_panel_a_batch_and_a_point_a_model() -> None:
    figure = draw_trade([result("usual", 20.0), result("fast", 4.0, 27.5), result("unscored", 4.0, None)], "Trade")
    one, eight = figure.axes
    assert [float(line.get_xdata()[0]) for line in one.lines] == [20.0, 4.0]
    assert [float(line.get_ydata()[0]) for line in eight.lines] == [30.0, 27.5]
    assert one.get_xscale() == "log"


def test_a_picture_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        save_trade([result("usual", 20.0)], tmp_path / "no" / "trade.svg", "Trade")


# The command line


def test_bench_writes_a_table_json_and_a_picture(
    trained_run: Path, toy: Path, command: Command, tmp_path: Path
) -> None:
    out, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    (tmp_path / "src.en").write_text("".join(f"{source}\n" for source in SOURCES), encoding="utf-8")
    (tmp_path / "ref.zh").write_text("我喜欢苹果\n他们买茶和狗\n我们看见猫\n你要书\n孩子喜欢茶\n", encoding="utf-8")
    files = ("--src", tmp_path / "src.en", "--ref", tmp_path / "ref.zh", "--out", out, "--plot", plot)
    batches = ("--batch", 2, "--batch", 1, "--seconds", 0, "--device", "cpu")
    answer = command("bench", f"{trained_run}:beam=1", f"{trained_run}:beam=3", *files, *batches)
    assert answer.code == 0, answer.err
    assert "| ms a batch of 1 | ms a batch of 2 |" in answer.out
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [one["settings"]["beam"] for one in record["results"]] == [1, 3]
    assert record["results"][0]["score"]["value"] > 50
    assert "tok:zh" in record["results"][0]["score"]["signature"]
    assert plot.read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--plot", "trade.svg"), "--plot shows quality against speed, so it needs --ref"),
        (("--plot", "trade.txt"), "a plot is written as .png, .svg, .pdf"),
        (("--batch", 600), "500 sentences do not make a batch of 600"),
        (("--out", "no/such/file.json"), "no file can be written there"),
    ],
)
def test_bench_refuses_before_it_loads_a_model(
    trained_run: Path,
    toy: Path,
    command: Command,
    options: tuple[object, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in command("bench", "no/such/run", "--src", toy / "train.en", *options).refusal
