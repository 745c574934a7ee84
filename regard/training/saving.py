"""Writing checkpoints and models beside training: tensors are copied to the host, and a thread writes the copies."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Key = TypeVar("Key")
MAX_PENDING = 2
"""A validation and a checkpoint of the same step may wait; both hold their own copy of the weights."""


class Writer:
    """Runs writes in their order, one at a time, in a thread if `background`.

    If a write fails, those after it are not run, and the next call of any method but `close` raises its error.
    """

    def __init__(self, background: bool) -> None:
        self.background = background
        self._pool = ThreadPoolExecutor(1, "writer") if background else None
        self._pending: deque[Future[None]] = deque()

    def submit(self, write: Callable[[], object], wait: Callable[[], object] = lambda: None) -> None:
        """Run `wait` and then a write; if too many are pending, wait for the first of them."""
        if self._pool is None:
            wait()
            write()
            return
        self.check()
        while len(self._pending) >= MAX_PENDING:
            self._pending.popleft().result()
        previous = self._pending[-1] if self._pending else None
        self._pending.append(self._pool.submit(_run_after, previous, wait, write))

    def check(self) -> None:
        """Raise the error of a write that has failed."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def wait(self) -> None:
        """Wait until everything is written."""
        while self._pending:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait for the writes in flight and end the thread."""
        if self._pool is not None:
            self._pool.shutdown()


def _run_after(previous: Future[None] | None, wait: Callable[[], object], write: Callable[[], object]) -> None:
    if previous is not None:
        previous.result()
    wait()
    write()


def copy_to_host(tensors: Iterable[Tensor]) -> tuple[list[Tensor], Callable[[], object]]:
    """Start copying tensors to the host; return the copies, and a function that waits until they are complete."""
    copies = [_start_copy(tensor.detach()) for tensor in tensors]
    if not torch.cuda.is_available():
        return copies, lambda: None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return copies, event.synchronize


def _start_copy(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    try:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    except RuntimeError:  # the system limits pinned memory
        return tensor.cpu()
    return copy.copy_(tensor, non_blocking=True)


def copy_model_to_host(model: nn.Module) -> tuple[nn.Module, Callable[[], object]] | None:
    """Start copying a model to the host, see `copy_to_host`; None if a part of it cannot be copied."""
    originals = list(chain(model.parameters(), model.buffers()))
    copies, wait = copy_to_host(originals)
    replaced: dict[int, Any] = {
        id(original): nn.Parameter(copy, original.requires_grad) if isinstance(original, nn.Parameter) else copy
        for original, copy in zip(originals, copies, strict=True)
    }
    try:
        return deepcopy(model, replaced), wait
    except (TypeError, RuntimeError):  # an attribute such as a lock
        return None
