"""Batches that go through the model in as many pieces as memory needs."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import nn

from regard.errors import UserError
from regard.training.task import B, LossSum, Task

# How the CPU's allocator and CUDA's libraries say what torch.OutOfMemoryError says elsewhere.
PHRASES = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is a want of memory, in any of the ways in which it is reported."""
    if isinstance(error, RuntimeError):
        return isinstance(error, torch.OutOfMemoryError) or any(phrase in str(error) for phrase in PHRASES)
    return isinstance(error, MemoryError)


def read_peak(device: torch.device) -> float:
    """Megabytes: on a GPU the most that was allocated since the last reading, else the most this process ever had."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return round(peak / 1e6, 1)


def explain_too_large(model: nn.Module, copies: int) -> UserError:
    """What to say where a model does not fit; training takes so many times the memory of its weights."""
    number, size = sum(p.numel() for p in model.parameters()), sum(p.nbytes for p in model.parameters())
    return UserError(
        f"the model does not fit into memory: its {number / 1e6:,.0f} M parameters take {size / 1e9:,.1f} GB, and "
        f"training takes over {copies} times that; take a smaller one, by model.preset or its other keys"
    )


@dataclass(frozen=True)
class Accumulated(Generic[B]):
    """What came of the batches of a step."""

    losses: list[LossSum]  # of each piece, without graphs
    tokens: int  # that the step's loss is a mean over
    split: int  # how many of the batches went through in pieces
    failed: list[B]  # what did not fit and was halved
    left_out: list[B]  # what did not fit and could not be halved


class Microbatches(Generic[B]):
    """The gradients of a step. Where memory does not suffice, a batch is halved, and its halves, and so on.

    A loss is a sum, so the gradients are the same as those of whole batches but for rounding. Backward adds to the
    gradients one by one, so that a failure leaves some of them with a part too much: then the step begins again.

    Args:
        task: what is trained.
        backward: adds the gradients of the batch's loss, divided by a number of tokens; given both and the step.
    """

    def __init__(self, task: Task[B], backward: Callable[[B, float, int], LossSum]) -> None:
        self.task, self.backward = task, backward
        self.too_large = math.inf  # the least size that did not fit; such batches are halved without trying them

    def gather(self, batches: Sequence[B], step: int) -> Accumulated[B]:
        """Leaves in the model's parameters the gradients of the mean loss over all tokens of the batches."""
        groups = [[batch] for batch in batches]
        failed: list[B] = []
        left_out: list[B] = []
        while True:
            groups = [[half for piece in group for half in self._halve(piece)] for group in groups]
            places = [(group, i) for group in groups for i in range(len(group))]
            tokens = sum(self.task.count(group[i]) for group, i in places)
            losses: list[LossSum] = []
            try:
                for group, i in places:
                    losses.append(self.backward(group[i], tokens, step))
                return Accumulated(losses, tokens, sum(len(group) > 1 for group in groups), failed, left_out)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # Only here, where the error is forgotten, does nothing hold on to the graph that was too large.
            self.task.model.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            group, i = places[len(losses)]
            if self.task.split(group[i]) is None:
                left_out.append(group.pop(i))
            else:
                failed.append(group[i])
                self.too_large = min(self.too_large, self.task.size(group[i]))

    def fits(self, batch: B) -> bool:
        """Whether nothing as small as this batch has failed yet."""
        return self.task.size(batch) < self.too_large

    def _halve(self, batch: B) -> Iterator[B]:
        halves = None if self.fits(batch) else self.task.split(batch)
        if halves is None:
            yield batch
        else:
            for half in halves:
                yield from self._halve(half)
