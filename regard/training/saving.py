"""Saving checkpoints and models; on a GPU beside training: a thread writes copies of the tensors on the host."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.card import SCORES
from regard.models.folder import replace_folder
from regard.training.checkpoint import reporting_write_errors, save_checkpoint
from regard.training.distributed import Processes
from regard.training.metrics_log import CHECKPOINTS
from regard.training.state import TrainingState
from regard.training.task import Task, Validation

MAX_PENDING = 2
"""A validation and a checkpoint of the same step may wait; both hold their own copy of the weights."""


class Saver:
    """Saves checkpoints and models in the run folder `out`. All processes of the run must call every method.

    Args:
        out: The run folder.
        task: Writes model folders.
        state: What checkpoints contain.
        processes: All processes of the run.
        keep: Number of checkpoints to keep.
        sharded: Whether every process writes its own shards of a checkpoint.
        background: Whether a thread writes while training continues.
    """

    def __init__(
        self,
        out: Path,
        task: Task[Any],
        state: TrainingState,
        processes: Processes,
        keep: int,
        sharded: bool = False,
        background: bool = False,
    ) -> None:
        self.out, self.checkpoints = out, out / CHECKPOINTS
        self.task, self.state, self.processes = task, state, processes
        self.keep, self.sharded = keep, sharded
        self.writer = Writer(background)

    def save_checkpoint(self, wait: bool = False) -> None:
        """Save a checkpoint; `wait` until it is written."""
        state = self.state
        with state.phase("saving"):
            tensors, values = state.tensors(), state.values()
            if self.sharded:
                save_checkpoint(self.checkpoints, state.step, tensors, values, self.keep, self.processes, sharded=True)
            else:
                self.processes.on_main(lambda: self._save_checkpoint_on_main(tensors, values))
            if wait:
                self.processes.on_main(self.writer.wait)

    def _save_checkpoint_on_main(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        step, keep = self.state.step, self.keep
        if not self.writer.background:
            save_checkpoint(self.checkpoints, step, tensors, values, keep)
            return
        copies, wait = copy_to_host(tensors.values())
        copied = dict(zip(tensors, copies, strict=True))
        self.writer.submit(lambda: save_checkpoint(self.checkpoints, step, copied, values, keep), wait)

    def save_model(self, model: nn.Module, validation: Validation, names: Sequence[str]) -> None:
        """Save a model with its scores in folders with these names; only the main process calls this method."""
        scores = {"step": self.state.step, "validation": validation.scores} | validation.details
        files = {
            name: json.dumps(values, indent=2, ensure_ascii=False) + "\n"
            for name, values in {SCORES: scores, **validation.files}.items()
        }
        with self.state.phase("saving"):
            copied = copy_model_to_host(model) if self.writer.background else None
            if copied is None:
                self.writer.wait()
                self._write_model(model, files, names)
            else:
                copy, wait = copied
                self.writer.submit(lambda: self._write_model(copy, files, names), wait)

    def _write_model(self, model: nn.Module, files: Mapping[str, str], names: Sequence[str]) -> None:
        for name in names:
            path = self.out / name
            with reporting_write_errors(path, self.checkpoints), replace_folder(path) as folder:
                self.task.save(folder, model)
                for file, text in files.items():
                    (folder / file).write_text(text, encoding="utf-8")

    def check(self) -> None:
        """Raise the error of a write that has failed."""
        self.processes.on_main(self.writer.check)

    def wait(self) -> None:
        """Wait until everything is written."""
        with self.state.phase("saving"):
            self.processes.on_main(self.writer.wait)

    def close(self) -> None:
        """Wait for the writes in flight and end the thread."""
        self.writer.close()


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
