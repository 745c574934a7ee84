"""Batches prepared by worker processes, in the same order as without workers."""

import ctypes
import gc
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Generic, NoReturn, TypeVar

import torch

from regard.errors import UserError

P = TypeVar("P")
BatchT = TypeVar("BatchT")

PR_SET_PDEATHSIG = 1  # option of Linux's prctl
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # terminals and job schedulers send them to all processes


@contextmanager
def map_in_workers(make: Callable[[P], BatchT], plans: Iterable[P], workers: int) -> Iterator[Iterator[BatchT]]:
    """Provide an iterator over `make(plan)` for every plan, in order, computed by forked processes; 0: by none.

    The iterator raises a UserError if a process has died. The processes end with the context.
    """
    if not workers:
        yield map(make, plans)
        return
    started: list[_Worker[P, BatchT]] = []
    try:
        with _safe_to_fork():
            for number in range(1, workers + 1):
                started.append(_Worker(make, number))
        yield _receive_in_order(started, iter(plans))
    finally:
        for worker in started:
            worker.end()


def _receive_in_order(workers: "list[_Worker[P, BatchT]]", plans: Iterator[P]) -> Iterator[BatchT]:
    """Give each worker a plan, and a new one for each result."""
    busy: deque[_Worker[P, BatchT]] = deque()
    for worker, plan in zip(workers, plans, strict=False):
        worker.send(plan)
        busy.append(worker)
    while busy:
        worker = busy.popleft()
        batch = worker.receive()
        for plan in islice(plans, 1):
            worker.send(plan)
            busy.append(worker)
        yield batch


class _Worker(Generic[P, BatchT]):
    """A forked process that answers one plan at a time.

    Each process has its own pipe. It shares no lock or queue with other processes, so that it can be killed at any time
    without blocking them, and the operating system reports its death as the end of its pipe.
    """

    def __init__(self, make: Callable[[P], BatchT], number: int) -> None:
        self.number = number
        self.connection, other = Pipe()
        run_pid = os.getpid()
        try:
            self.pid = os.fork()  # workers share a memory-mapped corpus without copying it
        except OSError as error:
            raise UserError(
                f"data worker {number} cannot be started ({error.strerror}); lower training.workers"
            ) from None
        if self.pid == 0:
            _serve(make, other, run_pid)
        other.close()

    def send(self, plan: P) -> None:
        with suppress(OSError):  # `receive` reports that the process has died
            self.connection.send(plan)

    def receive(self) -> BatchT:
        try:
            # Bytes and not shared memory, which is scarce in many containers and leaks when a process is killed.
            result = pickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            raise UserError(f"data worker {self.number} (process {self.pid}) {self._describe_end()}") from None
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    def end(self) -> None:
        """Kill the process, which has nothing to save."""
        self.connection.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _describe_end(self) -> str:
        _, status = os.waitpid(self.pid, 0)
        self.pid, code = 0, os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"ended with exit code {code}"
        reason = ", perhaps because memory ran out" if code == -signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{reason}"


@contextmanager
def _safe_to_fork() -> Iterator[None]:
    """Disable garbage collection and block signals, in this process and in processes forked from it.

    A forked process must not raise this process's interruption, and must not collect its objects: a destructor may wait
    for threads that do not exist in a forked process, such as those of a process group.
    """
    collecting = gc.isenabled()
    gc.disable()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if collecting:
            gc.enable()


def _serve(make: Callable[[Any], Any], connection: Connection, run_pid: int) -> NoReturn:
    """Answer plans in a forked process until the pipe is closed; never returns."""
    code = 1
    try:
        _initialise_worker(run_pid)
        with suppress(EOFError, ConnectionError):
            while True:
                answer = pickle.dumps(_try(make, connection.recv()))
                connection.send_bytes(answer)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)  # without the exit handlers of the parent process


def _try(make: Callable[[P], BatchT], plan: P) -> BatchT | Exception:
    try:
        return make(plan)
    except Exception as error:
        error.add_note(f"in a data worker:\n{traceback.format_exc()}")
        return error


def _initialise_worker(run_pid: int) -> None:
    """Ignore signals, exit with the parent process, and exclude inherited objects from garbage collection."""
    gc.freeze()
    gc.enable()  # only for new objects; `_safe_to_fork` disabled it before the fork
    torch.set_num_threads(1)  # the other threads of the parent process do not exist in a forked process
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != run_pid:  # the parent process was killed before prctl took effect
        os._exit(1)
