"""Batches prepared by worker processes, and runs whose workers are killed.

`killed_worker` kills a worker at a given point of a given batch, so that these tests do not depend on timing.
"""

import gc
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import pytest
import torch

from regard.errors import UserError
from regard.training import workers
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch
from regard.training.workers import _initialise_worker, map_in_workers
from tests.conftest import SMALL, build_task, settings_of, small_recipe
from tests.forks import Forked
from tools.killing import dying_worker

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
    place = next(islice(alone.batches(DataPosition(), DataShard()), 7, None)).after
    batches = alone.batches(place, share), helped.batches(place, share)
    for one, other in islice(zip(*batches, strict=True), 80):  # more than an epoch
        assert_same(one.item, other.item)
        assert one.after == other.after
    assert one.after.epoch > 0


def test_workers_do_not_advance_the_random_state_of_training(task: Callable[..., TranslationTask]) -> None:
    helped = task(training__workers=1)
    before = torch.get_rng_state()
    next(helped.batches(DataPosition(), DataShard()))
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_end_with_the_iterator(task: Callable[..., TranslationTask]) -> None:
    before = children(os.getpid())
    batches = task(training__workers=2).batches(DataPosition(), DataShard())
    next(batches)
    assert len(children(os.getpid())) == len(before) + 2
    batches.close()
    assert children(os.getpid()) == before


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
    _, errors = training.communicate(timeout=300)
    assert training.returncode == code, errors
    deadline = time.monotonic() + 60
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
        with map_in_workers(count, range(3), 1) as batches:
            assert list(batches) == [0, 0, 0]
    finally:
        gc.enable()
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
            _initialise_worker(run)
            os.write(write_end, b"still running")
        finally:
            os._exit(0)
    os.close(write_end)
    assert os.read(read_end, 99) == b""
    os.close(read_end)
    os.waitpid(run, 0)


def test_error_in_a_worker_is_raised_with_its_traceback() -> None:
    def fail(plan: int) -> int:
        return 1 // (plan - 3)

    with map_in_workers(fail, range(9), 2) as results:
        assert list(islice(results, 3)) == [-1, -1, -1]
        with pytest.raises(ZeroDivisionError) as error:
            next(results)
    assert "1 // (plan - 3)" in error.value.__notes__[0]


def test_result_that_cannot_be_sent_is_reported_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        map_in_workers(lambda plan: lambda: plan, range(3), 1) as results,
        pytest.raises(UserError, match="exit code 1"),
    ):
        next(results)
    assert "in _serve" in capfd.readouterr().err


def test_large_plans_and_results_do_not_block_each_other() -> None:
    plans = [bytes([number]) * 2**20 for number in range(7)]  # more than the buffer of a pipe
    with map_in_workers(lambda plan: plan * 2, plans, 2) as results:
        assert [result == plan * 2 for plan, result in zip(plans, results, strict=True)] == [True] * 7


def test_worker_that_cannot_be_started_is_reported_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    before, fork = children(os.getpid()), os.fork

    def refuse_second() -> int:
        if len(children(os.getpid())) > len(before):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", refuse_second)
    message = r"data worker 2 cannot be started \(Resource temporarily unavailable\); lower training\.workers"
    with pytest.raises(UserError, match=message), map_in_workers(int, range(3), 3):
        pass
    assert children(os.getpid()) == before


# Killed workers


@contextmanager
def killed_worker(number: int, batch: int, at: str) -> Iterator[None]:
    """Kill a worker when it prepares its n-th batch: "before" it, "within" its message, or "after" it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers._Worker, "__init__", dying_worker(number, batch, at))
        yield


@pytest.fixture(scope="module")
def short(toy: Path) -> Callable[..., Recipe]:
    """Builds a recipe of 12 steps with two batches each, dropout, and no checkpoint before the end."""
    settings: dict[str, object] = {
        "batch__tokens": 128,
        "model__dropout": 0.2,
        "optim__accumulate": 2,
        "training__steps": 12,
        "training__validate_every": 4,
        "training__log_every": 1,
        "training__checkpoint_every": 100,
        "training__valid_sentences": 2,
    }
    return lambda **changes: small_recipe(toy / "train.en", toy / "train.zh", **settings | changes)


@pytest.fixture(scope="module")
def alone(short: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without workers. Read-only."""
    out = tmp_path_factory.mktemp("alone") / "run"
    run_recipe(short(), out)
    return out


def read_results(out: Path) -> list[bytes]:
    models = [out / name / "model.safetensors" for name in ("best", "last")]
    return [path.read_bytes() for path in (*models, out / "checkpoints" / "step-00000012" / "state.safetensors")]


@pytest.mark.parametrize(
    ("number", "batch", "at"),
    [(1, 1, "after"), (1, 3, "before"), (2, 3, "within"), (3, 4, "after"), (2, 7, "before")],
)
def test_killed_worker_ends_the_run_with_a_checkpoint_from_which_it_resumes(
    number: int, batch: int, at: str, short: Callable[..., Recipe], alone: Path, tmp_path: Path
) -> None:
    delivered = 3 * (batch - 1 + (at == "after")) + number - 1  # batches before the missing one
    step = delivered // 2
    recipe, before = short(training__workers=3), children(os.getpid())
    with killed_worker(number, batch, at), pytest.raises(UserError) as error:
        run_recipe(recipe, tmp_path / "run")
    assert re.fullmatch(
        rf"data worker {number} \(process \d+\) was killed by SIGKILL, perhaps because memory ran out; "
        rf"saved at step {step}; the same command resumes from there",
        str(error.value),
    )
    assert children(os.getpid()) == before, "the other workers end with the run"
    assert run_recipe(recipe, tmp_path / "run").steps == 12
    assert read_results(tmp_path / "run") == read_results(alone)


def test_worker_killed_before_the_first_step_leaves_no_files(short: Callable[..., Recipe], tmp_path: Path) -> None:
    with (
        killed_worker(2, 1, "before"),
        pytest.raises(UserError, match=r"was killed by SIGKILL.* this was before the first step, so start again"),
    ):
        run_recipe(short(training__workers=2), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_command_whose_worker_is_killed_reports_one_sentence(training: Forked, tmp_path: Path) -> None:
    os.kill(children(training.pid)[1], signal.SIGKILL)
    _, errors = training.communicate(timeout=300)
    assert training.returncode == 2
    assert re.fullmatch(r"regard: data worker \d .* saved at step \d+; the same command resumes from there\n", errors)
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
