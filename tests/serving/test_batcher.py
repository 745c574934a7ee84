"""The queue of one model: batches, bounds, deadlines, and faults that stay where they belong."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.serving.batcher import Batcher
from regard.serving.config import Limits
from regard.serving.errors import Problem
from regard.serving.messages import Job
from regard.serving.metrics import Metrics
from regard.serving.worker_process import WorkerError, WorkError
from tests.asynchronous import run_apart
from tests.serving.conftest import Echo

Again = Callable[[], Any] | None


def job(text: str, size: int = 1, n_best: int = 1) -> Job:
    return Job("translate", text, (("n_best", n_best),), size)


def texts(results: Sequence[Any]) -> list[str]:
    return [best[0].text for best in results]


@pytest.fixture
def echo(tokenizer: Tokenizer) -> Echo:
    return Echo(tokenizer)


def run(
    work: Callable[[Batcher], Awaitable[Any]],
    echo: Echo,
    again: Again = None,
    others: Sequence[Echo] = (),
    **limits: Any,
) -> Any:
    """What comes of some work with a batcher."""

    async def start() -> Echo:
        return again() if again else echo

    async def main() -> Any:
        batcher = Batcher(start, Limits(**limits), Metrics().model("echo"), [echo, *others])
        try:
            return await asyncio.wait_for(work(batcher), 20)
        finally:
            await batcher.stop()

    return run_apart(main())


def test_requests_that_come_together_go_through_the_model_together(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.submit([job(f"a{i}"), job(f"b{i}")]) for i in range(5)))

    answers = run(work, echo)
    assert [texts(answer) for answer in answers] == [[f"A{i}", f"B{i}"] for i in range(5)]
    assert [len(batch) for batch in echo.batches] == [10]


def test_what_comes_while_the_model_is_busy_waits_and_goes_together(echo: Echo) -> None:
    gate = asyncio.Event()

    async def work(batcher: Batcher) -> Any:
        echo.before = lambda items: gate.wait()
        first = asyncio.create_task(batcher.submit([job("first")]))
        while not echo.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(batcher.submit([job(f"x{i}")])) for i in range(7)]
        await asyncio.sleep(0.01)
        gate.set()
        return await asyncio.gather(first, *others)

    assert len(run(work, echo)) == 8
    assert list(map(len, echo.batches)) == [1, 7]


def test_batches_hold_no_more_tokens_and_sentences_than_they_may(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Any:
        return await batcher.submit([job(f"{i}", size=9) for i in range(7)])

    assert texts(run(work, echo, batch_tokens=30)) == [str(i) for i in range(7)]
    assert list(map(len, echo.batches)) == [3, 3, 1]
    echo.batches.clear()
    run(work, echo, batch_items=2)
    assert list(map(len, echo.batches)) == [2, 2, 2, 1]


def test_only_jobs_of_one_kind_and_of_like_size_keep_company(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Any:
        return await batcher.submit([job("a"), job("b", n_best=2), job("c"), job("long", size=200), job("d", n_best=2)])

    assert texts(run(work, echo)) == ["A", "B", "C", "LONG", "D"]
    assert echo.batches == [["a", "c"], ["b", "d"], ["long"]]


def test_a_full_queue_refuses_all_of_a_request_and_says_when_to_come_back(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Problem:
        gate = asyncio.Event()
        echo.before = lambda items: gate.wait()
        waiting = [asyncio.create_task(batcher.submit([job("a")])) for _ in range(4)]
        await asyncio.sleep(0.05)  # one is with the model, three wait
        with pytest.raises(Problem) as refused:
            await batcher.submit([job("b"), job("c")])
        gate.set()
        await asyncio.gather(*waiting)
        return refused.value

    problem = run(work, echo, queue=4, batch_items=1)
    assert problem.status == 429
    assert int(problem.headers["Retry-After"]) >= 1
    assert ["b"] not in echo.batches


def test_a_request_larger_than_the_queue_is_taken_when_the_queue_is_empty(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Any:
        return await batcher.submit([job("a") for _ in range(9)])

    assert len(run(work, echo, queue=4)) == 9


def test_a_deadline_that_passes_is_a_504_and_what_waited_is_not_done(echo: Echo) -> None:
    async def work(batcher: Batcher) -> list[int]:
        gate = asyncio.Event()
        echo.before = lambda items: gate.wait()
        both = await asyncio.gather(batcher.submit([job("a")]), batcher.submit([job("b")]), return_exceptions=True)
        gate.set()
        await asyncio.sleep(0.02)
        return [problem.status for problem in both]

    assert run(work, echo, deadline=0.1, batch_items=1) == [504, 504]
    assert echo.batches == [["a"]]


def test_work_of_a_client_that_left_is_dropped(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Any:
        gate = asyncio.Event()
        echo.before = lambda items: gate.wait()
        tasks = [asyncio.create_task(batcher.submit([job(name)])) for name in "abc"]
        await asyncio.sleep(0.05)
        tasks[1].cancel()
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = run(work, echo, batch_items=1)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert echo.batches == [["a"], ["c"]]


@pytest.mark.parametrize(("error", "status"), [(UserError("no"), 400), (WorkError("x"), 500), (WorkerError("y"), 500)])
def test_a_poisoned_input_fails_alone(echo: Echo, tokenizer: Tokenizer, error: Exception, status: int) -> None:
    def poison(items: Sequence[str]) -> None:
        if "poison" in items:
            raise error

    echo.before = poison
    started: list[Echo] = []

    def again() -> Echo:
        started.append(Echo(tokenizer))
        started[-1].before = poison
        return started[-1]

    async def work(batcher: Batcher) -> Any:
        names = ["a", "poison", "b", "c"]
        return await asyncio.gather(*(batcher.submit([job(name)]) for name in names), return_exceptions=True)

    a, poisoned, b, c = run(work, echo, again)
    assert texts([*a, *b, *c]) == ["A", "B", "C"]
    assert isinstance(poisoned, Problem)
    assert poisoned.status == status
    assert len(started) == (2 if isinstance(error, WorkerError) else 0)  # for the batch, and for the poison alone
    assert echo.ended


def test_a_worker_that_does_not_start_is_tried_again(echo: Echo, tokenizer: Tokenizer) -> None:
    def die(items: Sequence[str]) -> None:
        echo.before = lambda items: None
        raise WorkerError("killed")

    attempts = []

    def again() -> Echo:
        attempts.append(1)
        if len(attempts) == 1:
            raise UserError("the folder is being replaced")
        return Echo(tokenizer)

    echo.before = die

    async def work(batcher: Batcher) -> Any:
        return await asyncio.gather(batcher.submit([job("a")]), batcher.submit([job("b")])), batcher.well

    answers, well = run(work, echo, again)
    assert [texts(answer) for answer in answers] == [["A"], ["B"]]
    assert (len(attempts), well) == (2, True)


def test_a_worker_that_hangs_is_ended(echo: Echo, tokenizer: Tokenizer) -> None:
    async def work(batcher: Batcher) -> Any:
        echo.before = lambda items: asyncio.Event().wait()
        with pytest.raises(Problem) as late:
            await batcher.submit([job("a")])
        while not echo.ended:
            await asyncio.sleep(0.01)
        return late.value.status, texts(await batcher.submit([job("b")]))

    assert run(work, echo, lambda: Echo(tokenizer), deadline=0.1) == (504, ["B"])


def test_another_worker_takes_over_between_two_batches(echo: Echo, tokenizer: Tokenizer) -> None:
    other = Echo(tokenizer)

    async def work(batcher: Batcher) -> Any:
        gate = asyncio.Event()
        echo.before = lambda items: gate.wait()
        first = asyncio.create_task(batcher.submit([job("a")]))
        while not echo.batches:
            await asyncio.sleep(0.001)
        replacing = asyncio.create_task(batcher.replace([other]))
        second = asyncio.create_task(batcher.submit([job("b")]))
        await asyncio.sleep(0.02)
        assert not echo.ended
        gate.set()
        await asyncio.gather(first, second, replacing)

    run(work, echo)
    assert (echo.batches, other.batches, echo.ended) == ([["a"]], [["b"]], True)


def test_a_lone_sentence_waits_no_longer_than_it_should(echo: Echo) -> None:
    async def work(batcher: Batcher) -> float:
        began = time.monotonic()
        await batcher.submit([job("a")])
        return time.monotonic() - began

    assert 0.05 <= run(work, echo, wait=0.05) < 2


def test_results_stream_in_order_as_they_come(echo: Echo) -> None:
    async def work(batcher: Batcher) -> Any:
        seen = []
        async with aclosing(batcher.stream([job(name) for name in "abcd"])) as results:
            async for best in results:
                seen.append(best[0].text)
                if len(seen) == 2:
                    break
        await asyncio.sleep(0.05)
        return seen

    echo.before = lambda items: asyncio.sleep(0.01)
    assert run(work, echo, batch_items=1) == ["A", "B"]
    assert echo.batches == [["a"], ["b"], ["c"]]  # the third had begun, the fourth was dropped


def test_workers_that_are_free_share_what_waits(echo: Echo, tokenizer: Tokenizer) -> None:
    other = Echo(tokenizer)
    for one in (echo, other):
        one.before = lambda items: asyncio.sleep(0.01)

    async def work(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.submit([job(f"{i}")]) for i in range(9)))

    assert [texts(answer) for answer in run(work, echo, others=[other])] == [[str(i)] for i in range(9)]
    assert sorted(map(len, echo.batches + other.batches)) == [4, 5]


def test_while_one_worker_is_started_again_the_other_goes_on(echo: Echo, tokenizer: Tokenizer) -> None:
    other = Echo(tokenizer)

    def die(items: Sequence[str]) -> None:
        raise WorkerError("killed")

    async def work(batcher: Batcher) -> Any:
        gate = asyncio.Event()
        other.before = lambda items: None if gate.is_set() else gate.wait()
        echo.before = die
        tasks = [asyncio.create_task(batcher.submit([job(name)])) for name in "ab"]
        while batcher.well:
            await asyncio.sleep(0.001)
        gate.set()
        assert texts(await batcher.submit([job("c")])) == ["C"]
        return tasks, batcher.well

    async def never() -> Echo:
        await asyncio.Event().wait()
        raise AssertionError

    async def main() -> None:
        batcher = Batcher(never, Limits(), Metrics().model("echo"), [echo, other])
        tasks, well = await asyncio.wait_for(work(batcher), 20)
        assert not well
        assert sum(task.done() for task in tasks) == 1
        for task in tasks:
            task.cancel()
        await batcher.stop()

    run_apart(main())
