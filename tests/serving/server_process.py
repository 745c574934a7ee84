"""A `regard serve` process on a free port of the loopback interface."""

import json
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ENVIRONMENT, SHELL

TIMEOUT = 120.0


def wait_until(condition: Callable[[], object], seconds: float = TIMEOUT, what: str = "the condition") -> None:
    """Poll a condition that another process or thread fulfils."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} was not fulfilled within {seconds} seconds"
        time.sleep(0.02)


class ServerProcess:
    """A running server, its URL and its log. Skips the test if the packages of the server are missing."""

    def __init__(self, *arguments: object) -> None:
        pytest.importorskip("fastapi")
        command = [*SHELL, "serve", "--port", "0", "--workers", "1", "--threads", "1", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    @property
    def url(self) -> str:
        wait_until(lambda: self.events("listening") or self.process.poll() is not None, what="listening")
        return str(self.events("listening")[0]["url"])

    def wait_until_ready(self) -> "ServerProcess":
        wait_until(lambda: self.events("ready") or self.process.poll() is not None, what="readiness")
        assert self.process.poll() is None, self.lines
        return self

    @property
    def worker_pids(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def translate(self, text: str | list[str], **fields: object) -> Any:
        body = {"q": text, "source": "en", "target": "zh"} | fields
        response = httpx.post(f"{self.url}/translate", json=body, timeout=TIMEOUT)
        assert response.status_code == 200, response.text
        return response.json()["translatedText"]

    def metric(self, name: str, label: str = "") -> float:
        """Return the sum of a metric over its labels, or over those that contain `label`."""
        lines = httpx.get(f"{self.url}/metrics", timeout=TIMEOUT).text.splitlines()
        own = (line for line in lines if line.split("{")[0].split(" ")[0] == name and label in line)
        return sum(float(line.split()[-1]) for line in own)

    @contextmanager
    def without_free_descriptors(self) -> Iterator[None]:
        """Prevents the server from opening files and connections; it can use those that are open."""
        pid, before = self.process.pid, resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            yield
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(TIMEOUT)
        self._reader.join(10)
        return code
