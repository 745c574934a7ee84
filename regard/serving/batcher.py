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
from regard.serving.config import Limits
from regard.serving.errors import Problem, bad, broken, overloaded, too_late
from regard.serving.logs import note
from regard.serving.messages import Job, ModelInfo, Options
from regard.serving.metrics import ModelMetrics
from regard.serving.worker_process import WorkerError, WorkError

PATIENCE = 5
"""How many times the usual wait a batch waits at the most while company keeps coming."""
LONGEST_PAUSE = 30.0
"""Seconds between two attempts to start a worker that does not start."""


class AnyWorker(Protocol):
    """What does the work of a batch: `process.Worker`, or a stand-in."""

    about: ModelInfo

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


@dataclass(eq=False)
class Lane:
    """A worker and what it is at; `turn` is held as long as it has a batch."""

    worker: AnyWorker
    well: bool = True
    free_since: float = 0.0
    last: float | None = None  # seconds that its last batch took
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Batcher:
    """Jobs in, results out, by way of workers that take one batch at a time each.

    A batch takes the oldest job and what keeps it company, up to so many tokens; workers that are free share what
    waits. A worker that is free waits a few milliseconds for company, and a little longer while it keeps coming. A
    batch that fails is done again one by one, so that only what is at fault fails; a worker that dies is started
    again. Jobs whose client has left, or whose deadline has passed, are dropped.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[AnyWorker]],
        limits: Limits,
        metrics: ModelMetrics,
        workers: Sequence[AnyWorker],
    ) -> None:
        self._start, self._limits, self._metrics = start, limits, metrics
        self._lanes = [Lane(worker) for worker in workers]
        self._queue: deque[Entry] = deque()
        self._tokens = 0  # of all that is in the queue
        self._arrival = asyncio.Event()
        self._last_arrival = 0.0
        self._speed = 0.0  # tokens a second, lately
        metrics.watch_queue(self._queue.__len__)
        self._tasks = [asyncio.create_task(self._loop(lane)) for lane in self._lanes]

    @property
    def about(self) -> ModelInfo:
        return self._lanes[0].worker.about

    @property
    def well(self) -> bool:
        """Whether all workers are at work, and none is being started again."""
        return all(lane.well for lane in self._lanes)

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
            seconds = self._tokens / self._speed if self._speed else 1.0
            raise overloaded(f"{waiting} sentences are waiting already; try again later", min(seconds, 60))
        deadline = time.monotonic() + self._limits.deadline
        loop = asyncio.get_running_loop()
        entries = [Entry(job, deadline, loop.create_future()) for job in jobs]
        self._queue.extend(entries)
        self._tokens += sum(job.size for job in jobs)
        self._last_arrival = time.monotonic()
        self._arrival.set()
        return entries

    async def replace(self, workers: Sequence[AnyWorker]) -> None:
        """Other workers, each from its next batch on; those before end with the batch that they have."""
        for lane, worker in zip(self._lanes, workers, strict=True):
            async with lane.turn:
                before, lane.worker = lane.worker, worker
            await before.stop()

    async def stop(self) -> None:
        """Ends the workers; jobs that still wait are dropped."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(lane.worker.stop() for lane in self._lanes))

    async def _loop(self, lane: Lane) -> None:
        while True:
            await self._gather(lane)
            async with lane.turn:
                batch = self._pick()
                try:
                    if batch:
                        await self._work(lane, batch)
                except Exception:  # a mistake of ours must cost these clients an answer, not all clients all answers
                    note("batch lost", logging.ERROR, exc_info=True, model=self.about.name)
                    for entry in batch:
                        _fail(entry, broken())
            lane.free_since = time.monotonic()

    async def _gather(self, lane: Lane) -> None:
        """Returns when there is a batch to do: enough for a whole one, or nobody has come for a while."""
        while not self._queue:
            self._arrival.clear()
            await self._arrival.wait()
        pause = self._limits.wait if lane.last is None else min(self._limits.wait, lane.last / 10)
        while self._queue and self._is_small():
            latest = max(self._queue[0].arrived, lane.free_since) + PATIENCE * pause
            until = min(max(self._last_arrival, lane.free_since) + pause, latest)
            if (left := until - time.monotonic()) <= 0:
                return
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._arrival.wait()

    def _is_small(self) -> bool:
        return len(self._queue) < self._limits.batch_items and self._tokens < self._limits.batch_tokens

    def _pick(self) -> list[Entry]:
        """Takes the next batch from the queue: the oldest and its company, in order; the dropped go too."""
        limits, now = self._limits, time.monotonic()
        free = 1 + sum(lane.well and not lane.turn.locked() for lane in self._lanes)
        most = min(limits.batch_items, -(-len(self._queue) // free))
        batch: list[Entry] = []
        kept: list[Entry] = []
        tokens = 0
        while self._queue and len(batch) < most and tokens < limits.batch_tokens:
            entry = self._queue.popleft()
            self._tokens -= entry.job.size
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
        self._tokens += sum(entry.job.size for entry in kept)
        return batch

    async def _work(self, lane: Lane, batch: Sequence[Entry], again: bool = False) -> None:
        """Does a batch, if need be one by one; what was alone when its worker died is tried once more."""
        first = batch[0].job
        began = time.monotonic()
        died = False
        problem: Problem
        try:
            async with asyncio.timeout(2 * self._limits.deadline):
                results = await lane.worker.run(first.operation, first.options, [entry.job.item for entry in batch])
        except UserError as error:
            problem = bad(str(error), error.kind)
        except WorkError as error:
            note("work failed", model=self.about.name, sentences=len(batch), error=str(error))
            problem = broken()
        except (WorkerError, TimeoutError) as error:
            await self._revive(lane, error)
            problem, died = broken(), True
        else:
            lane.last = time.monotonic() - began
            self._finish(batch, results, lane.last)
            return
        if len(batch) == 1 and (again or not died):
            _fail(batch[0], problem)
            return
        for entry in batch:
            if not entry.answer.done():
                await self._work(lane, [entry], again=died)

    def _finish(self, batch: Sequence[Entry], results: Sequence[Any], seconds: float) -> None:
        tokens = sum(entry.job.size for entry in batch)
        speed = tokens / max(seconds, 1e-6)
        self._speed = speed if not self._speed else 0.8 * self._speed + 0.2 * speed
        self._metrics.batch(len(batch), tokens, seconds)
        for entry, result in zip(batch, results, strict=True):
            if not entry.answer.done():
                entry.answer.set_result(result)

    async def _revive(self, lane: Lane, error: Exception) -> None:
        """Starts a worker again, however often that takes."""
        lane.well = False
        lane.worker.kill()
        reason = str(error) or "it took too long, and was ended"
        pause = 0.5
        while True:
            note("worker died", model=self.about.name, error=reason)
            self._metrics.restarts.inc()
            try:
                lane.worker = await self._start()
            except (UserError, WorkerError) as problem:
                reason = str(problem)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                break
        lane.well = True


def _fail(entry: Entry, problem: Problem) -> None:
    if not entry.answer.done():
        entry.answer.set_exception(problem)


def _loop_time(monotonic: float) -> float:
    return asyncio.get_running_loop().time() + monotonic - time.monotonic()
