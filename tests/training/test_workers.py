import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest
import torch

from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import build_task
from regard.training.state import DataShard, Position
from regard.training.tasks.translation.batches import TextBatch
from regard.training.tasks.translation.task import TranslationTask
from regard.training.workers import _initialise_worker, map_in_workers
from tests.conftest import SMALL, settings_of
from tests.forks import Forked

CPU = torch.device("cpu")


@pytest.fixture
def task(make_recipe: Callable[..., Recipe]) -> Callable[..., TranslationTask]:
    return lambda **changes: build_task(make_recipe(batch__tokens=128, **changes), CPU, Progress(1))


def assert_same(one: TextBatch, other: TextBatch) -> None:
    for name in ("source", "inputs", "labels", "real"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.source_layout.real(), other.source_layout.real())


@pytest.mark.parametrize("share", [DataShard(), DataShard(1, 3)])
def test_workers_prepare_the_same_batches_in_the_same_order(
    task: Callable[..., TranslationTask], share: DataShard
) -> None:
    alone, helped = task(), task(training__workers=2)
    place = next(islice(alone.batches(Position(), DataShard()), 7, None)).after
    batches = alone.batches(place, share), helped.batches(place, share)
    for one, other in islice(zip(*batches, strict=True), 80):  # more than an epoch
        assert_same(one.batch, other.batch)
        assert one.after == other.after
    assert one.after.epoch > 0


def test_workers_do_not_advance_the_random_state_of_training(task: Callable[..., TranslationTask]) -> None:
    helped = task(training__workers=1)
    before = torch.get_rng_state()
    next(helped.batches(Position(), DataShard()))
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_end_with_the_iterator(task: Callable[..., TranslationTask]) -> None:
    batches = task(training__workers=2).batches(Position(), DataShard())
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    del batches
    assert not multiprocessing.active_children()


def children(process: int) -> list[int]:
    """The ids of the child processes; some kernels do not have /proc/PID/task/PID/children."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
    return found


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def training(toy: Path, tmp_path: Path, fork: Callable[..., Forked]) -> Forked:
    """A training run with two workers, after three steps."""
    endless = {"training.steps": 100_000, "training.checkpoint_every": 100_000, "training.log_every": 1}
    settings = settings_of(SMALL | endless | {"training.workers": 2})
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh", "--out", tmp_path / "run")
    process = fork("train", *files, *settings)
    for line in process.stdout:
        if line.startswith("step 3/"):
            break
    return process


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "all_processes", "code"),
    [
        (signal.SIGKILL, False, -signal.SIGKILL),
        (signal.SIGINT, True, 130),  # Ctrl-C is sent to all processes of the terminal
        (signal.SIGTERM, True, 143),  # as do job schedulers
        (signal.SIGTERM, False, 143),
    ],
)
def test_workers_end_with_their_run(
    number: signal.Signals, all_processes: bool, code: int, training: Forked, tmp_path: Path
) -> None:
    workers = children(training.pid)
    assert len(workers) == 2
    for process in [*workers, training.pid] if all_processes else [training.pid]:
        os.kill(process, number)
    _, errors = training.communicate(timeout=60)
    assert training.returncode == code, errors
    deadline = time.monotonic() + 10
    while any(map(runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, workers))
    assert "Traceback" not in errors
    if number != signal.SIGKILL:
        assert list((tmp_path / "run" / "checkpoints").glob("step-*")), "the last step is saved"


class Cycle:
    """A reference cycle that only the garbage collector frees."""

    gone = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Cycle.gone += 1


def test_worker_does_not_collect_objects_of_its_parent() -> None:
    def count(plan: int) -> int:
        gc.collect()
        return Cycle.gone

    gc.disable()
    try:
        Cycle()
        batches = map_in_workers(count, range(3), 1)
    finally:
        gc.enable()
    assert list(batches) == [0, 0, 0]
    gc.collect()
    assert Cycle.gone == 1


def test_worker_ends_if_its_parent_died_before_it_started() -> None:
    read_end, write_end = os.pipe()
    run = os.fork()
    if run == 0:  # forks a worker and dies at once
        try:
            run = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == run:
                time.sleep(0.001)
            _initialise_worker(run, 0)
            os.write(write_end, b"still running")
        finally:
            os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 99) == b""
    os.close(read_end)
    os.waitpid(run, 0)
