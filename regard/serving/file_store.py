"""Documents of the server: how many are translated at once, their progress, and the translated files."""

import asyncio
import logging
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath

from regard.serving.config import Limits
from regard.serving.errors import overloaded, unavailable
from regard.serving.telemetry import log_event

SHOWN_CHARACTERS = 80
"""Maximum length of the original name in that of a translated file."""


@dataclass(frozen=True)
class StoredFile:
    """A translated file. `expires` is a time of the clock of the store."""

    path: Path
    name: str
    bytes: int
    expires: float


@dataclass
class Progress:
    """Number of translated segments of a document, and of all."""

    done: int
    total: int


class FileStore:
    """Translated files in a temporary folder, which is removed when the server stops.

    The name of a file contains a random token, so that only the client that translated it knows its address.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._files: OrderedDict[str, StoredFile] = OrderedDict()
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._running = Counter[str]()
        self.progress: dict[str, Progress] = {}
        self.parsing = asyncio.Semaphore(1)  # documents are held in memory several times while they are parsed

    @contextmanager
    def take_slot(self, client: str) -> Iterator[None]:
        """Count a document that is being translated.

        Raises:
            ApiError: All slots are occupied, or the client has half of them.
        """
        limit = self._limits.files
        if self._running.total() >= limit or self._running[client] >= max(1, limit // 2):
            raise overloaded(f"Slowdown: {self._running.total()} documents are being translated already", 5)
        self._running[client] += 1
        try:
            yield
        finally:
            self._running -= Counter([client])

    @contextmanager
    def track(self, job: str | None, total: int) -> Iterator[Progress]:
        """Publish the progress of a document under the name of its job while the block runs."""
        progress = Progress(0, total)
        if job is not None:
            self.progress[job] = progress
        try:
            yield progress
        finally:
            if job is not None and self.progress.get(job) is progress:
                del self.progress[job]

    def add(self, original: str, target: str, content: bytes) -> str:
        """Store a translated file and return its name; may be called in a thread.

        Raises:
            ApiError: The file cannot be written, for example because the disk is full.
        """
        plain = re.sub(r"[^\w.-]+", "_", PurePath(original.replace("\\", "/")).name)
        suffix = PurePath(plain).suffix[:10]
        shown = f"{plain.removesuffix(suffix)[:SHOWN_CHARACTERS]}_{target}{suffix}"
        name = f"{secrets.token_urlsafe(18)}.{shown}"
        with self._lock:
            path = self._write(name.partition(".")[0], content)
            self._files[name] = StoredFile(path, shown, len(content), self._clock() + self._limits.file_keep)
            self._remove_expired()
        return name

    def find(self, name: str) -> StoredFile | None:
        """Return a file by its name, unless it has expired or another program has removed it."""
        with self._lock:
            self._remove_expired()
            file = self._files.get(name)
        return file if file is not None and file.path.is_file() else None

    def _write(self, name: str, content: bytes) -> Path:
        path: Path | None = None
        try:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="regard-files-"))
            self._folder.mkdir(mode=0o700, exist_ok=True)  # programs that clean temporary folders may have removed it
            path = self._folder / name
            path.write_bytes(content)
        except OSError as error:
            if path is not None:
                path.unlink(missing_ok=True)
            log_event("translated document not stored", logging.ERROR, reason=error.strerror)
            raise unavailable(f"the translated document cannot be stored ({error.strerror})") from None
        return path

    def _remove_expired(self) -> None:
        """Remove files that have expired, and the oldest ones until the others fit; the newest always remains."""
        size = sum(file.bytes for file in self._files.values())
        while self._files:
            name, file = next(iter(self._files.items()))
            if file.expires > self._clock() and (size <= self._limits.file_storage or len(self._files) == 1):
                return
            file.path.unlink(missing_ok=True)
            size -= file.bytes
            del self._files[name]

    def close(self) -> None:
        """Remove all files."""
        self._files.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
