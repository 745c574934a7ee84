"""Batches prepared by worker processes, in the same order as without workers."""

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

PR_SET_PDEATHSIG = 1  # option of Linux's prctl


def map_in_workers(make: Callable[[P], B], plans: Iterable[P], workers: int) -> Iterator[B]:
    """Yield `make(plan)` for every plan, in order, computed by forked processes that end with the iterator."""
    loader = DataLoader(
        _MapDataset(make),
        batch_size=None,
        sampler=plans,
        num_workers=workers,
        collate_fn=pickle.dumps,  # shared memory is scarce in many containers, and leaks when a parent is killed
        worker_init_fn=partial(_initialise_worker, os.getpid()),
        multiprocessing_context="fork",  # workers share a memory-mapped corpus without copying it
        generator=torch.Generator(),  # the default generator is reserved for training
    )
    with _garbage_collection_disabled():
        batches = iter(loader)
    return map(pickle.loads, batches)


class _MapDataset(Dataset[B], Generic[P, B]):
    def __init__(self, make: Callable[[P], B]) -> None:
        self.make = make

    def __getitem__(self, plan: P) -> B:
        return self.make(plan)


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Disable garbage collection in this process and in processes forked from it, until they enable it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _initialise_worker(parent: int, number: int) -> None:
    """Leave Ctrl-C and SIGTERM to the parent process, and die with it.

    Objects inherited from the parent are never collected: a destructor may wait for threads that do not exist in a
    forked process, such as those of a process group.
    """
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ignore_once)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent was killed before prctl took effect
        os._exit(1)


def _ignore_once(number: int, frame: FrameType | None) -> None:
    """A job scheduler signals all processes; the parent saves first and then terminates its workers itself."""
    signal.signal(number, signal.SIG_DFL)
