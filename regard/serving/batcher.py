"""One queue for one model: sentences of many requests go through it together, and none of them spoils another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from regard.errors import UserError
from regard.serving.limits import Limits
from regard.serving.logs import note
from regard.serving.metrics import ModelMetrics
from regard.serving.problems import Problem, bad, broken, overloaded, too_late
from regard.serving.process import WorkerError, WorkError
from regard.serving.work import About, Job, Options

LONGEST_PAUSE = 30.0
"""Seconds between two attempts to start a worker that does not start."""


class AnyWorker(Protocol):
    """What does the work of a batch: `process.Worker`, or a stand-in."""

    about: About

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        """A result for every item."""

    def kill(self) -> None:
        """Ends it at once."""

    async def stop(self) -> None:
        """Lets it end when it is idle."""


@dataclass(eq=False)
class Entry:
    """A job that waits, until when it may, and where its result goes."""

    job: Job
    deadline: float
    answer: asyncio.Future[Any]
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Jobs in, results out, by way of a worker that takes one batch at a time.

    A batch takes the oldest job and what keeps it company, up to so many tokens; a model that is free waits a few
    milliseconds for it. A batch that fails is done again one by one, so that only what is at fault fails; a worker
    that dies is started again. Jobs whose client has left, or whose deadline has passed, are dropped.
    """

    def __init__(
        self, start: Callable[[], Awaitable[AnyWorker]], limits: Limits, metrics: ModelMetrics, worker: AnyWorker
    ) -> None:
        self._start, self._limits, self._metrics = start, limits, metrics
        self.worker = worker
        self.well = True
        self._queue: deque[Entry] = deque()
        self._arrival = asyncio.Event()
        self._turn = asyncio.Lock()
        self._speed = 0.0  # tokens a second, lately
        metrics.watch_queue(self._queue.__len__)
        self._task = asyncio.create_task(self._loop())

    @property
    def about(self) -> About:
        return self.worker.about

    async def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """The results of all jobs, in order.

        Raises:
            Problem: the queue is full, the deadline has passed, or a job cannot be done.
        """
        return [result async for result in self.stream(jobs)]

    async def stream(self, jobs: Sequence[Job]) -> AsyncIterator[Any]:
        """The results of all jobs, in order, each as soon as it is there; whoever stops listening drops the rest.

        Raises:
            Problem: the queue is full, the deadline has passed, or a job cannot be done.
        """
        entries = self._enqueue(jobs)
        try:
            for entry in entries:
                try:
                    async with asyncio.timeout_at(_loop_time(entry.deadline)):
                        result = await entry.answer
                except TimeoutError:
                    raise too_late(self._limits.deadline) from None
                yield result
        finally:
            for entry in entries:
                if not entry.answer.cancel() and not entry.answer.cancelled():
                    entry.answer.exception()  # looked at, or asyncio would complain that nobody has

    def _enqueue(self, jobs: Sequence[Job]) -> list[Entry]:
        waiting = len(self._queue)
        if waiting and waiting + len(jobs) > self._limits.queue:
            tokens = sum(entry.job.size for entry in self._queue)
            seconds = tokens / self._speed if self._speed else 1.0
            raise overloaded(f"{waiting} sentences are waiting already; try again later", min(seconds, 60))
        deadline = time.monotonic() + self._limits.deadline
        loop = asyncio.get_running_loop()
        entries = [Entry(job, deadline, loop.create_future()) for job in jobs]
        self._queue.extend(entries)
        self._arrival.set()
        return entries

    async def replace(self, worker: AnyWorker) -> None:
        """Another worker from the next batch on; the one before ends with the batch that it has."""
        async with self._turn:
            before, self.worker = self.worker, worker
        await before.stop()

    async def stop(self) -> None:
        """Ends the worker; jobs that still wait are dropped."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.worker.stop()

    async def _loop(self) -> None:
        while True:
            await self._gather()
            async with self._turn:
                batch = self._pick()
                try:
                    if batch:
                        await self._work(batch)
                except Exception:  # a mistake of ours must cost these clients an answer, not all clients all answers
                    note("batch lost", logging.ERROR, exc_info=True, model=self.about.name)
                    for entry in batch:
                        _fail(entry, broken())

    async def _gather(self) -> None:
        """Returns when there is a batch to do: enough for a whole one, or the oldest has waited long enough."""
        while not self._queue:
            self._arrival.clear()
            await self._arrival.wait()
        until = self._queue[0].arrived + self._limits.wait
        while self._is_small() and (pause := until - time.monotonic()) > 0:
            self._arrival.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._arrival.wait()
            except TimeoutError:
                return

    def _is_small(self) -> bool:
        if len(self._queue) >= self._limits.batch_items:
            return False
        return sum(entry.job.size for entry in self._queue) < self._limits.batch_tokens

    def _pick(self) -> list[Entry]:
        """Takes the next batch from the queue: the oldest and its company, in order; the dropped go too."""
        limits, now = self._limits, time.monotonic()
        batch: list[Entry] = []
        kept: list[Entry] = []
        tokens = 0
        while self._queue and len(batch) < limits.batch_items and tokens < limits.batch_tokens:
            entry = self._queue.popleft()
            if entry.answer.done():
                self._metrics.dropped.inc()
            elif entry.deadline <= now:
                entry.answer.set_exception(too_late(limits.deadline))
            elif batch and (entry.job.company != batch[0].job.company or tokens + entry.job.size > limits.batch_tokens):
                kept.append(entry)
            else:
                batch.append(entry)
                tokens += entry.job.size
        self._queue.extendleft(reversed(kept))
        return batch

    async def _work(self, batch: Sequence[Entry]) -> None:
        """Does a batch, if need be one by one."""
        first = batch[0].job
        began = time.monotonic()
        problem: Problem
        try:
            async with asyncio.timeout(2 * self._limits.deadline):
                results = await self.worker.run(first.operation, first.options, [entry.job.item for entry in batch])
        except UserError as error:
            problem = bad(str(error))
        except WorkError as error:
            note("work failed", model=self.about.name, sentences=len(batch), error=str(error))
            problem = broken()
        except (WorkerError, TimeoutError) as error:
            await self._revive(error)
            problem = broken()
        else:
            self._finish(batch, results, time.monotonic() - began)
            return
        if len(batch) == 1:
            _fail(batch[0], problem)
            return
        for entry in batch:
            if not entry.answer.done():
                await self._work([entry])

    def _finish(self, batch: Sequence[Entry], results: Sequence[Any], seconds: float) -> None:
        tokens = sum(entry.job.size for entry in batch)
        speed = tokens / max(seconds, 1e-6)
        self._speed = speed if not self._speed else 0.8 * self._speed + 0.2 * speed
        self._metrics.batch(len(batch), tokens, seconds)
        for entry, result in zip(batch, results, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(result)

    async def _revive(self, error: Exception) -> None:
        """Starts the worker again, however often that takes."""
        self.well = False
        self.worker.kill()
        reason = str(error) or "it took too long, and was ended"
        pause = 0.5
        while True:
            note("worker died", model=self.about.name, error=reason)
            self._metrics.restarts.inc()
            try:
                self.worker = await self._start()
            except (UserError, WorkerError) as problem:
                reason = str(problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                break
        self.well = True


def _fail(entry: Entry, problem: Problem) -> None:
    if not entry.answer.done():
        entry.answer.set_exception(problem)


def _loop_time(monotonic: float) -> float:
    return asyncio.get_running_loop().time() + monotonic - time.monotonic()
