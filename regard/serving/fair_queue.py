"""A queue in which clients take turns: self-clocked fair queueing (Golestani, 1994)."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.serving.messages import Job

MAX_REMOVED = 1000
"""Number of removed jobs that the heaps may contain, besides as many as there are waiting jobs."""


@dataclass(eq=False)
class QueuedJob:
    """A job, the request that it belongs to, and the future of its result.

    Attributes:
        deaths: number of workers that died while they ran this job.
    """

    job: Job
    request: "QueuedRequest"
    result: asyncio.Future[Any]
    waiting: bool = True
    deaths: int = 0


@dataclass(eq=False)
class QueuedRequest:
    """The jobs of one request; `waiting` of them are in the queue."""

    client: str
    arrived: float
    jobs: list[QueuedJob] = field(default_factory=list)
    waiting: int = 0


class FairQueue:
    """Jobs of all requests, ordered so that all clients receive the same share of the model.

    Each job has a tag, the virtual time at which it would be finished if all waiting clients, and all waiting requests
    of a client, were served simultaneously. The job with the smallest tag is the next one. Therefore short requests are
    not delayed by the length of other requests, and a client does not gain from sending many requests.
    """

    def __init__(self) -> None:
        self._heaps: dict[Hashable, list[tuple[int, int, QueuedJob]]] = {}
        self._clients: dict[str, dict[QueuedRequest, None]] = {}  # waiting requests in order of arrival
        self._virtual_time = 0
        self._order = itertools.count()
        self._length = 0
        self.tokens = 0
        self.long_jobs = 0

    def __len__(self) -> int:
        return self._length

    @property
    def oldest_arrival(self) -> float:
        """Time of the oldest waiting request; the queue must not be empty."""
        return min(next(iter(requests)).arrived for requests in self._clients.values())

    def add(self, client: str, jobs: Sequence[Job]) -> QueuedRequest:
        """Append the jobs of a request."""
        loop = asyncio.get_running_loop()
        request = QueuedRequest(client, time.monotonic())
        request.jobs = [QueuedJob(job, request, loop.create_future()) for job in jobs]
        share = 1 + len(self._clients.get(client, ()))  # the requests of a client share its turns
        tag = self._virtual_time
        for queued in request.jobs:
            tag += queued.job.size * share
            heap = self._heaps.setdefault(queued.job.batch_key, [])
            heapq.heappush(heap, (tag, next(self._order), queued))
            self._count(queued, 1)
        return request

    def take(self, max_items: int, max_tokens: int, long_jobs: bool = True) -> list[QueuedJob]:
        """Remove and return the next job, and the following ones with the same batch key up to the limits.

        Args:
            long_jobs: whether the batch may contain long jobs.
        """
        self._heaps = {key: heap for key, heap in self._heaps.items() if _prune(heap)}
        heaps = [heap for heap in self._heaps.values() if long_jobs or not heap[0][-1].job.is_long]
        heap = min(heaps, default=[])  # compares the first items, which are the next jobs
        batch: list[QueuedJob] = []
        tokens = 0
        while len(batch) < max_items and _prune(heap):
            tag, _, queued = heap[0]
            tokens += queued.job.size
            if batch and tokens > max_tokens:
                break
            self._virtual_time = max(self._virtual_time, tag)
            self._count(queued, -1)
            batch.append(queued)
        return batch

    def remove(self, request: QueuedRequest) -> int:
        """Remove the waiting jobs of a request, and return their number."""
        removed = [queued for queued in request.jobs if queued.waiting]
        for queued in removed:
            self._count(queued, -1)
        if sum(map(len, self._heaps.values())) > 2 * self._length + MAX_REMOVED:
            for heap in self._heaps.values():
                heap[:] = [item for item in heap if item[-1].waiting]
                heapq.heapify(heap)
        return len(removed)

    def waiting_of(self, client: str) -> int:
        """Return the number of waiting jobs of a client."""
        return sum(request.waiting for request in self._clients.get(client, ()))

    def largest(self) -> QueuedRequest:
        """Return the request with the most waiting jobs of the client with the most; the queue must not be empty."""
        client = max(self._clients, key=self.waiting_of)
        return max(self._clients[client], key=lambda request: request.waiting)

    def _count(self, queued: QueuedJob, change: int) -> None:
        """Count a job that is added (1) or removed (-1). Removed jobs stay in their heap until `_prune`."""
        request = queued.request
        queued.waiting = change > 0
        request.waiting += change
        self._length += change
        self.tokens += change * queued.job.size
        self.long_jobs += change * queued.job.is_long
        if request.waiting:
            self._clients.setdefault(request.client, {})[request] = None
        else:
            del self._clients[request.client][request]
            if not self._clients[request.client]:
                del self._clients[request.client]


def _prune(heap: list[tuple[int, int, QueuedJob]]) -> bool:
    """Delete removed jobs at the top of a heap, and return whether it still contains jobs."""
    while heap and not heap[0][-1].waiting:
        heapq.heappop(heap)
    return bool(heap)
