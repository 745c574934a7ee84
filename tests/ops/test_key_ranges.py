"""Which places a packed row's tokens see: the kernel against the formula, and the formula against the mask itself."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.masks import Mask, Packed, Window
from regard.ops import dispatch
from regard.ops.key_ranges import KeyRanges, find_by_formula, find_by_kernel

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BOUNDS = st.none() | st.integers(0, 9)
LENGTHS = st.integers(0, 30) | st.integers(60, 200)
ROWS = st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=8).filter(
    lambda row: all(map(sum, zip(*row, strict=True)))
)


def layouts(row: Sequence[tuple[int, int]]) -> tuple[Packed, Packed]:
    queries, keys = (Packed.of(lengths, DEVICE) for lengths in zip(*row, strict=True))
    return queries, keys


def stands_between(begin: Tensor | None, end: Tensor | None, size: int) -> Tensor:
    assert begin is not None
    assert end is not None
    place = torch.arange(size, device=DEVICE)
    return (begin[0, :, None] <= place) & (place < end[0, :, None])


@settings(max_examples=40, derandomize=True)
@given(row=ROWS, reach=st.tuples(BOUNDS, BOUNDS))
def test_runs_say_what_the_mask_says(row: list[tuple[int, int]], reach: Window) -> None:
    queries, keys = layouts(row)
    mask = Mask(queries=queries, keys=keys, window=reach)
    may = mask.dense(queries.size, keys.size, DEVICE)
    assert may is not None
    runs = find_by_formula(queries, keys, mask.reach)
    assert torch.equal(stands_between(runs.first_key, runs.end_key, keys.size), may[0, 0])
    assert torch.equal(stands_between(runs.first_query, runs.end_query, queries.size), may[0, 0].T)


@settings(max_examples=12, derandomize=True)
@given(row=ROWS, reach=st.tuples(BOUNDS, BOUNDS), slot=st.sampled_from([1, 7, 32, 1000]))
def test_the_kernel_finds_what_the_formula_finds(row: list[tuple[int, int]], reach: Window, slot: int) -> None:
    queries, keys = layouts(row)
    by_kernel, by_formula = (find(queries, keys, reach, slot) for find in (find_by_kernel, find_by_formula))
    for mine, theirs in zip(by_kernel, by_formula, strict=True):
        assert mine is not None
        assert theirs is not None
        assert mine.dtype == theirs.dtype == torch.int32
        assert torch.equal(mine, theirs)


@settings(max_examples=40, derandomize=True)
@given(row=ROWS, slot=st.sampled_from([1, 16, 32, 1000]))
def test_slots_have_whole_sequences_and_between_them_every_place_once(row: list[tuple[int, int]], slot: int) -> None:
    queries, keys = layouts(row)
    runs = find_by_formula(queries, keys, (None, None), slot)
    assert runs.programs is not None
    table = runs.programs.tolist()
    for layout, begin, end in ((queries, 0, 1), (keys, 2, 3)):
        owned = [(slots[begin], slots[end]) for slots in table if slots[4] == 0]
        assert [first for first, _ in owned] == [0, *(last for _, last in owned[:-1])]
        assert owned[-1][1] == layout.size
        assert {place for places in owned for place in places} <= set(layout.offsets.tolist())
    for place, (*_, part, sharing) in enumerate(table):
        helpers = table[place - part : place - part + sharing]
        assert [slots[4] for slots in helpers] == list(range(sharing))
        assert all(slots[:4] == table[place][:4] for slots in helpers)


def test_no_slot_has_much_more_work_than_the_others() -> None:
    queries, keys = layouts([(10, 12)] * 20 + [(300, 3), (0, 90), (1, 1)])
    slots = find_by_formula(queries, keys, (None, None), 32).programs
    assert slots is not None
    work = (slots[:, 1] - slots[:, 0] + slots[:, 3] - slots[:, 2]) / slots[:, 5]
    assert work.max() < 2 * 64  # places of both sides: what begins in a slot, and the sequence that leads out of it


def test_sequences_of_padding_at_the_end_and_empty_ones_behind_them_are_found() -> None:
    offsets = torch.tensor([0, 5, 9, 39, 64, 64, 64], dtype=torch.int32, device=DEVICE)
    layout = Packed(offsets, 30, 64)
    runs = KeyRanges.of(Mask(queries=layout, keys=layout), 16)
    assert runs.programs is not None
    assert runs.programs.tolist() == [
        [0, 39, 0, 39, 0, 2], [0, 39, 0, 39, 1, 2], [39, 64, 39, 64, 0, 2], [39, 64, 39, 64, 1, 2],
    ]  # fmt: skip
