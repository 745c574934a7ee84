import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch

from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import prepare
from regard.training.state import Position, Share
from regard.training.tasks.translation.task import TextBatch, TranslationTask
from regard.training.workers import _initialise_worker, map_in_workers
from tests.conftest import SMALL, settings_of
from tests.forks import Forked

CPU = torch.device("cpu")


@pytest.fixture
def task(make_recipe: Callable[..., Recipe]) -> Callable[..., TranslationTask]:
    return lambda **changes: prepare(make_recipe(batch__tokens=128, **changes), CPU, Progress(1))


def assert_same(one: TextBatch, other: TextBatch) -> None:
    for name in ("source", "inputs", "labels", "real"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.source_layout.real(), other.source_layout.real())


@pytest.mark.parametrize("share", [Share(), Share(1, 3)])
def test_workers_make_the_same_batches_in_the_same_order(task: Callable[..., TranslationTask], share: Share) -> None:
    alone, helped = task(), task(training__workers=2)
    place = next(islice(alone.batches(Position(), Share()), 7, None)).after
    batches = alone.batches(place, share), helped.batches(place, share)
    for one, other in islice(zip(*batches, strict=True), 80):  # more than an epoch
        assert_same(one.batch, other.batch)
        assert one.after == other.after
    assert one.after.epoch > 0


def test_workers_draw_no_random_numbers_of_the_training(task: Callable[..., TranslationTask]) -> None:
    helped = task(training__workers=1)
    before = torch.get_rng_state()
    next(helped.batches(Position(), Share()))
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_end_when_nobody_wants_more_batches(task: Callable[..., TranslationTask]) -> None:
    batches = task(training__workers=2).batches(Position(), Share())
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    del batches
    assert not multiprocessing.active_children()


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def training(toy: Path, tmp_path: Path, fork: Callable[..., Forked]) -> Forked:
    """A run with two workers, some steps after its beginning."""
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
    ("number", "everyone", "code"),
    [
        (signal.SIGKILL, False, -signal.SIGKILL),
        (signal.SIGINT, True, 130),  # Ctrl-C reaches all processes of the terminal
        (signal.SIGTERM, True, 143),  # as does the end of a job
        (signal.SIGTERM, False, 143),
    ],
)
def test_no_worker_outlives_its_run(
    number: signal.Signals, everyone: bool, code: int, training: Forked, tmp_path: Path
) -> None:
    workers = children(training.pid)
    assert len(workers) == 2
    for process in [*workers, training.pid] if everyone else [training.pid]:
        os.kill(process, number)
    _, said = training.communicate(timeout=60)
    assert training.returncode == code, said
    deadline = time.monotonic() + 10
    while any(map(runs, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(runs, workers))
    assert "Traceback" not in said
    if number != signal.SIGKILL:
        assert list((tmp_path / "run" / "checkpoints").glob("step-*")), "the last step was saved first"


class Left:
    """Something that nobody has any more, and that only the collector finds."""

    gone = 0

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        Left.gone += 1


def test_a_worker_does_not_clear_away_what_its_parent_left() -> None:
    def count(plan: int) -> int:
        gc.collect()
        return Left.gone

    gc.disable()
    try:
        Left()
        batches = map_in_workers(count, range(3), 1)
    finally:
        gc.enable()
    assert list(batches) == [0, 0, 0]
    gc.collect()
    assert Left.gone == 1


def test_a_worker_whose_run_was_killed_before_it_began_ends_too() -> None:
    alive, mouth = os.pipe()
    run = os.fork()
    if run == 0:  # which starts a worker and is killed at once
        try:
            run = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == run:
                time.sleep(0.001)
            _initialise_worker(run, 0)
            os.write(mouth, b"works for nobody")
        finally:
            os._exit(0)
    os.close(mouth)
    assert os.read(alive, 99) == b""
    os.close(alive)
    os.waitpid(run, 0)
