"""Tests of key ranges: the kernel against the formula, and the formula against the dense mask."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.masks import Mask, Packed, Window
from regard.ops import dispatch
from regard.ops.key_ranges import KeyRanges, find_by_formula, find_by_kernel

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOUNDS = st.none() | st.integers(0, 9)
LENGTHS = st.integers(0, 30) | st.integers(60, 200)
ROWS = st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=8).filter(
    lambda row: all(map(sum, zip(*row, strict=True)))
)


def layouts(row: Sequence[tuple[int, int]]) -> tuple[Packed, Packed]:
    queries, keys = (Packed.of(lengths, DEVICE) for lengths in zip(*row, strict=True))
    return queries, keys


def in_ranges(first: Tensor | None, end: Tensor | None, size: int) -> Tensor:
    assert first is not None
    assert end is not None
    index = torch.arange(size, device=DEVICE)
    return (first[0, :, None] <= index) & (index < end[0, :, None])


@settings(max_examples=40, derandomize=True)
@given(row=ROWS, reach=st.tuples(BOUNDS, BOUNDS))
def test_ranges_agree_with_the_dense_mask(row: list[tuple[int, int]], reach: Window) -> None:
    queries, keys = layouts(row)
    mask = Mask(queries=queries, keys=keys, window=reach)
    allowed = mask.dense(queries.size, keys.size, DEVICE)
    assert allowed is not None
    ranges = find_by_formula(queries, keys, mask.reach)
    assert torch.equal(in_ranges(ranges.first_key, ranges.end_key, keys.size), allowed[0, 0])
    assert torch.equal(in_ranges(ranges.first_query, ranges.end_query, queries.size), allowed[0, 0].T)


@settings(max_examples=12, derandomize=True)
@given(row=ROWS, reach=st.tuples(BOUNDS, BOUNDS), program_tokens=st.sampled_from([1, 7, 32, 1000]))
def test_kernel_agrees_with_the_formula(row: list[tuple[int, int]], reach: Window, program_tokens: int) -> None:
    queries, keys = layouts(row)
    by_kernel, by_formula = (find(queries, keys, reach, program_tokens) for find in (find_by_kernel, find_by_formula))
    for mine, theirs in zip(by_kernel, by_formula, strict=True):
        assert mine is not None
        assert theirs is not None
        assert mine.dtype == theirs.dtype == torch.int32
        assert torch.equal(mine, theirs)


@settings(max_examples=40, derandomize=True)
@given(row=ROWS, program_tokens=st.sampled_from([1, 16, 32, 1000]))
def test_programs_cover_complete_sequences_exactly_once(row: list[tuple[int, int]], program_tokens: int) -> None:
    queries, keys = layouts(row)
    programs = find_by_formula(queries, keys, (None, None), program_tokens).programs
    assert programs is not None
    table = programs.tolist()
    for layout, first, end in ((queries, 0, 1), (keys, 2, 3)):
        owned = [(program[first], program[end]) for program in table if program[4] == 0]
        assert [start for start, _ in owned] == [0, *(stop for _, stop in owned[:-1])]
        assert owned[-1][1] == layout.size
        assert {edge for edges in owned for edge in edges} <= set(layout.offsets.tolist())
    for i, (*_, share, shares) in enumerate(table):
        group = table[i - share : i - share + shares]
        assert [program[4] for program in group] == list(range(shares))
        assert all(program[:4] == table[i][:4] for program in group)


def test_work_is_divided_evenly_among_programs() -> None:
    queries, keys = layouts([(10, 12)] * 20 + [(300, 3), (0, 90), (1, 1)])
    programs = find_by_formula(queries, keys, (None, None), 32).programs
    assert programs is not None
    work = (programs[:, 1] - programs[:, 0] + programs[:, 3] - programs[:, 2]) / programs[:, 5]
    assert work.max() < 2 * 64  # the interval of a program, and the sequence that extends beyond it


def test_padding_and_empty_sequences_at_the_end_are_assigned() -> None:
    offsets = torch.tensor([0, 5, 9, 39, 64, 64, 64], dtype=torch.int32, device=DEVICE)
    layout = Packed(offsets, 30, 64)
    ranges = KeyRanges.of(Mask(queries=layout, keys=layout), 16)
    assert ranges.programs is not None
    assert ranges.programs.tolist() == [
        [0, 39, 0, 39, 0, 2], [0, 39, 0, 39, 1, 2], [39, 64, 39, 64, 0, 2], [39, 64, 39, 64, 1, 2],
    ]  # fmt: skip
