"""Signals, progress, background threads and atomic files."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from regard.errors import UserError
from regard.runtime import (
    WAITING,
    Interrupted,
    Interruptions,
    LineProgress,
    available_cpus,
    configure_threads,
    describe_threads,
    import_optional,
    prefetch,
    prefetch_iterator,
    replace_text_file,
)


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
def test_progress_is_a_bar_on_a_terminal(total: int | None) -> None:
    stream = io.StringIO()
    with LineProgress(total, console=Console(file=stream, force_terminal=True, width=120)) as lines:
        lines.advance(10)
    assert ("10 of 10 lines" if total else "10 lines") in stream.getvalue()


def test_replaced_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replace_text_file(path) as file:
        file.write("new")
        _ = 1 / 0
    assert path.read_text() == "old"
    with replace_text_file(path) as file:
        file.write("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.txt"]
    message = r"cannot be written \(No such file or directory\)"
    with pytest.raises(UserError, match=message), replace_text_file(tmp_path / "missing" / "out.txt"):
        pass


def test_missing_optional_package_is_named_with_its_extra() -> None:
    with pytest.raises(UserError, match=r"needs the package not_installed; install it with pip install 'regard\[hf\]'"):
        import_optional("not_installed.module", "hf")


def test_prefetched_results_keep_their_order_and_few_are_computed_ahead() -> None:
    started: list[int] = []

    def square(number: int) -> int:
        started.append(number)
        return number**2

    results = prefetch(square, range(100), threads=2, ahead=3)
    assert next(results) == 0
    assert len(started) <= 4
    assert list(results) == [number**2 for number in range(1, 100)]


def test_closing_the_iterator_cancels_what_has_not_started() -> None:
    started: list[int] = []

    def work(number: int) -> int:
        started.append(number)
        time.sleep(0.02)
        return number

    results = prefetch(work, range(1000), threads=1, ahead=100)
    assert next(results) == 0
    results.close()
    assert len(started) < 101


def test_error_of_a_prefetched_item_is_raised_in_its_turn() -> None:
    results = prefetch(lambda number: 6 // (3 - number), range(9), threads=2, ahead=5)
    assert [next(results) for _ in range(3)] == [2, 3, 6]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_iterator_is_advanced_in_advance_until_it_ends_fails_or_is_closed() -> None:
    taken: list[int] = []

    def numbers(stop: int) -> Iterator[int]:
        for number in range(stop):
            taken.append(number)
            yield number
        if stop == 3:
            raise ValueError("the end")

    assert list(prefetch_iterator(numbers(5), ahead=2)) == [0, 1, 2, 3, 4]
    results = prefetch_iterator(numbers(3), ahead=9)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="the end"):
        next(results)
    taken.clear()
    source = numbers(100)
    results = prefetch_iterator(source, ahead=4)
    assert next(results) == 0
    results.close()
    assert len(taken) <= 5
    assert next(source) == len(taken) - 1, "no thread advances it any more"


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 64),  # not on Linux
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "350000 100000\n"}, 3),  # of an outer group
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "12800000 100000\n"}, 64),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n1:cpu,cpuacct:/docker/1:2\n",  # the path of the host
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",  # no quota
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            64,
        ),
    ],
)
def test_cpus_are_limited_by_the_quotas_of_cgroups(
    files: dict[str, str], cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "2"}),
        ({"OMP_NUM_THREADS": "7"}, {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "7"}),
        ({"MKL_NUM_THREADS": "7"}, {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1", "MKL_NUM_THREADS": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "2"}),
        ({"GOMP_SPINCOUNT": "9"}, {"GOMP_SPINCOUNT": "9", "OMP_NUM_THREADS": "2"}),
    ],
)
def test_waiting_and_number_of_threads_are_chosen_unless_given(
    given: dict[str, str], chosen: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = dict(given)
    configure_threads(environment, tmp_path)
    assert environment == chosen


def test_without_a_quota_openmp_chooses_the_number_of_threads(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    configure_threads(environment, tmp_path)
    assert "OMP_NUM_THREADS" not in environment


def test_threads_are_configured_before_torch_is_imported() -> None:
    code = (
        "import os, sys, regard.cli\n"
        "regard.cli.main = lambda: print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)\n"
        "from regard.__main__ import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2000 False\n"


def test_description_of_threads_states_the_way_of_waiting() -> None:
    assert describe_threads(3, {"GOMP_SPINCOUNT": "5"}).startswith("CPU threads: 3 of ")
    assert describe_threads(3, {"GOMP_SPINCOUNT": "5"}).endswith("; waiting: GOMP_SPINCOUNT=5")
    assert describe_threads(3, {"OMP_WAIT_POLICY": "PASSIVE"}).endswith("OMP_WAIT_POLICY=PASSIVE")
    assert describe_threads(3, {}).endswith("the default of OpenMP")


def test_cpus_are_limited_by_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert available_cpus(tmp_path) == 3
