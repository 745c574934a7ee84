"""Batches made in other processes, in the order of their plan, so that they are the same as without."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

P = TypeVar("P")
B = TypeVar("B")

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def make_in_workers(make: Callable[[P], B], plans: Iterable[P], workers: int) -> Iterator[B]:
    """`make` of every plan, in order, by processes that are forked now and end with whoever reads this."""
    loader = DataLoader(
        _Made(make),
        batch_size=None,
        sampler=plans,
        num_workers=workers,
        collate_fn=pickle.dumps,  # since shared memory is short in many containers, and noisy when a parent is killed
        worker_init_fn=partial(_begin_work, os.getpid()),
        multiprocessing_context="fork",  # a mapped corpus is shared with them, not sent to them
        generator=torch.Generator(),  # or else this would draw from the random numbers of the training
    )
    with _without_collecting():
        batches = iter(loader)
    return map(pickle.loads, batches)


class _Made(Dataset[B], Generic[P, B]):
    """What a loader asks for its batches."""

    def __init__(self, make: Callable[[P], B]) -> None:
        self.make = make

    def __getitem__(self, plan: P) -> B:
        return self.make(plan)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """No garbage is collected while the block runs, nor in a process that is forked in it, until it says so itself."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _begin_work(parent: int, number: int) -> None:
    """What a worker does first: leaves Ctrl-C and SIGTERM to its parent, and dies with it.

    What it has from its parent it never clears away: there may be something that waits for threads, which were not
    forked, such as a process group.
    """
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ignore_once)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # which was killed before it could be followed, and will not be heard of again
        os._exit(1)


def _ignore_once(number: int, frame: FrameType | None) -> None:
    """A job's end reaches all its processes: the parent saves first, and its own request is the second."""
    signal.signal(number, signal.SIG_DFL)
