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
from regard.serving.fair_queue import FairQueue, QueuedJob, QueuedRequest
from regard.serving.messages import BatchFailedError, Job, ModelInfo
from regard.serving.telemetry import Metrics, log_event
from regard.serving.worker import WorkerDiedError, WorkerProcess

MAX_WAIT_FACTOR = 5
"""A batch waits for further jobs at most this many times `Limits.wait`."""
MAX_RESTART_DELAY = 30.0
"""Maximum delay in seconds between attempts to restart a worker."""
LIVENESS_SECONDS = 0.5
"""Interval in which an idle worker is checked."""


@dataclass(eq=False)
class WorkerSlot:
    """A worker and its state; the lock is held while the worker processes a batch."""

    worker: WorkerProcess
    runs_long_jobs: bool = False
    idle_since: float = 0.0
    last_duration: float | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Batcher:
    """Queues jobs and runs them in batches on one or more workers.

    A batch contains the next job of the fair queue and the following ones with the same `batch_key`, up to the limits;
    idle workers share the queue evenly. An idle worker waits a few milliseconds for further jobs. If there are several
    workers, one of them is always available for short jobs. The jobs of a failed batch are retried one by one, so that
    only the faulty job fails. A worker that dies, even an idle one, is restarted. Jobs of disconnected clients and jobs
    whose deadline has passed are dropped.
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
        self._queue = FairQueue()
        self._retries: deque[QueuedJob] = deque()
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
        """Whether all workers are running."""
        return all(slot.worker.alive for slot in self._slots)

    async def submit(self, jobs: Sequence[Job], client: str = "", seconds: float | None = None) -> list[Any]:
        """Return the results of all jobs, in order; see `stream`."""
        return [result async for result in self.stream(jobs, client, seconds)]

    async def stream(self, jobs: Sequence[Job], client: str = "", seconds: float | None = None) -> AsyncIterator[Any]:
        """Yield the results of all jobs, in order, as they become available. Closing the iterator drops the rest.

        Args:
            client: name of the client; clients take turns.
            seconds: maximum time until the last result; by default the deadline of the limits.

        Raises:
            ApiError: The queue is full, the deadline has passed, or a job failed.
        """
        seconds = self._limits.deadline if seconds is None else seconds
        deadline = time.monotonic() + seconds
        request = self._enqueue(jobs, client)
        try:
            for queued in request.jobs:
                try:
                    async with asyncio.timeout(deadline - time.monotonic()):
                        result = await queued.result
                except TimeoutError:
                    raise deadline_exceeded(seconds) from None
                yield result
        finally:
            num_removed = self._queue.remove(request)
            self._metrics.dropped.labels(self.info.name).inc(num_removed)
            for queued in request.jobs:
                _discard(queued.result)

    def _enqueue(self, jobs: Sequence[Job], client: str) -> QueuedRequest:
        self._make_room(len(jobs), client)
        request = self._queue.add(client, jobs)
        self._last_arrival = time.monotonic()
        self._arrival.set()
        return request

    def _make_room(self, count: int, client: str) -> None:
        """If the queue is full, reject the largest request of the client that uses most of it, or the new request."""
        queue = self._queue
        while queue and len(queue) + count > self._limits.queue:
            seconds = queue.tokens / self._tokens_per_second if self._tokens_per_second else 1.0
            error = overloaded(f"{len(queue)} sentences are queued already; try again later", min(seconds, 60))
            largest = queue.largest()
            own, others = queue.waiting_of(client) + count, queue.waiting_of(largest.client)
            if client == largest.client:
                own, others = count, largest.waiting
            if own >= others:
                raise error
            queue.remove(largest)
            for queued in largest.jobs:
                _fail(queued, error)

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
        """Run batches in a worker, one after another, and restart the worker when it has died."""
        while True:
            await self._wait_for_batch(slot)
            if not slot.worker.alive:
                await self._restart_worker(slot)
            async with slot.lock:
                batch = self._take_batch(slot)
                try:
                    if batch:
                        await self._run_batch(slot, batch)
                except Exception:  # an error of the batcher itself fails this batch, but does not stop the loop
                    log_event("batcher error", logging.ERROR, exc_info=True, model=self.info.name)
                    for queued in batch:
                        _fail(queued, internal_error())
            slot.idle_since, slot.runs_long_jobs = time.monotonic(), False

    async def _wait_for_batch(self, slot: WorkerSlot) -> None:
        """Wait until a full batch is queued, no further job arrives for a while, or the worker is dead."""
        while not self._retries and not self._count_available(slot) and slot.worker.alive:
            await self._wait_for_arrival(LIVENESS_SECONDS)
        limits, wait = self._limits, self._limits.wait
        if slot.last_duration is not None:
            wait = min(wait, slot.last_duration / 10)
        while 0 < len(self._queue) < limits.batch_items and self._queue.tokens < limits.batch_tokens:
            latest = max(self._queue.oldest_arrival, slot.idle_since) + MAX_WAIT_FACTOR * wait
            until = min(max(self._last_arrival, slot.idle_since) + wait, latest)
            if (remaining := until - time.monotonic()) <= 0 or self._retries:
                return
            await self._wait_for_arrival(remaining)

    async def _wait_for_arrival(self, seconds: float) -> None:
        self._arrival.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._arrival.wait()

    def _may_run_long_jobs(self, slot: WorkerSlot) -> bool:
        """Whether another worker remains for short jobs, or there is no other worker."""
        others = [other for other in self._slots if other is not slot and other.worker.alive]
        return not others or not all(other.runs_long_jobs for other in others)

    def _count_available(self, slot: WorkerSlot) -> int:
        """Return the number of waiting jobs that a worker may run."""
        return len(self._queue) - (0 if self._may_run_long_jobs(slot) else self._queue.long_jobs)

    def _take_batch(self, slot: WorkerSlot) -> list[QueuedJob]:
        """Remove the next batch from the queue: a job to retry, or jobs of any clients."""
        while self._retries:
            queued = self._retries.popleft()
            if not queued.result.done():
                return [queued]
        idle_workers = 1 + sum(other.worker.alive and not other.lock.locked() for other in self._slots)
        max_items = min(self._limits.batch_items, -(-len(self._queue) // idle_workers))
        batch = self._queue.take(max_items, self._limits.batch_tokens, self._may_run_long_jobs(slot))
        slot.runs_long_jobs = any(queued.job.is_long for queued in batch)
        return batch

    async def _run_batch(self, slot: WorkerSlot, batch: Sequence[QueuedJob]) -> None:
        """Run a batch. If it fails, its jobs are retried one by one; a job is also retried if its worker died once."""
        first = batch[0].job
        started = time.monotonic()
        error = internal_error()
        retried = list(batch) if len(batch) > 1 else []
        try:
            async with asyncio.timeout(2 * self._limits.deadline):
                results = await slot.worker.run(first.operation, first.options, [queued.job.item for queued in batch])
        except UserError as user_error:
            error = bad_request(str(user_error), user_error.kind)
        except BatchFailedError as failure:
            log_event("batch failed", model=self.info.name, sentences=len(batch), error=str(failure))
        except (WorkerDiedError, TimeoutError) as death:
            slot.worker.kill()
            reason = str(death) or "the batch took too long; the worker was killed"
            log_event("worker died", model=self.info.name, error=reason)
            for queued in batch:
                queued.deaths += 1
            retried = [queued for queued in batch if queued.deaths == 1]
        else:
            slot.last_duration = time.monotonic() - started
            self._set_results(batch, results, slot.last_duration)
            return
        self._retries.extend(retried)
        self._arrival.set()
        for queued in batch:
            if queued not in retried:
                _fail(queued, error)

    def _set_results(self, batch: Sequence[QueuedJob], results: Sequence[Any], seconds: float) -> None:
        tokens = sum(queued.job.size for queued in batch)
        speed = tokens / max(seconds, 1e-6)
        self._tokens_per_second = 0.8 * self._tokens_per_second + 0.2 * speed if self._tokens_per_second else speed
        self._metrics.record_batch(self.info.name, len(batch), tokens, seconds)
        for queued, result in zip(batch, results, strict=True):
            if not queued.result.done():
                queued.result.set_result(result)

    async def _restart_worker(self, slot: WorkerSlot) -> None:
        """Start another worker in the place of a dead one, with increasing delays until it starts."""
        dead, delay = slot.worker, 0.5
        dead.kill()
        while slot.worker is dead:  # a reload may replace it, too
            self._metrics.restarts.labels(self.info.name).inc()
            try:
                worker = await self._start_worker()
            except Exception as error:  # such as a lack of memory or of file descriptors, which may be temporary
                log_event("worker not restarted", model=self.info.name, error=str(error), retry_seconds=delay)
                await asyncio.sleep(delay)
                delay = min(2 * delay, MAX_RESTART_DELAY)
                continue
            if slot.worker is dead:
                slot.worker = worker
                log_event("worker restarted", model=self.info.name)
                return
            await worker.stop()


def _discard(result: asyncio.Future[Any]) -> None:
    """Cancel a pending result, or mark the exception of a failed one as retrieved, so that asyncio does not log it."""
    if not result.cancel() and not result.cancelled():
        result.exception()


def _fail(queued: QueuedJob, error: ApiError) -> None:
    if not queued.result.done():
        queued.result.set_exception(error)
