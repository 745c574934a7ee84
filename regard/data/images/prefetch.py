"""Work that threads do ahead of whoever uses its results."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def work_ahead(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int, waiting: int
) -> Iterator[Result]:
    """What `work` makes of each item, in order; no more than `waiting` results lie about unused."""
    with ThreadPoolExecutor(threads) as pool:
        futures: deque[Future[Result]] = deque()
        try:
            for item in items:
                futures.append(pool.submit(work, item))
                if len(futures) > waiting:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            for future in futures:
                future.cancel()
