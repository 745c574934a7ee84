"""Where independent pieces of work run: in this process, in several processes of this machine, or on a Ray cluster.

A `Work` loads what it needs once per worker and then handles one item after another. An item must have the same effect
however often it is started, because an item whose worker was killed is started again by another worker.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any, Generic, Protocol, TypeVar

import torch

from regard.errors import UserError

Item_contra = TypeVar("Item_contra", contravariant=True)
Item = TypeVar("Item")
Result_co = TypeVar("Result_co", covariant=True)
Result = TypeVar("Result")

MAX_DEATHS = 3
"""Workers that an item may end before it is considered the cause."""


class Work(Protocol[Item_contra, Result_co]):
    """What is done with items. It is pickled to reach the workers."""

    def open(self) -> Callable[[Item_contra], Result_co]:
        """Load models and files in the worker, and return the function for one item."""


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The result of an item, which worker computed it, and in how many seconds."""

    result: Result
    worker: str
    seconds: float


def timed(function: Callable[[Item], Result], item: Item) -> Done[Result]:
    """Call the function in a worker."""
    started = time.perf_counter()
    result = function(item)
    return Done(result, f"{socket.gethostname()}:{os.getpid()}", time.perf_counter() - started)


class Executor(ABC):
    """Runs work on items."""

    @abstractmethod
    def run(self, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[Done[Result]]:
        """Yield the results as they are completed, in any order.

        Raises:
            UserError: An item is invalid, or ends its workers. Items that have been completed stay complete.
        """


class LocalExecutor(Executor):
    """Runs work on this machine.

    Args:
        workers: Number of processes; with one, items are handled in this process.
        threads: CPU threads of each worker.
        gpus: Number of GPUs, which the workers use in turn.
    """

    def __init__(self, workers: int = 1, threads: int | None = None, gpus: int = 0) -> None:
        self.workers, self.threads, self.gpus = workers, threads, gpus

    def run(self, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[Done[Result]]:
        if not items:
            return
        if self.workers > 1:
            yield from self._run_in_processes(work, items)
            return
        before = torch.get_num_threads()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            function = work.open()
            for item in items:
                yield timed(function, item)
        finally:
            torch.set_num_threads(before)

    def _run_in_processes(self, work: Work[Item, Result], items: Sequence[Item]) -> Iterator[Done[Result]]:
        """Give each worker one item at a time; replace workers that were killed."""
        waiting = list(reversed(range(len(items))))
        deaths: Counter[int] = Counter()
        pool = [_Process(work, number, self) for number in range(min(self.workers, len(items)))]
        try:
            for worker in pool:
                worker.give(items, waiting)
            while busy := [worker for worker in pool if worker.item is not None]:
                ready = set(connection.wait([worker.pipe for worker in busy]))
                for worker in [worker for worker in busy if worker.pipe in ready]:
                    try:
                        kind, value = worker.pipe.recv()
                    except (EOFError, OSError):  # the process was killed
                        assert worker.item is not None
                        deaths[worker.item] += 1
                        if deaths[worker.item] >= MAX_DEATHS:
                            raise UserError(
                                f"{items[worker.item]}: {MAX_DEATHS} workers were killed while they worked on it, "
                                f"probably for lack of memory; use fewer --workers"
                            ) from None
                        waiting.append(worker.item)
                        worker.end()
                        pool[pool.index(worker)] = worker = _Process(work, worker.number, self)
                    else:
                        if kind == "user error":
                            raise UserError(value)
                        if kind == "error":
                            raise RuntimeError(f"a worker failed:\n{value}")
                        worker.item = None
                        yield value
                    worker.give(items, waiting)
        finally:
            for worker in pool:
                worker.end()


class _Process:
    """A worker process, and the index of the item that it works on."""

    def __init__(self, work: Work[Any, Any], number: int, executor: LocalExecutor) -> None:
        self.number = number
        self.item: int | None = None
        context = get_context("spawn")
        self.pipe, other = context.Pipe()
        gpu = number % executor.gpus if executor.gpus else None
        arguments = other, work, executor.threads, gpu
        self.process = context.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        other.close()

    def give(self, items: Sequence[Any], waiting: list[int]) -> None:
        """Start the next item, if there is one."""
        if waiting:
            self.item = waiting.pop()
            with suppress(OSError):  # the process was killed; reading from the pipe reports it
                self.pipe.send(items[self.item])

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: connection.Connection, work: Work[Any, Any], threads: int | None, gpu: int | None) -> None:
    """Handle items in a worker process until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        function = None
        while True:
            item = pipe.recv()
            function = function or work.open()
            pipe.send(("done", timed(function, item)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)
    except UserError as error:
        pipe.send(("user error", str(error)))
    except Exception:
        pipe.send(("error", traceback.format_exc()))
