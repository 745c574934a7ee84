"""Folders that one process at a time may work in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_held: set[int] = set()


@contextmanager
def locked(folder: Path, occupied: Callable[[], None]) -> Iterator[None]:
    """Keeps a folder to this process while the block runs.

    Where another process has it, `occupied` is called, which may raise; if it returns, the folder is waited for.
    """
    number = os.open(folder, os.O_RDONLY)
    _held.add(number)
    try:
        _acquire(number, occupied)
        yield
    finally:
        _held.discard(number)
        os.close(number)


def _acquire(number: int, occupied: Callable[[], None]) -> None:
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            occupied()
            fcntl.flock(number, fcntl.LOCK_EX)
    except OSError:
        pass  # some file systems know no locks, and a run is no worse for that


def _let_go() -> None:
    """A child that outlives its parent for a moment must not keep its folders."""
    for number in _held:
        os.close(number)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
