"""The queue of a model: batches, turns of clients, limits, deadlines, and isolation of faults."""

import asyncio
import errno
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.serving import batcher as batcher_module
from regard.serving import fair_queue
from regard.serving.batcher import Batcher
from regard.serving.config import Limits
from regard.serving.errors import ApiError
from regard.serving.fair_queue import MAX_REMOVED, FairQueue
from regard.serving.messages import LONG_TOKENS, BatchFailedError, Job, LoadRequest
from regard.serving.served_models import ServedModels
from regard.serving.telemetry import Metrics
from regard.serving.worker import WorkerDiedError
from tests.asynchronous import VirtualClock, run_in_thread
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """The clock of the batchers that `run` creates."""
    clock = VirtualClock()
    for module in (batcher_module, fair_queue):
        monkeypatch.setattr(module, "time", clock)
    return clock


def run(
    test: Callable[[Batcher], Awaitable[Any]],
    worker: FakeWorker,
    restart: Callable[[], Any] | None = None,
    others: Sequence[FakeWorker] = (),
    clock: VirtualClock | None = None,
    **limits: Any,
) -> Any:
    """Run a coroutine with a batcher, and return its result. `restart` creates the successor of a dead worker."""

    async def start_worker() -> FakeWorker:
        return restart() if restart else worker

    async def main() -> Any:
        batcher = Batcher(start_worker, Limits(**limits), Metrics(), [worker, *others])
        try:
            return await asyncio.wait_for(test(batcher), 1000 if clock else 20)
        finally:
            await batcher.stop()

    return clock.run(main()) if clock else run_in_thread(main())


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


def test_exceeded_deadlines_fail_and_queued_jobs_are_not_run(worker: FakeWorker, clock: VirtualClock) -> None:
    async def test(batcher: Batcher) -> list[int]:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        errors = await asyncio.gather(batcher.submit([job("a")]), batcher.submit([job("b")]), return_exceptions=True)
        assert clock.now == pytest.approx(30)
        release.set()
        await asyncio.sleep(1)
        return [error.status for error in errors]

    assert run(test, worker, clock=clock, deadline=30, batch_items=1) == [504, 504]
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


