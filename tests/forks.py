"""Processes forked from a server that has already imported torch and regard: 0.1 s each instead of 3 s.

Like other child processes, they have a process id, signals, pipes and an exit code.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.forks_imports"])


def run_regard(
    words: list[str],
    folder: Path,
    environment: Mapping[str, str],
    pipes: list[Connection],
    prepare: Callable[[], object] | None,
) -> None:
    """Run `regard WORDS...` in a folder, with pipes as standard output and error. Target of a forked process."""
    from regard.cli import main

    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = ["regard", *words]
    if prepare is not None:
        prepare()
    code = None
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code
    sys.exit(code)  # a new exception without the frames of the first one, whose objects must be released first


class Forked:
    """`regard ...` in a forked process, with a part of the interface of `subprocess.Popen`.

    Args:
        words: Arguments of the command.
        folder: Working directory.
        environment: Further environment variables.
        prepare: Called in the process before the command, for example to end it at a certain point.
    """

    def __init__(
        self,
        words: list[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        pipes = [FORKS.Pipe(duplex=False) for _ in range(2)]
        writers = [writer for _, writer in pipes]
        self._process = FORKS.Process(
            target=run_regard, args=(words, folder, environment or {}, writers, prepare), daemon=False
        )
        self._process.start()
        for writer in writers:
            writer.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(reader.fileno()), encoding="utf-8") for reader, _ in pipes)
        self.pid: int = self._process.pid  # type: ignore[assignment]

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the process if it is still running, and close its pipes."""
        if self.poll() is None:
            self.kill()
        self._process.join()
        for stream in (self.stdout, self.stderr):
            stream.close()

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("regard", timeout)
        return self._process.exitcode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for the end of the process, and return its standard output and error."""
        texts = ["", ""]

        def read(number: int) -> None:
            texts[number] = (self.stdout, self.stderr)[number].read()

        readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts[0], texts[1]
