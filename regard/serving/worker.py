"""Worker processes. Each owns one model and processes one batch at a time.

`WorkerProcess` is the server's handle of a worker. `main` runs in the worker process itself:

    python -m regard.serving.worker SOCKET_DESCRIPTOR
"""

import asyncio
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Self

from regard.errors import UserError
from regard.serving.messages import Batch, BatchFailedError, LoadRequest, ModelInfo, Options

STOP_SECONDS = 10.0
"""Time that a worker has to exit before it is killed."""


class WorkerDiedError(Exception):
    """The worker process exited or was killed."""


class WorkerProcess:
    """A process that owns one model.

    Workers are processes, not threads, so that models do not compete with the server for the interpreter lock, and
    so that a model that runs out of memory or crashes does not stop the server.
    """

    info: ModelInfo

    def __init__(self) -> None:
        server_end, worker_end = socket.socketpair()
        command = [sys.executable, "-m", "regard.serving.worker", str(worker_end.fileno())]
        with server_end, worker_end:
            self._process = subprocess.Popen(command, pass_fds=(worker_end.fileno(),), stdin=subprocess.DEVNULL)
            self._connection: Connection[Any, Any] = Connection(server_end.detach())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._busy = self._killed = False

    @classmethod
    async def start(cls, request: LoadRequest) -> Self:
        """Start a worker, load its model and warm it up.

        Raises:
            UserError: The model cannot be loaded.
            WorkerDiedError: The process cannot be started, or exited.
        """
        try:
            worker = cls()
        except OSError as error:  # such as EMFILE or ENOMEM
            raise WorkerDiedError(f"a worker cannot be started ({error.strerror})") from None
        try:
            worker.info = await worker._send(request)
        except BaseException:
            worker.kill()
            raise
        return worker

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        """Run an operation on a batch and return one result per item.

        Raises:
            UserError: An item is invalid.
            BatchFailedError: The model raised an unexpected exception.
            WorkerDiedError: The process exited.
        """
        results: list[Any] = await self._send(Batch(operation, options, items))
        return results

    async def _send(self, message: LoadRequest | Batch) -> Any:
        """Return the answer of the process, or raise it if it is an exception."""
        self._busy = True
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, message)
        self._busy = False  # not in `finally`: after a cancellation, the process is still computing
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _exchange(self, message: LoadRequest | Batch) -> Any:
        try:
            self._connection.send(message)
            return self._connection.recv()
        except (EOFError, OSError):
            self._connection.close()
            self._process.kill()
            code = self._process.wait()
            raise WorkerDiedError(f"worker {self._process.pid} exited with code {code}") from None

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return not self._killed and self._process.poll() is None

    def kill(self) -> None:
        """Kill the process. A running batch raises `WorkerDiedError`."""
        if not self._killed:
            self._killed = True
            self._process.kill()
            try:
                self._thread.submit(self._clean_up)  # after the running batch
            except RuntimeError:  # the thread could not be started
                self._clean_up()
            self._thread.shutdown(wait=False)

    def _clean_up(self) -> None:
        self._connection.close()
        self._process.wait()

    async def stop(self) -> None:
        """Let an idle process exit by closing its connection; kill a busy one."""
        if self._busy:
            self._process.kill()
        else:
            self._connection.close()
        await asyncio.get_running_loop().run_in_executor(None, self._wait)
        self._thread.shutdown(wait=False)

    def _wait(self) -> None:
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Run a worker process on the socket whose descriptor is the first argument."""
    # A terminal or systemd sends these signals to all processes. The server stops its workers after the last batch.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        run_batches(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the server closed the connection


def run_batches(connection: "Connection[Any, Any]") -> None:
    """Load the requested model, then process batches until the server closes the connection."""
    from regard.serving.model_runner import load_runner  # imports torch

    request: LoadRequest = connection.recv()
    try:
        runner = load_runner(request)
        runner.warm_up()
    except UserError as error:
        connection.send(plain_error(error))
        return
    connection.send(runner.info)
    while True:
        batch: Batch = connection.recv()
        reply: list[Any] | Exception
        try:
            reply = runner.run(batch.operation, batch.items, dict(batch.options))
        except UserError as error:
            reply = plain_error(error)
        except Exception as error:
            reply = BatchFailedError(describe_error(error))
        connection.send(reply)


def plain_error(error: UserError) -> UserError:
    """Return an error of the base class, because the server does not import the modules of the derived ones."""
    plain = UserError(str(error))
    plain.kind = error.kind
    return plain


def describe_error(error: BaseException) -> str:
    """Return the type and location of an exception, without its message, which may quote a user's text."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name}, {frame.filename}:{frame.lineno}"


if __name__ == "__main__":
    main()