def test_error_of_the_batcher_itself_fails_one_batch(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(batcher: Batcher) -> Any:
        async def fail(*arguments: object) -> None:
            monkeypatch.undo()
            raise KeyError("a bug")

        monkeypatch.setattr(batcher, "_run_batch", fail)
        first = await asyncio.gather(*(batcher.submit([job(name)]) for name in "ab"), return_exceptions=True)
        return first, await batcher.submit([job("c")])

    failed, later = run(test, worker)
    assert [(type(error), error.status) for error in failed] == [(ApiError, 500)] * 2
    assert texts(later) == ["C"]


@pytest.mark.parametrize(
    "error",
    [
        UserError("the folder is being replaced"),
        WorkerDiedError("a worker cannot be started"),
        OSError(errno.EMFILE, "Too many open files"),
        MemoryError(),
        RuntimeError("can't start new thread"),
    ],
)
def test_failed_worker_start_is_repeated(
    error: Exception, worker: FakeWorker, tokenizer: Tokenizer, clock: VirtualClock
) -> None:
    def die(items: Sequence[str]) -> None:
        raise WorkerDiedError("killed")

    attempts: list[float] = []

    def restart() -> FakeWorker:
        attempts.append(clock.now)
        if len(attempts) < 10:
            raise error
        return FakeWorker(tokenizer)

    worker.before = die

    async def test(batcher: Batcher) -> Any:
        return await asyncio.gather(batcher.submit([job("a")]), batcher.submit([job("b")])), batcher.healthy

    results, healthy = run(test, worker, restart, clock=clock, deadline=1000)
    assert [texts(result) for result in results] == [["A"], ["B"]]
    assert healthy
    delays = [round(later - earlier, 3) for earlier, later in itertools.pairwise(attempts)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_dead_idle_worker_is_noticed_and_replaced(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    successor = FakeWorker(tokenizer)

    async def test(batcher: Batcher) -> Any:
        assert texts(await batcher.submit([job("a")])) == ["A"]
        assert batcher.healthy
        worker.alive = False
        assert not batcher.healthy
        await until(lambda: batcher.healthy)
        return texts(await batcher.submit([job("b")]))

    assert run(test, worker, lambda: successor) == ["B"]
    assert (worker.batches, successor.batches) == ([["a"]], [["b"]])


def test_batcher_is_healthy_only_if_all_workers_run(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    other = FakeWorker(tokenizer)

    async def test(batcher: Batcher) -> Any:
        states = []
        for worker.alive, other.alive in ((True, True), (False, True), (True, False)):
            states.append(batcher.healthy)
        return states

    assert run(test, worker, others=[other]) == [True, False, False]


def test_reload_replaces_a_worker_that_does_not_start(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    attempts: list[int] = []
    successor = FakeWorker(tokenizer)

    def restart() -> FakeWorker:
        attempts.append(1)
        raise UserError("the folder is damaged")

    async def test(batcher: Batcher) -> Any:
        worker.alive = False
        await until(lambda: attempts)
        await batcher.replace_workers([successor])
        return batcher.healthy, texts(await batcher.submit([job("a")]))

    assert run(test, worker, restart) == (True, ["A"])


def test_worker_that_starts_after_a_reload_is_stopped(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    successor, late = FakeWorker(tokenizer), FakeWorker(tokenizer)

    async def main() -> Any:
        starting, started = asyncio.Event(), asyncio.Event()

        async def start_worker() -> FakeWorker:
            starting.set()
            await started.wait()
            return late

        batcher = Batcher(start_worker, Limits(), Metrics(), [worker])
        worker.alive = False
        await starting.wait()
        await batcher.replace_workers([successor])
        started.set()
        await until(lambda: late.stopped)
        result = texts(await batcher.submit([job("a")]))
        await batcher.stop()
        return result

    assert run_in_thread(main()) == ["A"]
    assert (successor.batches, late.batches) == ([["a"]], [])


def test_hanging_worker_is_killed_and_replaced(worker: FakeWorker, tokenizer: Tokenizer, clock: VirtualClock) -> None:
    killed_at: list[float] = []
    kill = worker.kill
    worker.kill = lambda: (killed_at.append(clock.now), kill())  # type: ignore[method-assign]

    async def test(batcher: Batcher) -> Any:
        worker.before = lambda items: asyncio.Event().wait()
        with pytest.raises(ApiError) as late:
            await batcher.submit([job("a")])
        assert clock.now == pytest.approx(30)
        await asyncio.sleep(40)
        return late.value.status, texts(await batcher.submit([job("b")]))

    assert run(test, worker, lambda: FakeWorker(tokenizer), clock=clock, deadline=30) == (504, ["B"])
    assert killed_at[0] == pytest.approx(60, abs=1)


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


def test_single_job_waits_only_for_the_configured_time(worker: FakeWorker, clock: VirtualClock) -> None:
    started: list[float] = []
    worker.before = lambda items: started.append(clock.now)

    async def test(batcher: Batcher) -> None:
        await batcher.submit([job("a")])

    run(test, worker, clock=clock, wait=0.05)
    assert started == [pytest.approx(0.05)]


def test_steady_arrivals_do_not_delay_a_batch_forever(worker: FakeWorker, clock: VirtualClock) -> None:
    started: list[float] = []
    worker.before = lambda items: started.append(clock.now)

    async def test(batcher: Batcher) -> None:
        tasks = []
        for _ in range(20):  # each arrives before the wait for further jobs has ended
            tasks.append(asyncio.create_task(batcher.submit([job("a")])))
            await asyncio.sleep(0.04)
        await asyncio.gather(*tasks)

    run(test, worker, clock=clock, wait=0.05)
    assert started[0] == pytest.approx(0.25)  # five times the wait
    assert len(worker.batches[0]) == 7


def test_fast_workers_wait_for_shorter_times(worker: FakeWorker, clock: VirtualClock) -> None:
    started: list[float] = []

    async def take_time() -> None:
        started.append(clock.now)
        await asyncio.sleep(0.1)

    worker.before = lambda items: take_time()

    async def test(batcher: Batcher) -> None:
        await batcher.submit([job("a")])
        clock.now = 10.0
        await batcher.submit([job("b")])

    run(test, worker, clock=clock, wait=0.05)
    assert started == [pytest.approx(0.05), pytest.approx(10.01)]  # a tenth of the duration of the last batch


def test_full_batch_does_not_wait(worker: FakeWorker, clock: VirtualClock) -> None:
    async def test(batcher: Batcher) -> None:
        await batcher.submit([job("a", size=10), job("b", size=10)])
        assert clock.now == 0

    run(test, worker, clock=clock, wait=1, batch_items=2)
    clock.now = 0
    run(test, worker, clock=clock, wait=1, batch_tokens=20)


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
        results = await asyncio.gather(*tasks, batcher.submit([job("c")]))  # also the job of the dead worker
        assert [texts(result) for result in results] == [["A"], ["B"], ["C"]]
        assert not batcher.healthy
        await batcher.stop()

    run_in_thread(main())


# Turns of clients


def run_after_first(
    requests: Sequence[tuple[str, Sequence[str]]], worker: FakeWorker, **limits: Any
) -> list[list[list[str]] | int]:
    """Queue requests (client, sentences) behind a running batch; return their results, or the status of their error."""

    async def test(batcher: Batcher) -> Any:
        release = asyncio.Event()
        worker.before = lambda items: release.wait()
        first = asyncio.create_task(batcher.submit([job("first")]))
        await until(lambda: worker.batches)
        tasks = []
        for client, sentences in requests:
            tasks.append(asyncio.create_task(batcher.submit([job(text) for text in sentences], client)))
            await asyncio.sleep(0)
        release.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = run(test, worker, **({"batch_items": 1} | limits))
    return [result.status if isinstance(result, ApiError) else texts(result) for result in results]


def order(worker: FakeWorker) -> list[str]:
    return [text for batch in worker.batches[1:] for text in batch]


def test_short_request_of_another_client_does_not_wait_for_a_long_one(worker: FakeWorker) -> None:
    results = run_after_first([("ann", [f"a{i}" for i in range(50)]), ("bob", ["b"])], worker)
    assert results[1] == ["B"]
    assert order(worker).index("b") <= 1


def test_short_request_of_the_same_client_does_not_wait_for_a_long_one(worker: FakeWorker) -> None:
    run_after_first([("ann", [f"a{i}" for i in range(50)]), ("ann", ["b"])], worker)
    assert order(worker).index("b") <= 2


def test_many_requests_of_a_client_do_not_delay_another_client(worker: FakeWorker) -> None:
    many = [("ann", [f"a{i}", f"A{i}"]) for i in range(30)]
    run_after_first([*many, ("bob", ["b0", "b1", "b2"])], worker)
    taken = order(worker)
    assert taken.index("b0") <= 2
    assert taken.index("b2") <= 10


def test_requests_of_equal_length_are_served_in_order_of_arrival(worker: FakeWorker) -> None:
    run_after_first([(client, [f"{client}{i}"]) for i in range(3) for client in ("ann", "bob")], worker)
    taken = order(worker)
    for client in ("ann", "bob"):
        assert [text for text in taken if text.startswith(client)] == [f"{client}{i}" for i in range(3)]


def test_long_request_is_not_starved_by_a_steady_stream_of_short_ones(worker: FakeWorker) -> None:
    async def test(batcher: Batcher) -> int:
        long = asyncio.create_task(batcher.submit([job(f"a{i}") for i in range(10)], "ann"))
        count = 0
        while not long.done():
            waiting = [asyncio.create_task(batcher.submit([job("b")], f"bob{i}")) for i in range(3)]
            await asyncio.gather(*waiting)
            count += 1
        return count

    assert run(test, worker, batch_items=1) < 40


def test_full_queue_rejects_the_largest_request_of_the_largest_client(worker: FakeWorker) -> None:
    large, small = [f"a{i}" for i in range(6)], ["c0", "c1"]
    assert run_after_first([("ann", small), ("ann", large), ("bob", ["b"])], worker, queue=8) == [
        ["C0", "C1"],
        429,
        ["B"],
    ]
    assert not set(large) & set(order(worker))


def test_full_queue_rejects_a_new_request_that_is_larger_than_the_others(worker: FakeWorker) -> None:
    large = [f"a{i}" for i in range(6)]
    results = run_after_first([("ann", ["x", "y"]), ("bob", ["z"]), ("eve", large), ("ann", large)], worker, queue=8)
    assert results == [["X", "Y"], ["Z"], 429, 429]


@pytest.mark.parametrize(("seconds", "expected"), [(1, "6"), (100, "60")])
def test_retry_after_is_the_time_that_the_queue_needs(
    seconds: float, expected: str, worker: FakeWorker, clock: VirtualClock
) -> None:
    async def test(batcher: Batcher) -> str:
        worker.before = lambda items: asyncio.sleep(seconds)
        await batcher.submit([job("first", size=5)])
        tasks = []
        for _ in range(4):  # one of them is running, 30 tokens are waiting
            tasks.append(asyncio.create_task(batcher.submit([job("a", size=10)])))
            await asyncio.sleep(0.1)
        with pytest.raises(ApiError) as rejected:
            await batcher.submit([job("b")])
        for task in tasks:
            task.cancel()
        return rejected.value.headers["Retry-After"]

    assert run(test, worker, clock=clock, queue=3, batch_items=1, wait=0, deadline=1000) == expected


@pytest.mark.parametrize("count", [1, 2, 3])
def test_long_jobs_leave_a_worker_for_short_ones(count: int, worker: FakeWorker, tokenizer: Tokenizer) -> None:
    workers = [worker, *(FakeWorker(tokenizer) for _ in range(count - 1))]

    async def test(batcher: Batcher) -> Any:
        release = asyncio.Event()
        for one in workers:
            one.before = lambda items: release.wait() if items[0].startswith("long") else None
        long = asyncio.create_task(batcher.submit([job(f"long {i}", LONG_TOKENS) for i in range(6)]))
        await until(lambda: sum(len(one.batches) for one in workers) == max(1, count - 1))
        short = asyncio.create_task(batcher.submit([job("short", LONG_TOKENS - 1)]))
        if count > 1:
            assert texts(await short) == ["SHORT"]
            assert len(batcher._queue) == 6 - (count - 1)
        release.set()
        return texts(await long), texts(await short)

    long, short = run(test, worker, others=workers[1:], batch_items=1)
    assert (len(long), short) == (6, ["SHORT"])


def test_last_worker_runs_long_jobs_while_the_other_is_restarted(worker: FakeWorker, tokenizer: Tokenizer) -> None:
    other = FakeWorker(tokenizer)

    def restart() -> FakeWorker:
        raise UserError("does not start")

    async def test(batcher: Batcher) -> Any:
        worker.runs_long = True
        worker.alive = False
        await until(lambda: not batcher.healthy)
        return texts(await batcher.submit([job("a", LONG_TOKENS), job("b", LONG_TOKENS)]))

    assert run(test, worker, restart, others=[other], batch_items=1) == ["A", "B"]


def test_removed_jobs_do_not_accumulate() -> None:
    async def main() -> int:
        queue = FairQueue()
        queue.add("bob", [job("b", n_best=2)])
        for _ in range(20):
            queue.remove(queue.add("ann", [job("a") for _ in range(500)]))
        assert (len(queue), queue.tokens, queue.long_jobs) == (1, 1, 0)
        return sum(map(len, queue._heaps.values()))

    assert run_in_thread(main()) <= MAX_REMOVED + 501 + 2


def test_model_that_cannot_be_reloaded_does_not_prevent_others(tokenizer: Tokenizer) -> None:
    started: list[str] = []

    async def start_worker(request: LoadRequest) -> FakeWorker:
        started.append(request.name)
        if started.count(request.name) > 1 and request.name == "first":
            raise UserError("the folder is being replaced")
        return FakeWorker(tokenizer)

    async def test() -> list[bool]:
        requests = [LoadRequest(name, Path(name)) for name in ("first", "second")]
        models = ServedModels(requests, Limits(), Metrics(), start_worker)
        await models.start()
        before = [model.batcher._slots[0].worker for model in models.all]
        await models.reload()
        after = [model.batcher._slots[0].worker for model in models.all]
        await models.stop()
        return [one is other for one, other in zip(before, after, strict=True)]

    assert run_in_thread(test()) == [True, False]
    assert started == ["first", "second"] * 2
