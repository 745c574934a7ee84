"""Generic operations on batches: nested dataclasses, tuples and lists that contain tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

B = TypeVar("B")

HOST_ONLY = {"host_only": True}
"""Metadata of a dataclass field that no kernel depends on: it may differ between replays of a CUDA graph."""
ALIGNMENT = 64
"""Alignment in bytes of tensors that share a buffer, as kernels need it for vectorised loads."""


def move(batch: B, device: torch.device) -> B:
    """Move a CPU batch to a device; to a GPU with one asynchronous copy of all its tensors."""
    if device.type != "cuda":
        return batch
    tensors = tensors_of(batch)
    buffer = concatenate_bytes(tensors, pinned=True).to(device, non_blocking=True)
    return with_tensors(batch, split_bytes(buffer, tensors))


def concatenate_bytes(tensors: Sequence[Tensor], pinned: bool = False) -> Tensor:
    """Copy tensors into one buffer of bytes."""
    buffer = torch.empty(_offsets(tensors)[-1], dtype=torch.uint8, pin_memory=pinned)
    for tensor, part in zip(tensors, split_bytes(buffer, tensors), strict=True):
        part.copy_(tensor)
    return buffer


def split_bytes(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return views of a buffer with the shapes and dtypes of the tensors that it was concatenated from."""
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(_offsets(like), like, strict=False)
    ]


def _offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Return the first byte of each tensor, followed by the size of the buffer."""
    offsets = [0]
    for tensor in tensors:
        offsets.append(offsets[-1] + -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT)
    return offsets


def tensors_of(batch: Any) -> list[Tensor]:
    """Return all tensors of a batch in a fixed order."""
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for part in _parts(batch) for tensor in tensors_of(part)]


def with_tensors(batch: B, tensors: list[Tensor]) -> B:
    """Return a copy of the batch with its tensors replaced, in the order of `tensors_of`."""
    replaced: B = _replace_tensors(batch, iter(tensors))
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
