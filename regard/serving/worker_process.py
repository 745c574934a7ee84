"""A worker as the server sees it: a process of its own that takes one batch at a time, and may die."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Self

from regard.errors import UserError
from regard.serving.messages import Batch, BatchResult, Failed, LoadRequest, ModelInfo, Options, Rejected

PATIENCE = 10.0
"""Seconds that a worker has to end by itself."""


class WorkerError(Exception):
    """The process has ended, or had to be ended."""


class WorkError(Exception):
    """A batch went wrong within the model; the worker is well."""


class Worker:
    """A process that owns one model.

    A process and not a thread: the model's Python and the server's would wait for each other, and a model that runs
    out of memory, or into a fault of a library, would take the server with it.
    """

    about: ModelInfo

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "regard.serving.worker", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        self._connection: Connection[Any, Any] = Connection(ours.detach())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._busy = False

    @classmethod
    async def start(cls, order: LoadRequest) -> Self:
        """A worker whose model is loaded and warmed up.

        Raises:
            UserError: the model cannot be loaded.
            WorkerError: the process has ended.
        """
        worker = cls()
        try:
            answer = await worker._ask(order)
        except BaseException:
            worker.kill()
            raise
        if isinstance(answer, Rejected):
            await worker.stop()
            raise UserError(answer.sentence)
        worker.about = answer
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        """A result for every item.

        Raises:
            UserError: something is wrong with an item.
            WorkError: something went wrong within the model.
            WorkerError: the process has ended.
        """
        answer = await self._ask(Batch(operation, options, items))
        if isinstance(answer, Rejected):
            error = UserError(answer.sentence)
            error.kind = answer.kind
            raise error
        if isinstance(answer, Failed):
            raise WorkError(answer.sentence)
        assert isinstance(answer, BatchResult)
        return answer.results

    async def _ask(self, question: LoadRequest | Batch) -> Any:
        self._busy = True
        answer = await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, question)
        self._busy = False  # not where the wait was cut short: the process is still at it
        return answer

    def _exchange(self, question: LoadRequest | Batch) -> Any:
        try:
            self._connection.send(question)
            return self._connection.recv()
        except (EOFError, OSError):
            self._connection.close()
            self._process.kill()
            code = self._process.wait()
            raise WorkerError(f"worker {self._process.pid} ended with code {code}") from None

    def kill(self) -> None:
        """Ends the process at once; whoever waits for its answer gets `WorkerError`."""
        self._process.kill()
        self._thread.shutdown(wait=False)

    async def stop(self) -> None:
        """Lets an idle process end, which it does when the connection closes; a busy one is ended."""
        if self._busy:
            self._process.kill()
        else:
            self._connection.close()
        await asyncio.get_running_loop().run_in_executor(None, self._wait)
        self._thread.shutdown(wait=False)

    def _wait(self) -> None:
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
