"""Dynamic batching: one queue per model, from which its workers take batches of jobs of many requests."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.errors import UserError
from regard.serving.config import Limits
from regard.serving.errors import ApiError, bad_request, deadline_exceeded, internal_error, overloaded
from regard.serving.messages import Job, ModelInfo
from regard.serving.telemetry import Metrics, log_event
from regard.serving.worker import BatchFailedError, WorkerDiedError, WorkerProcess

MAX_WAIT_FACTOR = 5
"""A batch waits for further jobs at most this many times `Limits.wait`."""
MAX_RESTART_DELAY = 30.0
"""Maximum delay in seconds between attempts to restart a worker."""


@dataclass(eq=False)
class QueuedJob:
    """A job, its deadline, and the future of its result."""

    job: Job
    deadline: float
    result: asyncio.Future[Any]
    arrived: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class WorkerSlot:
    """A worker and its state; the lock is held while the worker processes a batch."""

    worker: WorkerProcess
    healthy: bool = True
    idle_since: float = 0.0
    last_duration: float | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Batcher:
    """Queues jobs and runs them in batches on one or more workers.

    A batch contains the oldest job and later jobs with the same `batch_key`, up to the limits; idle workers share the
    queue evenly. An idle worker waits a few milliseconds for further jobs. The jobs of a failed batch are retried
    one by one, so that only the faulty job fails. A worker that dies is restarted. Jobs of disconnected clients and
    jobs whose deadline has passed are dropped.
    """

    def __init__(
        self,
        start_worker: Callable[[], Awaitable[WorkerProcess]],
        limits: Limits,
        metrics: Metrics,
        workers: Sequence[WorkerProcess],
    ) -> None:
        self._start_worker, self._limits, self._metrics = start_worker, limits, metrics
        self._slots = [WorkerSlot(worker) for worker in workers]
        self._queue: deque[QueuedJob] = deque()
        self._queued_tokens = 0
        self._arrival = asyncio.Event()
        self._last_arrival = 0.0
        self._tokens_per_second = 0.0
        metrics.queue.labels(self.info.name).set_function(self._queue.__len__)
        self._tasks = [asyncio.create_task(self._run_slot(slot)) for slot in self._slots]

    @property
    def info(self) -> ModelInfo:
        return self._slots[0].worker.info

    @property
    def healthy(self) -> bool:
        """Whether no worker is being restarted."""
        return all(slot.healthy for slot in self._slots)

    async def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """Return the results of all jobs, in order; see `stream`."""
        return [result async for result in self.stream(jobs)]

    async def stream(self, jobs: Sequence[Job]) -> AsyncIterator[Any]:
        """Yield the results of all jobs, in order, as they become available. Closing the iterator drops the rest.

        Raises:
            ApiError: The queue is full, the deadline has passed, or a job failed.
        """
        queued_jobs = self._enqueue(jobs)
        try:
            for queued in queued_jobs:
                try:
                    async with asyncio.timeout(queued.deadline - time.monotonic()):
                        result = await queued.result
                except TimeoutError:
                    raise deadline_exceeded(self._limits.deadline) from None
                yield result
        finally:
            for queued in queued_jobs:
                if not queued.result.cancel() and not queued.result.cancelled():
                    queued.result.exception()  # otherwise asyncio logs that the exception was never retrieved

    def _enqueue(self, jobs: Sequence[Job]) -> list[QueuedJob]:
        waiting = len(self._queue)
        if waiting and waiting + len(jobs) > self._limits.queue:
            seconds = self._queued_tokens / self._tokens_per_second if self._tokens_per_second else 1.0
            raise overloaded(f"{waiting} sentences are queued already; try again later", min(seconds, 60))
        deadline = time.monotonic() + self._limits.deadline
        loop = asyncio.get_running_loop()
        queued_jobs = [QueuedJob(job, deadline, loop.create_future()) for job in jobs]
        self._queue.extend(queued_jobs)
        self._queued_tokens += sum(job.size for job in jobs)
        self._last_arrival = time.monotonic()
        self._arrival.set()
        return queued_jobs

    async def replace_workers(self, workers: Sequence[WorkerProcess]) -> None:
        """Replace each worker after its current batch, and stop the old one."""
        for slot, worker in zip(self._slots, workers, strict=True):
            async with slot.lock:
                old, slot.worker = slot.worker, worker
            await old.stop()

    async def stop(self) -> None:
        """Stop all workers and drop queued jobs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(slot.worker.stop() for slot in self._slots))

    async def _run_slot(self, slot: WorkerSlot) -> None:
        while True:
            await self._wait_for_batch(slot)
            async with slot.lock:
                batch = self._take_batch()
                try:
                    if batch:
                        await self._run_batch(slot, batch)
                except Exception:  # an error of the batcher itself fails this batch, but does not stop the loop
                    log_event("batcher error", logging.ERROR, exc_info=True, model=self.info.name)
                    for queued in batch:
                        _fail(queued, internal_error())
            slot.idle_since = time.monotonic()

    async def _wait_for_batch(self, slot: WorkerSlot) -> None:
        """Wait until a full batch is queued, or until no further job arrives for a while."""
        while not self._queue:
            self._arrival.clear()
            await self._arrival.wait()
        limits, wait = self._limits, self._limits.wait
        if slot.last_duration is not None:
            wait = min(wait, slot.last_duration / 10)
        while 0 < len(self._queue) < limits.batch_items and self._queued_tokens < limits.batch_tokens:
            latest = max(self._queue[0].arrived, slot.idle_since) + MAX_WAIT_FACTOR * wait
            until = min(max(self._last_arrival, slot.idle_since) + wait, latest)
            if (remaining := until - time.monotonic()) <= 0:
                return
            self._arrival.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._arrival.wait()

    def _take_batch(self) -> list[QueuedJob]:
        """Remove the next batch, and jobs that are cancelled or too late, from the queue."""
        limits, now = self._limits, time.monotonic()
        idle_workers = 1 + sum(slot.healthy and not slot.lock.locked() for slot in self._slots)
        max_items = min(limits.batch_items, -(-len(self._queue) // idle_workers))
        batch: list[QueuedJob] = []
        skipped: list[QueuedJob] = []
        tokens = 0
        while self._queue and len(batch) < max_items and tokens < limits.batch_tokens:
            queued = self._queue.popleft()
            job = queued.job
            self._queued_tokens -= job.size
            if queued.result.done():
                self._metrics.dropped.labels(self.info.name).inc()
            elif queued.deadline <= now:
                queued.result.set_exception(deadline_exceeded(limits.deadline))
            elif batch and (job.batch_key != batch[0].job.batch_key or tokens + job.size > limits.batch_tokens):
                skipped.append(queued)
            else:
                batch.append(queued)
                tokens += job.size
        self._queue.extendleft(reversed(skipped))
        self._queued_tokens += sum(queued.job.size for queued in skipped)
        return batch

    async def _run_batch(self, slot: WorkerSlot, batch: Sequence[QueuedJob], is_retry: bool = False) -> None:
        """Run a batch; if it fails, run its jobs one by one. A job whose worker died is retried once."""
        first = batch[0].job
        started = time.monotonic()
        worker_died = False
        error: ApiError
        try:
            async with asyncio.timeout(2 * self._limits.deadline):
                results = await slot.worker.run(first.operation, first.options, [queued.job.item for queued in batch])
        except UserError as user_error:
            error = bad_request(str(user_error), user_error.kind)
        except BatchFailedError as failure:
            log_event("batch failed", model=self.info.name, sentences=len(batch), error=str(failure))
            error = internal_error()
        except (WorkerDiedError, TimeoutError) as death:
            await self._restart_worker(slot, death)
            error, worker_died = internal_error(), True
        else:
            slot.last_duration = time.monotonic() - started
            self._set_results(batch, results, slot.last_duration)
            return
        if len(batch) == 1 and (is_retry or not worker_died):
            _fail(batch[0], error)
            return
        for queued in batch:
            if not queued.result.done():
                await self._run_batch(slot, [queued], is_retry=worker_died)

    def _set_results(self, batch: Sequence[QueuedJob], results: Sequence[Any], seconds: float) -> None:
        tokens = sum(queued.job.size for queued in batch)
        speed = tokens / max(seconds, 1e-6)
        self._tokens_per_second = 0.8 * self._tokens_per_second + 0.2 * speed if self._tokens_per_second else speed
        self._metrics.record_batch(self.info.name, len(batch), tokens, seconds)
        for queued, result in zip(batch, results, strict=True):
            if not queued.result.done():
                queued.result.set_result(result)

    async def _restart_worker(self, slot: WorkerSlot, error: Exception) -> None:
        """Restart a worker, with increasing delays until it starts."""
        slot.healthy = False
        slot.worker.kill()
        reason = str(error) or "the batch took too long; the worker was killed"
        delay = 0.5
        while True:
            log_event("worker died", model=self.info.name, error=reason)
            self._metrics.restarts.labels(self.info.name).inc()
            try:
                slot.worker = await self._start_worker()
            except (UserError, WorkerDiedError) as start_error:
                reason = str(start_error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_RESTART_DELAY)
            else:
                break
        slot.healthy = True


def _fail(queued: QueuedJob, error: ApiError) -> None:
    if not queued.result.done():
        queued.result.set_exception(error)
