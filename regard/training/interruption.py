"""Ctrl-C and SIGTERM: a run that is asked to stop ends its step and saves before it does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class StopRequest:
    """Whether the run has been asked to stop.

    Outside `patient` times, and when asked a second time, it stops at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.patient = False

    @property
    def made(self) -> bool:
        return self.signal is not None

    def receive(self, number: int, _frame: FrameType | None = None) -> None:
        again = self.made
        self.signal = number
        if again or not self.patient:
            self.obey()

    def obey(self) -> NoReturn:
        """Raises what ends the process with the exit code that belongs to the signal: 130 or 143."""
        if self.signal == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[StopRequest]:
    """Takes Ctrl-C and SIGTERM as requests to stop while the block runs; only the main thread can hear them."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
