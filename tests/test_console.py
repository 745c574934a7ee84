"""Interruptions and progress bars."""

import io
import signal

import pytest
from rich.console import Console

from regard.console import Interrupted, Interruptions, LineProgress


def test_deferred_interruption_waits_for_the_end_of_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interruptions() as interruptions:
        reached = []
        with pytest.raises(Interrupted) as once, interruptions.defer():
            signal.raise_signal(signal.SIGTERM)
            reached.append("end of the block")
        assert (reached, once.value.signal) == (["end of the block"], signal.SIGTERM)
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
    with Interruptions() as interruptions, pytest.raises(Interrupted), interruptions.defer():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal was ignored")


def test_nested_deferral_waits_for_the_outer_block() -> None:
    reached = []
    with Interruptions() as interruptions, pytest.raises(Interrupted), interruptions.defer():
        with interruptions.defer():
            signal.raise_signal(signal.SIGTERM)
        reached.append("end of the outer block")
    assert reached == ["end of the outer block"]


def test_progress_is_printed_as_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineProgress, "SECONDS_BETWEEN_LINES", 0)
    stream = io.StringIO()
    with LineProgress(10, 4, console=Console(file=stream)) as lines:
        lines.advance(1)
        lines.advance(2)
    assert [line[: len("regard: 5 of 10 lines, ")] for line in stream.getvalue().splitlines()] == [
        "regard: 5 of 10 lines, ",
        "regard: 7 of 10 lines, ",
    ]
    with LineProgress(None, console=Console(file=stream)) as lines:
        lines.advance(3)
    assert "regard: 3 lines, " in stream.getvalue()


def test_progress_is_silent_at_first_and_if_disabled() -> None:
    stream = io.StringIO()
    for console, shown in ((Console(file=stream), True), (Console(file=stream, force_terminal=True), False)):
        with LineProgress(10, shown=shown, console=console) as lines:
            lines.advance(10)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("total", [10, None])
def test_progress_is_a_bar_on_a_terminal(total: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LineProgress, "SECONDS_BETWEEN_LINES", 0)
    stream = io.StringIO()
    with LineProgress(total, console=Console(file=stream, force_terminal=True, width=120)) as lines:
        lines.advance(10)
    assert ("10 of 10 lines" if total else "10 lines") in stream.getvalue()
    assert "regard:" not in stream.getvalue()
