"""How processes find each other, even those that torchrun has started again.

torchrun keeps one store of addresses for all its restarts, so that a new process may find the address of one that was
killed (pytorch#135712). Here the main process names each start afresh, and only those who are alive learn the name.
"""

from __future__ import annotations

import time
import uuid

from torch.distributed.distributed_c10d import PrefixStore, Store

PAUSE, PATIENCE = 0.01, 1800.0  # seconds


def meet(store: Store, rank: int, world: int, patience: float = PATIENCE) -> Store:
    """The part of the store that is for this start of the processes alone.

    Raises:
        TimeoutError: some process has not come within `patience` seconds.
    """
    if rank:
        greeting = uuid.uuid4().hex
        store.set(_hello(rank), greeting)
        name = store.get(_welcome(greeting)).decode()  # waits; nobody answers a greeting but in this start
        store.set(_here(name, rank), "")
    else:
        name = uuid.uuid4().hex
        _welcome_all(store, name, set(range(1, world)), patience)
    return PrefixStore(name, store)


def _welcome_all(store: Store, name: str, absent: set[int], patience: float) -> None:
    """Answers every greeting with the name, those of killed processes too, until all who are alive have heard it."""
    deadline = time.monotonic() + patience
    while absent := {rank for rank in absent if not store.check([_here(name, rank)])}:
        for rank in absent:
            if store.check([_hello(rank)]):
                store.set(_welcome(store.get(_hello(rank)).decode()), name)
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {min(absent)} has not come")
        time.sleep(PAUSE)


def _hello(rank: int) -> str:
    return f"regard/hello/{rank}"


def _welcome(greeting: str) -> str:
    return f"regard/welcome/{greeting}"


def _here(name: str, rank: int) -> str:
    return f"regard/here/{name}/{rank}"
