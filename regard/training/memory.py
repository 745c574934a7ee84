"""Models and batches that do not fit into memory: detection, messages, and splitting into microbatches."""

import math
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import nn

from regard.errors import UserError
from regard.models.folder import MODELS
from regard.training.progress import counted
from regard.training.task import B, LossSum, Task

# Messages of the CPU allocator and of CUDA libraries that do not raise torch.OutOfMemoryError.
PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory is exhausted, on any device."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in PHRASES)
    return isinstance(error, MemoryError)


def read_peak(device: torch.device) -> float:
    """Return peak memory in megabytes: on a GPU since the last call, otherwise since the start of the process."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return round(peak / 1e6, 1)


def build_model(config: Any, device: torch.device) -> Any:
    """Build a model with random weights."""
    make = MODELS[config.kind]
    try:
        return make(config).to(device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    with torch.device("meta"):
        model = make(config)
    raise model_too_large(model, 4)


def model_too_large(model: nn.Module, copies: int) -> UserError:
    """Return the error for a model that does not fit; training needs `copies` times the memory of its weights."""
    number, size = sum(p.numel() for p in model.parameters()), sum(p.nbytes for p in model.parameters())
    return UserError(
        f"the model does not fit into memory: its {number / 1e6:,.0f} M parameters take {size / 1e9:,.1f} GB, and "
        f"training takes over {copies} times as much; choose a smaller model.preset or smaller model keys"
    )


def describe_model(model: nn.Module, device: torch.device) -> str:
    """Describe the size of a model and the device that it is trained on."""
    parameters = sum(p.numel() for p in model.parameters())
    where = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else counted(torch.get_num_threads(), "CPU thread")
    )
    return f"{parameters / 1e6:.1f} M parameters on {where}"


@dataclass(frozen=True)
class Accumulated(Generic[B]):
    """Result of accumulating the gradients of a step."""

    losses: list[LossSum]  # of the microbatches, detached
    tokens: int  # that the loss of the step is a mean over
    split: int  # number of batches that were split
    failed: list[B]  # did not fit into memory and were halved
    dropped: list[B]  # single examples that did not fit into memory


class Microbatches(Generic[B]):
    """Accumulates the gradients of a step; batches that do not fit into memory are halved, repeatedly if necessary.

    A loss is a sum, so that the gradients of microbatches add up to those of the batch, up to rounding. If memory is
    exhausted during a backward pass, the gradients are incomplete, and the step starts again with smaller microbatches.

    Args:
        task: What is trained.
        backward: Called as backward(batch, tokens, step); adds the gradients of the batch's loss, divided by the number
            of tokens of the step.
    """

    def __init__(self, task: Task[B], backward: Callable[[B, float, int], LossSum]) -> None:
        self.task, self.backward = task, backward
        self.min_failed_size = math.inf  # batches of this size or more are halved without trying them

    def accumulate(self, batches: Sequence[B], step: int) -> Accumulated[B]:
        """Compute the gradients of the mean loss over all tokens of the batches."""
        groups = [[batch] for batch in batches]
        failed: list[B] = []
        dropped: list[B] = []
        while True:
            groups = [[half for batch in group for half in self._halve(batch)] for group in groups]
            microbatches = [batch for group in groups for batch in group]
            tokens = max(1, sum(map(self.task.count, microbatches)))
            losses: list[LossSum] = []
            try:
                for batch in microbatches:
                    losses.append(self.backward(batch, tokens, step))
                return Accumulated(losses, tokens, sum(len(group) > 1 for group in groups), failed, dropped)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # After the except block, the error no longer references the graph that was too large.
            self.task.model.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            too_large = microbatches[len(losses)]
            if self.task.split(too_large) is None:
                dropped.append(too_large)
                _remove(groups, len(losses))
            else:
                failed.append(too_large)
                self.min_failed_size = min(self.min_failed_size, self.task.size(too_large))

    def fits(self, batch: B) -> bool:
        """Return whether no batch of this size or smaller has failed so far."""
        return self.task.size(batch) < self.min_failed_size

    def _halve(self, batch: B) -> Iterator[B]:
        halves = None if self.fits(batch) else self.task.split(batch)
        if halves is None:
            yield batch
        else:
            for half in halves:
                yield from self._halve(half)


def _remove(groups: list[list[B]], index: int) -> None:
    """Remove an item from nested lists, given its index in the flattened list."""
    for group in groups:
        if index < len(group):
            del group[index]
            return
        index -= len(group)
