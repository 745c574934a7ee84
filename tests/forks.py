"""Processes forked from one that has imported torch and regard already: a tenth of a second each in place of three.

They are processes of their own all the same, with an id, signals, files and an exit code.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.forks_imports"])


def be_regard(words: list[str], folder: Path, environment: Mapping[str, str], said: list[Connection]) -> None:
    """What a forked process does: `regard WORDS...` within a folder, with pipes for standard output and error."""
    from regard.cli import main

    for number, pipe in enumerate(said, 1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, encoding="utf-8") for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever started the tests may have ignored
    os.chdir(folder)
    os.environ.update(environment)
    sys.argv = ["regard", *words]
    code = None
    try:
        main()
    except SystemExit as stopped:
        code = stopped.code
    sys.exit(code)  # anew, since what the frames of the first one own must be gone, as it is when a program ends


class Forked:
    """`regard ...` in a forked process, with those members of `subprocess.Popen` that tests ask for."""

    def __init__(self, words: list[str], folder: Path, environment: Mapping[str, str] | None = None) -> None:
        pipes = [FORKS.Pipe(duplex=False) for _ in range(2)]
        self._process = FORKS.Process(
            target=be_regard, args=(words, folder, environment or {}, [mouth for _, mouth in pipes]), daemon=False
        )
        self._process.start()
        for _, mouth in pipes:
            mouth.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(ear.fileno()), encoding="utf-8") for ear, _ in pipes)
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
        """Leaves nothing behind."""
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
        """What it says until its end."""
        said = ["", ""]

        def listen(number: int) -> None:
            said[number] = (self.stdout, self.stderr)[number].read()

        listeners = [threading.Thread(target=listen, args=(number,), daemon=True) for number in range(2)]
        for listener in listeners:
            listener.start()
        self.wait(timeout)
        for listener in listeners:
            listener.join(timeout)
        return said[0], said[1]
