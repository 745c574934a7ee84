"""A training step that a GPU repeats by itself: recorded once, then replayed with other numbers in the same places.

A step of a small model is a thousand kernels of a few microseconds each, and the host takes longer to ask for them than
the device to run them. A recording (a CUDA graph) asks for all of them at once. It works on tensors that stay where
they are: a batch is copied into those of the recording, and whatever else changes from step to step is a tensor too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from regard.training.batches import shape_of, tensors_of, with_tensors

B = TypeVar("B")
T = TypeVar("T")

WARMUP_STEPS = 3
"""Steps on batches of one shape before it is recorded, in which whatever is set up at first use is set up."""


class StepGraph(Generic[B, T]):
    """Does `act` over and over: from a recording, once there is one for batches of that shape.

    Where nothing can be recorded, which is anywhere but on a GPU, `act` is simply done, on the same tensors.

    Args:
        act: what is done with the batches of a step; what it returns are tensors that nothing else will write to.
        device: where it is done.
    """

    def __init__(self, act: Callable[[Sequence[B]], T], device: torch.device) -> None:
        self.act, self.device = act, device
        self.shape: Hashable = None
        self.met = 0  # in a row, of this shape
        self.recording: _Recording[B, T] | None = None
        self._aside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def repeat(self, batches: Sequence[B]) -> T | None:
        """What `act` returns, in tensors that the next step overwrites; None where it is to be done plainly for now."""
        shape = tuple(shape_of(batch) for batch in batches)
        if shape != self.shape:
            self.shape, self.met, self.recording = shape, 0, None
        if self.met < WARMUP_STEPS:
            self.met += 1
            return None
        if self.recording is None:
            self.recording = _Recording(self.act, batches, self._aside)
        return self.recording.play(batches)

    @contextmanager
    def plainly(self) -> Iterator[None]:
        """Where a step is done that is not repeated: where recording will be, so that libraries are ready for that."""
        if self._aside is None:
            yield
            return
        main = torch.cuda.current_stream(self.device)
        self._aside.wait_stream(main)
        with torch.cuda.stream(self._aside):
            yield
        main.wait_stream(self._aside)


class _Recording(Generic[B, T]):
    """`act` on batches of its own, whose tensors are those of others for a while."""

    def __init__(self, act: Callable[[Sequence[B]], T], batches: Sequence[B], aside: Any) -> None:
        self.act = act
        self.batches = [with_tensors(batch, [_twin(tensor) for tensor in tensors_of(batch)]) for batch in batches]
        self.tensors = [tensor for batch in self.batches for tensor in tensors_of(batch)]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: T | None = None
        if aside is not None:
            self.graph = torch.cuda.CUDAGraph()
            # Another thread makes batches meanwhile; what it does on the device is none of this graph's business.
            with torch.cuda.graph(self.graph, stream=aside, capture_error_mode="thread_local"):
                self.result = act(self.batches)

    def play(self, batches: Sequence[B]) -> T:
        torch._foreach_copy_(self.tensors, [tensor for batch in batches for tensor in tensors_of(batch)])
        if self.graph is None:
            return self.act(self.batches)
        self.graph.replay()
        assert self.result is not None
        return self.result


def _twin(tensor: Tensor) -> Tensor:
    """A copy whose elements lie as the original's do: compiled code was made for these strides."""
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return tensor.clone()  # elements that share their memory cannot be copied into
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)
