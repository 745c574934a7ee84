"""Generic operations on batches."""

from collections.abc import Callable
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.masks import Packed
from regard.training.batches import (
    ALIGNMENT,
    concatenate_bytes,
    move,
    signature_of,
    split_bytes,
    tensors_of,
    with_tensors,
)
from regard.training.state import DataShard, Position
from regard.training.tasks.translation.batches import TextBatch
from regard.training.tasks.translation.task import TranslationTask

Build = Callable[..., TranslationTask]


def test_tensors_of_a_batch_can_be_replaced(build: Build) -> None:
    task = build(training__cuda_graph=True, batch__layout="packed", batch__tokens=150)
    one, other = (placed.batch for placed in islice(task.batches(Position(), DataShard()), 2))
    assert one.count != other.count  # otherwise the test is meaningless
    assert signature_of(one) == signature_of(other)
    copy = with_tensors(one, [tensor.clone() for tensor in tensors_of(other)])
    assert isinstance(copy, TextBatch)
    assert isinstance(copy.target_layout, Packed)
    assert torch.equal(copy.target_layout.offsets, other.target_layout.offsets)
    assert torch.equal(task.loss(copy, 1).total, task.loss(other, 1).total)
    assert all(a is not b for a, b in zip(tensors_of(copy), tensors_of(other), strict=True))


def test_signature_depends_on_shapes_dtypes_and_values() -> None:
    layout = Packed.of([3, 2])
    assert signature_of(layout) == signature_of(Packed.of([3, 2]))
    assert signature_of(layout) != signature_of(Packed(layout.offsets, 4, 5))
    assert signature_of((torch.zeros(2), None)) != signature_of((torch.zeros(3), None))
    assert signature_of((torch.zeros(2), None)) != signature_of((torch.zeros(2, dtype=torch.int32), None))
    assert signature_of((torch.zeros(2, 2),)) != signature_of((torch.zeros(2, 2).t(),))


@given(
    shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=5),
    dtypes=st.lists(st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bool]), min_size=5, max_size=5),
)
def test_concatenated_tensors_can_be_split(shapes: list[tuple[int, int]], dtypes: list[torch.dtype]) -> None:
    tensors = [torch.arange(a * b).view(a, b).to(dtype) for (a, b), dtype in zip(shapes, dtypes, strict=False)]
    buffer = concatenate_bytes(tensors)
    found = split_bytes(buffer, tensors)
    for mine, theirs in zip(found, tensors, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
        assert (mine.data_ptr() - buffer.data_ptr()) % ALIGNMENT == 0 or not mine.numel()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_batch_is_moved_to_a_gpu_in_one_copy(build: Build, layout: str) -> None:
    task = build(batch__layout=layout, batch__tokens=150)
    batch = next(iter(task.batches(Position(), DataShard()))).batch
    moved = move(batch, torch.device("cuda"))
    assert signature_of(move(batch, torch.device("cpu"))) == signature_of(batch)
    assert all(tensor.is_cuda for tensor in tensors_of(moved))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(tensors_of(moved), tensors_of(batch), strict=True))
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors_of(moved)}) == 1
