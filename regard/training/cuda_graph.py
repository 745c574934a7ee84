"""Training steps as CUDA graphs: captured once, then replayed with other values in the same tensors.

A step of a small model consists of about a thousand kernels of a few microseconds each, and the host takes longer to
launch them than the device to run them. A CUDA graph launches all of them at once. It works on static tensors: each
batch is copied into the tensors of the graph, and everything else that changes from step to step is a tensor too.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")

HOST_ONLY = {"host_only": True}
"""Metadata of a dataclass field that no kernel depends on: it may differ between replays of a CUDA graph."""
WARMUP_STEPS = 3
"""Number of eager steps on batches of one shape before capture, in which libraries and kernels are initialised."""


class StepGraph(Generic[BatchT, ResultT]):
    """Runs a step repeatedly, from a CUDA graph once one has been captured for batches of the same shape.

    On a device without CUDA, the step runs eagerly on the same static tensors; in training, this needs an explicit
    `training.cuda_graph=true` or `training.compile=true`. The tensors that the parts return must not be written
    elsewhere.

    Args:
        parts: The functions whose calls are a step, each captured in a graph of its own. The first one takes the
            batches, a second one the result of the first.
        device: Device of the batches.
        between: What runs uncaptured before the second part, given the result of the first: communication between
            processes.

    Attributes:
        signature: Operations, shapes and dtypes of the last step, for which `captured` was captured.
        eager_steps: Number of consecutive eager steps with this signature.
        captured: The captured step; None during the first steps with a signature.
        enabled: Whether steps are captured; False after `disable`.
    """

    def __init__(
        self,
        parts: Sequence[Callable[[Any], Any]],
        device: torch.device,
        between: Callable[[Any], object] = lambda result: None,
    ) -> None:
        self.parts, self.device, self.between = parts, device, between
        self.signature: Hashable = None
        self.eager_steps = 0
        self.captured: _CapturedStep[BatchT] | None = None
        self.enabled = True
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def try_replay(self, batches: Sequence[BatchT], operations_key: Hashable = None) -> ResultT | None:
        """Return the result of the step, in tensors that the next step overwrites; None if it must run eagerly.

        Args:
            batches: Batches of the step.
            operations_key: What determines the operations of the step besides the shapes of the batches.
        """
        if not self.enabled:
            return None
        signature = operations_key, tuple(signature_of(batch) for batch in batches)
        if signature != self.signature:
            self.signature, self.eager_steps, self.captured = signature, 0, None
        if self.eager_steps < WARMUP_STEPS:
            self.eager_steps += 1
            return None
        if self.captured is None:
            self.captured = _CapturedStep(self.parts, self.between, batches, self._stream)
        result: ResultT = self.captured.replay(batches)
        return result

    def disable(self) -> None:
        """Run all further steps eagerly and free the memory of the captured step."""
        self.enabled, self.captured = False, None

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run an eager step on the stream of the capture, so that libraries are initialised for it."""
        if self._stream is None:
            yield
            return
        main = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            yield
        main.wait_stream(self._stream)


class _CapturedStep(Generic[BatchT]):
    """The parts of a step on static batches, captured if there is a stream."""

    def __init__(
        self,
        parts: Sequence[Callable[[Any], Any]],
        between: Callable[[Any], object],
        batches: Sequence[BatchT],
        stream: Any,
    ) -> None:
        self.parts, self.between = parts, between
        self.batches = [with_tensors(batch, [_copy_with_strides(t) for t in tensors_of(batch)]) for batch in batches]
        self.tensors = [tensor for batch in self.batches for tensor in tensors_of(batch)]
        self.captured_parts = None if stream is None else self._capture(stream)

    def _capture(self, stream: Any) -> list[tuple[torch.cuda.CUDAGraph, Any]]:
        """Return the graph of each part and its result, in tensors that are overwritten by each replay."""
        captured: list[tuple[torch.cuda.CUDAGraph, Any]] = []
        result: Any = self.batches
        for part in self.parts:
            graph = torch.cuda.CUDAGraph()
            pool = captured[-1][0].pool() if captured else None
            # Another thread prepares batches on the device, which must not interfere with the capture.
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                result = part(result)
            captured.append((graph, result))
        return captured

    def replay(self, batches: Sequence[BatchT]) -> Any:
        torch._foreach_copy_(self.tensors, [tensor for batch in batches for tensor in tensors_of(batch)])
        result: Any = self.batches
        for number, part in enumerate(self.parts):
            if number:
                self.between(result)
            if self.captured_parts is None:
                result = part(result)
            else:
                graph, result = self.captured_parts[number]
                graph.replay()
        return result


def _copy_with_strides(tensor: Tensor) -> Tensor:
    """Copy a tensor with its strides, for which code may have been compiled."""
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        return tensor.clone()  # expanded tensors cannot be copied into
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


# Batches are nested dataclasses, tuples and lists that contain tensors.


def tensors_of(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch in a fixed order."""
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for part in _parts(batch) for tensor in tensors_of(part)]


def with_tensors(batch: BatchT, tensors: list[Tensor]) -> BatchT:
    """Return a copy of the batch with its tensors replaced, in the order of `tensors_of`."""
    replaced: BatchT = _replace_tensors(batch, iter(tensors))
    return replaced


def signature_of(batch: Any) -> Hashable:
    """Return everything that a captured CUDA graph depends on: shapes, dtypes and all values outside of tensors."""
    if isinstance(batch, Tensor):
        return batch.shape, batch.stride(), batch.dtype, batch.device
    if isinstance(batch, (bool, int, float, str)) or batch is None:
        return batch
    return type(batch), tuple(signature_of(part) for part in _parts(batch))


def _parts(batch: Any) -> Sequence[Any]:
    if isinstance(batch, (tuple, list)):
        return batch
    if is_dataclass(batch):
        return [getattr(batch, field.name) for field in fields(batch) if "host_only" not in field.metadata]
    return ()


def _replace_tensors(batch: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(batch, Tensor):
        return next(tensors)
    if isinstance(batch, (tuple, list)):
        return type(batch)([_replace_tensors(part, tensors) for part in batch])
    if is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in fields(batch) if "host_only" not in field.metadata and field.init]
        return replace(batch, **{name: _replace_tensors(getattr(batch, name), tensors) for name in names})
    return batch
