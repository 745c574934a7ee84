"""The queue of a model: batches, limits, deadlines, and isolation of faults."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.serving import batcher as batcher_module
from regard.serving.batcher import Batcher
from regard.serving.config import Limits
from regard.serving.errors import ApiError
from regard.serving.messages import Job
from regard.serving.telemetry import Metrics
from regard.serving.worker import BatchFailedError, WorkerDiedError
from tests.asynchronous import run_in_thread
from tests.serving.conftest import FakeWorker


def job(text: str, size: int = 1, n_best: int = 1) -> Job:
    return Job("translate", text, (("n_best", n_best),), size)


def texts(results: Sequence[Any]) -> list[str]:
    return [n_best[0].text for n_best in results]


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until a condition is true."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def worker(tokenizer: Tokenizer) -> FakeWorker:
    return FakeWorker(tokenizer)


def run(
    test: Callable[[Batcher], Awaitable[Any]],
    worker: FakeWorker,
    restart: Callable[[], Any] | None = None,
    others: Sequence[FakeWorker] = (),
    **limits: Any,
) -> Any:
    """Run a coroutine with a batcher, and return its result. `restart` creates the successor of a dead worker."""

    async def start_worker() -> FakeWorker:
        return restart() if restart else worker

    async def main() -> Any:
        batcher = Batcher(start_worker, Limits(**limits), Metrics(), [worker, *others])
        try:
            return await asyncio.wait_for(test(batcher), 20)
        finally:
            await batcher.stop()

    return run_in_thread(main())


def test_concurrent_requests_share_a_batch(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.submit([job(f"a{i}"), job(f"b{i}")]) for i in range(5)))

    results = run(test, worker)
    assert [texts(result) for result in results] == [[f"A{i}", f"B{i}"] for i in range(5)]
    assert [len(batch) for batch in worker.batches] == [10]


def test_jobs_that_arrive_during_a_batch_form_the_next_batch(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        first = asyncio.create_task(batcher.submit([job("first")]))
        await until(lambda: worker.batches)
        others = [asyncio.create_task(batcher.submit([job(f"x{i}")])) for i in range(7)]
        await until(lambda: len(batcher._queue) == 7)
        release.set()
        return await asyncio.gather(first, *others)

    assert len(run(test, worker)) == 8
    assert list(map(len, worker.batches)) == [1, 7]


def test_batches_respect_the_limits_of_tokens_and_items(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        return await batcher.submit([job(f"{i}", size=9) for i in range(7)])

    assert texts(run(test, worker, batch_tokens=30)) == [str(i) for i in range(7)]
    assert list(map(len, worker.batches)) == [3, 3, 1]
    worker.batches.clear()
    run(test, worker, batch_items=2)
    assert list(map(len, worker.batches)) == [2, 2, 2, 1]


def test_only_jobs_with_equal_options_and_similar_size_share_a_batch(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        return await batcher.submit([job("a"), job("b", n_best=2), job("c"), job("long", size=200), job("d", n_best=2)])

    assert texts(run(test, worker)) == ["A", "B", "C", "LONG", "D"]
    assert worker.batches == [["a", "c"], ["b", "d"], ["long"]]


def test_full_queue_rejects_the_whole_request_with_retry_after(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> ApiError:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        tasks = [asyncio.create_task(batcher.submit([job("a")])) for _ in range(4)]
        await until(lambda: worker.batches and len(batcher._queue) == 3)
        with pytest.raises(ApiError) as rejected:
            await batcher.submit([job("b"), job("c")])
        release.set()
        await asyncio.gather(*tasks)
        return rejected.value

    error = run(test, worker, queue=4, batch_items=1)
    assert error.status == 429
    assert int(error.headers["Retry-After"]) >= 1
    assert ["b"] not in worker.batches


def test_empty_queue_accepts_a_request_larger_than_the_queue(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        return await batcher.submit([job("a") for _ in range(9)])

    assert len(run(test, worker, queue=4)) == 9


def test_exceeded_deadlines_fail_and_queued_jobs_are_not_run(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> list[int]:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        errors = await asyncio.gather(batcher.submit([job("a")]), batcher.submit([job("b")]), return_exceptions=True)
        release.set()
        await until(lambda: not batcher._queue)
        return [error.status for error in errors]

    assert run(test, worker, deadline=0.1, batch_items=1) == [504, 504]
    assert worker.batches == [["a"]]


def test_queued_jobs_of_cancelled_requests_are_not_run(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        tasks = [asyncio.create_task(batcher.submit([job(name)])) for name in "abc"]
        await until(lambda: worker.batches and len(batcher._queue) == 2)
        tasks[1].cancel()
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(test, worker, batch_items=1)
    assert isinstance(results[1], asyncio.CancelledError)
    assert worker.batches == [["a"], ["c"]]


@pytest.mark.parametrize(
    ("error", "status"), [(UserError("no"), 400), (BatchFailedError("x"), 500), (WorkerDiedError("y"), 500)]
)
def test_faulty_job_fails_alone(worker: FakeWorker, tokenizer: Tokenizer, error: Exception, status: int) -> None:
    def fail(items: Sequence[str]) -> None:
        if "faulty" in items:
            raise error

    worker.before = fail
    started: list[FakeWorker] = []

    def restart() -> FakeWorker:
        started.append(FakeWorker(tokenizer))
        started[-1].before = fail
        return started[-1]

    async def test(batcher: Batcher) -> Any:
        names = ["a", "faulty", "b", "c"]
        return await asyncio.gather(*(batcher.submit([job(name)]) for name in names), return_exceptions=True)

    a, faulty, b, c = run(test, worker, restart)
    assert texts([*a, *b, *c]) == ["A", "B", "C"]
    assert isinstance(faulty, ApiError)
    assert faulty.status == status
    assert len(started) == (2 if isinstance(error, WorkerDiedError) else 0)  # after the batch and after the retry
    assert worker.stopped


def test_failed_worker_start_is_repeated(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    def die(items: Sequence[str]) -> None:
        worker.before = lambda items: None
        raise WorkerDiedError("killed")

    attempts = []

    def restart() -> FakeWorker:
        attempts.append(1)
        if len(attempts) == 1:
            raise UserError("the folder is being replaced")
        return FakeWorker(tokenizer)

    worker.before = die

    async def test(batcher: Batcher) -> Any:
        return await asyncio.gather(batcher.submit([job("a")]), batcher.submit([job("b")])), batcher.healthy

    results, healthy = run(test, worker, restart)
    assert [texts(result) for result in results] == [["A"], ["B"]]
    assert (len(attempts), healthy) == (2, True)


def test_hanging_worker_is_killed_and_replaced(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    async def test(batcher: Batcher) -> Any:
        worker.before = lambda items: asyncio.Event().wait()
        with pytest.raises(ApiError) as late:
            await batcher.submit([job("a")])
        await until(lambda: worker.stopped)
        return late.value.status, texts(await batcher.submit([job("b")]))

    assert run(test, worker, lambda: FakeWorker(tokenizer), deadline=0.1) == (504, ["B"])


def test_workers_are_replaced_between_two_batches(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    successor = FakeWorker(tokenizer)

    async def test(batcher: Batcher) -> Any:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        first = asyncio.create_task(batcher.submit([job("a")]))
        await until(lambda: worker.batches)
        replacing = asyncio.create_task(batcher.replace_workers([successor]))
        second = asyncio.create_task(batcher.submit([job("b")]))
        await until(lambda: batcher._queue)
        assert not worker.stopped
        release.set()
        await asyncio.gather(first, second, replacing)

    run(test, worker)
    assert (worker.batches, successor.batches, worker.stopped) == ([["a"]], [["b"]], True)


def test_single_job_waits_only_for_the_configured_time(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    timeout = asyncio.timeout

    def record(seconds: float) -> Any:
        waits.append(seconds)
        return timeout(seconds)

    async def test(batcher: Batcher) -> None:
        monkeypatch.setattr(batcher_module.asyncio, "timeout", record)
        await batcher.submit([job("a")])
        monkeypatch.undo()

    run(test, worker, wait=0.05, deadline=100)
    waits_for_jobs = [wait for wait in waits if wait < 50]  # the others are the deadlines of the job and the batch
    assert waits_for_jobs
    assert all(0 < wait <= 0.05 for wait in waits_for_jobs)


def test_results_are_streamed_in_order_and_the_rest_is_dropped(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> Any:
        third_batch = asyncio.Event()
        worker.before = lambda items: third_batch.wait() if items == ["c"] else None
        received = []
        async with aclosing(batcher.stream([job(name) for name in "abcd"])) as results:
            async for n_best in results:
                received.append(n_best[0].text)
                if len(received) == 2:
                    break
        await until(lambda: ["c"] in worker.batches)
        third_batch.set()
        await until(lambda: not batcher._queue)
        return received

    assert run(test, worker, batch_items=1) == ["A", "B"]
    assert ["d"] not in worker.batches


def test_idle_workers_share_the_queue(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    other = FakeWorker(tokenizer)

    async def test(batcher: Batcher) -> Any:
        both_busy = asyncio.Barrier(2)
        for one in (worker, other):
            one.before = lambda items: both_busy.wait()
        return await asyncio.gather(*(batcher.submit([job(f"{i}")]) for i in range(9)))

    assert [texts(result) for result in run(test, worker, others=[other])] == [[str(i)] for i in range(9)]
    assert sorted(map(len, worker.batches + other.batches)) == [4, 5]


def test_other_worker_continues_while_one_is_restarted(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    other = FakeWorker(tokenizer)

    def die(items: Sequence[str]) -> None:
        raise WorkerDiedError("killed")

    async def never_start() -> FakeWorker:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        batcher = Batcher(never_start, Limits(), Metrics(), [worker, other])
        release = asyncio.Event()
        other.before = lambda items: release.wait()
        worker.before = die
        tasks = [asyncio.create_task(batcher.submit([job(name)])) for name in "ab"]
        await until(lambda: not batcher.healthy)
        release.set()
        assert texts(await asyncio.wait_for(batcher.submit([job("c")]), 20)) == ["C"]
        assert not batcher.healthy
        assert sum(task.done() for task in tasks) == 1
        for task in tasks:
            task.cancel()
        await batcher.stop()

    run_in_thread(main())
