"""Coroutines in tests. Playwright keeps an event loop running in the main thread, so they run in another thread."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_thread(
    coroutine: Coroutine[Any, Any, T], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> T:
    def run() -> T:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(coroutine)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


class VirtualClock:
    """A clock that replaces the module `time` in tests. It advances only while all coroutines wait, and then at once.

    Timeouts in coroutines that `run` executes are therefore exact and take no time.
    """

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_in_thread(coroutine, lambda: _VirtualLoop(self))


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        super().__init__(_VirtualSelector(clock))

    def time(self) -> float:
        return self._clock.now


class _VirtualSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select(None)
        events = super().select(0)
        if not events:
            self._clock.now += max(0.0, timeout)
        return events
