"""Ctrl-C and SIGTERM, held back while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or a request to terminate; `signal` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.signal = number


class Interruptions:
    """Turns SIGINT and SIGTERM into `Interrupted` while the block runs; only the main thread can hear them.

    While `patient`, the first one is only noted: whoever holds it back looks at `noted` and then obeys. A second one is
    not held back.
    """

    def __init__(self) -> None:
        self.patient = False
        self.noted: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as in a script's background job
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def made(self) -> bool:
        """Whether one has been noted."""
        return self.noted is not None

    def obey(self) -> NoReturn:
        assert self.noted is not None
        raise Interrupted(self.noted)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """No interruption within, but for who insists: it follows at the end of the outermost such block."""
        before, self.patient = self.patient, True
        try:
            yield
        finally:
            self.patient = before
        if self.made and not self.patient:
            self.obey()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        insisted = self.made
        self.noted = number
        if insisted or not self.patient:
            self.obey()
