"""What batches of any task are made of: tensors, in fields or items, and numbers beside them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

B = TypeVar("B")

VARIES = {"varies": True}
"""The metadata of a field of a batch that is for the host alone: no kernel depends on it."""
ALIGNED = 64
"""Bytes: where a tensor begins that shares a buffer, so that kernels read it as fast as any other."""


def move(batch: B, device: torch.device) -> B:
    """A batch of the CPU on a device; a GPU gets all its tensors in one copy, and nobody waits for that."""
    if device.type != "cuda":
        return batch
    tensors = tensors_of(batch)
    buffer = in_one(tensors, pinned=True).to(device, non_blocking=True)
    return with_tensors(batch, apart(buffer, tensors))


def in_one(tensors: Sequence[Tensor], pinned: bool = False) -> Tensor:
    """A buffer of bytes that holds all these tensors, one behind the other."""
    places = _places(tensors)
    buffer = torch.empty(places[-1], dtype=torch.uint8, pin_memory=pinned)
    for tensor, room in zip(tensors, apart(buffer, tensors), strict=True):
        room.copy_(tensor)
    return buffer


def apart(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """What `in_one` made one buffer of: tensors of these shapes and types, in the buffer's memory."""
    places = _places(like)
    return [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for start, tensor in zip(places[:-1], like, strict=True)
    ]


def _places(tensors: Sequence[Tensor]) -> list[int]:
    """Where each tensor begins, and where the last one ends."""
    places = [0]
    for tensor in tensors:
        places.append(places[-1] + -(-tensor.nbytes // ALIGNED) * ALIGNED)
    return places


def tensors_of(batch: Any) -> list[Tensor]:
    """Every tensor of a batch: of its fields or items, and of theirs."""
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for part in _parts(batch) for tensor in tensors_of(part)]


def with_tensors(batch: B, tensors: list[Tensor]) -> B:
    """The same batch with other tensors, in the order of `tensors_of`."""
    made: B = _refill(batch, iter(tensors))
    return made


def shape_of(batch: Any) -> Hashable:
    """All that a recording takes for granted: shapes and types of tensors, and every number that does not vary."""
    if isinstance(batch, Tensor):
        return batch.shape, batch.stride(), batch.dtype, batch.device
    if isinstance(batch, (bool, int, float, str)) or batch is None:
        return batch
    return type(batch), tuple(shape_of(part) for part in _parts(batch))


def _parts(batch: Any) -> Sequence[Any]:
    if isinstance(batch, (tuple, list)):
        return batch
    if is_dataclass(batch):
        return [getattr(batch, field.name) for field in fields(batch) if "varies" not in field.metadata]
    return ()


def _refill(batch: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(batch, Tensor):
        return next(tensors)
    if isinstance(batch, (tuple, list)):
        return type(batch)([_refill(part, tensors) for part in batch])
    if is_dataclass(batch) and not isinstance(batch, type):
        names = [field.name for field in fields(batch) if "varies" not in field.metadata and field.init]
        return replace(batch, **{name: _refill(getattr(batch, name), tensors) for name in names})
    return batch
