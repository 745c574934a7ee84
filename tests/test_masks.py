from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.core import attend
from regard.masks import Mask, Packed, Padded

CPU = torch.device("cpu")


def table(mask: Mask, T: int, S: int) -> list[list[int]]:
    """Return the mask of the first row and head, 1 where attention is allowed."""
    allowed = mask.dense(T, S, CPU)
    assert allowed is not None
    return allowed[0, 0].int().tolist()


# Layouts


def test_padded_rows_are_as_long_as_the_longest_sequence() -> None:
    layout = Padded.of([3, 1])
    assert layout.size == layout.longest == 3
    assert layout.real().tolist() == [[True] * 3, [True, False, False]]
    assert layout.positions().tolist() == [[0, 1, 2]]


def test_padded_rows_may_be_longer_than_the_longest_sequence() -> None:
    assert Padded.of(torch.tensor([2, 0]), 4).real().int().tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]


def test_padded_rejects_a_sequence_longer_than_the_row() -> None:
    with pytest.raises(ValueError, match="a row of 4 tokens cannot hold a sequence of 5"):
        Padded.of([2, 5], 4)


def test_padded_rows_can_be_selected_repeated_and_reordered() -> None:
    chosen = Padded.of([3, 1, 2], 5).select(torch.tensor([2, 0, 2]))
    assert chosen.lengths.tolist() == [2, 3, 2]
    assert chosen.size == 5


def test_packed_layout_returns_segments_and_positions() -> None:
    layout = Packed.of([3, 0, 2])
    assert layout.offsets.tolist() == [0, 3, 3, 5]
    assert layout.offsets.dtype == torch.int32  # required by varlen_attn
    assert (layout.longest, layout.size) == (3, 5)
    assert layout.lengths.tolist() == [3, 0, 2]
    assert layout.segments().tolist() == [0, 0, 0, 2, 2]
    assert layout.positions().tolist() == [[0, 1, 2, 0, 1]]


@pytest.mark.parametrize("layout", [Padded.of([3, 1], 4), Packed.of([3, 0, 2])], ids=["padded", "packed"])
def test_layouts_can_be_moved_between_devices(layout: Padded | Packed) -> None:
    moved = layout.to(torch.device("meta"))
    assert (moved.lengths.device.type, moved.longest) == ("meta", layout.longest)
    back = layout.to(CPU)
    assert torch.equal(back.lengths, layout.lengths)
    assert torch.equal(back.positions(), layout.positions())


# Masks


def test_empty_mask_allows_everything_and_builds_no_tensor() -> None:
    assert Mask().dense(3, 4, CPU) is None
    assert Mask().fully_masked(3, 4, CPU) is None
    assert Mask(window=(None, None)).dense(3, 4, CPU) is None


def test_causal_mask_excludes_later_keys() -> None:
    assert table(Mask(causal=True), 3, 3) == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_causal_mask_is_aligned_to_the_end_of_the_keys() -> None:
    assert table(Mask(causal=True), 2, 4) == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert table(Mask(causal=True), 1, 4) == [[1, 1, 1, 1]]
    assert table(Mask(causal=True), 3, 2) == [[0, 0], [1, 0], [1, 1]]


def test_window_is_aligned_to_the_end_of_the_keys() -> None:
    assert table(Mask(window=(1, 0)), 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert table(Mask(window=(0, 1)), 2, 4) == [[0, 0, 1, 1], [0, 0, 0, 1]]
    assert table(Mask(window=(1, 5), causal=True), 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_packed_causal_mask_is_aligned_to_the_end_of_each_sequence() -> None:
    mask = Mask(queries=Packed.of([1, 2]), keys=Packed.of([2, 3]), causal=True)
    assert table(mask, 3, 5) == [[1, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


def test_fully_masked_returns_queries_without_keys() -> None:
    mask = Mask(keys=Padded.of([2, 0], 2))
    assert mask.fully_masked(3, 2, CPU).flatten().tolist() == [False, True]  # type: ignore[union-attr]
    assert Mask(causal=True).fully_masked(3, 2, CPU).flatten().tolist() == [True, False, False]  # type: ignore[union-attr]


def test_mask_tensor_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Mask(causal=True)
    first = mask.dense(3, 3, CPU)
    forbid_dense(monkeypatch)
    assert mask.dense(3, 3, CPU) is first


def test_mask_tensors_of_different_sizes_are_built_separately() -> None:
    mask = Mask(causal=True)
    assert table(mask, 2, 2) == [[1, 0], [1, 1]]
    assert table(mask, 1, 2) == [[1, 1]]
    assert table(mask, 3, 2) == [[0, 0], [1, 0], [1, 1]]
    assert mask.fully_masked(2, 2, CPU).flatten().tolist() == [False, False]  # type: ignore[union-attr]
    assert mask.fully_masked(3, 2, CPU).flatten().tolist() == [True, False, False]  # type: ignore[union-attr]


def test_packed_layout_may_hold_no_sequences() -> None:
    layout = Packed.of([])
    assert (layout.offsets.tolist(), layout.longest, layout.size) == ([0], 0, 0)
    assert layout.segments().tolist() == []
    assert layout.positions().tolist() == [[]]


# Combination


SIZE = 5
PARTS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (2, 3)},
    "other window": {"window": (3, 1)},
    "half window": {"window": (None, 2)},
    "padding": {"keys": Padded.of([5, 2], SIZE)},
    "dense": {"allowed": torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) < 0.5},
    "other dense": {"allowed": torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1)) < 0.5},
    "everything": {},
}


@pytest.mark.parametrize("one", PARTS)
@pytest.mark.parametrize("other", PARTS)
def test_combined_mask_allows_what_both_masks_allow(one: str, other: str) -> None:
    mine, theirs = Mask(**PARTS[one]), Mask(**PARTS[other])
    combined = (mine & theirs).dense(SIZE, SIZE, CPU)
    parts = [allowed for allowed in (mine.dense(SIZE, SIZE, CPU), theirs.dense(SIZE, SIZE, CPU)) if allowed is not None]
    if not parts:
        assert combined is None
    else:
        assert combined is not None
        expected = parts[0] & parts[-1]
        assert torch.equal(*torch.broadcast_tensors(combined, expected))


def test_packed_mask_can_be_combined_with_a_causal_mask() -> None:
    layout = Packed.of([2, 1])
    combined = Mask(queries=layout, keys=layout) & Mask(causal=True)
    assert combined.packed
    assert table(combined, 3, 3) == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_combined_mask_keeps_the_beam_width() -> None:
    beam, window = Mask(causal=True, beam_width=2), Mask(window=(1, 0))
    expected = table(Mask(causal=True, window=(1, 0), beam_width=2), 2, 5)
    assert expected == [[0, 1, 1, 1, 1], [0, 1, 1, 1, 1]]  # a shared first token, then two hypotheses per position
    assert table(beam & window, 2, 5) == table(window & beam, 2, 5) == expected


def test_combining_masks_does_not_change_them() -> None:
    causal, window = Mask(causal=True), Mask(window=(0, 1))
    _ = causal & window
    assert table(causal, 2, 2) == [[1, 0], [1, 1]]
    assert table(window, 2, 2) == [[1, 1], [0, 1]]


def test_masks_with_different_layouts_cannot_be_combined() -> None:
    with pytest.raises(ValueError, match="different layouts of keys"):
        _ = Mask(keys=Padded.of([1, 2])) & Mask(keys=Padded.of([1, 2]))


# Symbolic masks


def forbid_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Tensor:
        raise AssertionError("a tensor was built from a mask that could stay symbolic")

    monkeypatch.setattr(Mask, "_build_dense", fail)


@pytest.mark.parametrize(("T", "S"), [(6, 6), (1, 6), (1, 1)])
def test_causal_attention_builds_no_mask_tensor(T: int, S: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(2, 2, T, 4), torch.randn(2, 2, S, 4)
    expected = attend(q, k, k, Mask(causal=True), implementation="reference")
    forbid_dense(monkeypatch)
    torch.testing.assert_close(attend(q, k, k, Mask(causal=True)), expected)
    with pytest.raises(AssertionError, match="symbolic"):
        attend(q, k, k, Mask(causal=True), implementation="reference")


def test_mask_of_a_padded_decoder_is_causal_only() -> None:
    layout = Padded.of([3, 1])
    mask = Mask.between(layout, layout, causal=True)
    assert mask.causal
    assert mask.keys is None
    assert mask.queries is layout


def test_between_keeps_layouts_that_are_needed() -> None:
    one, other, packed = Padded.of([3, 1]), Padded.of([2, 2]), Packed.of([3, 1])
    assert Mask.between(one, one).keys is one
    assert Mask.between(one, other, causal=True).keys is other
    assert Mask.between(packed, packed, causal=True).keys is packed
    assert Mask.between(packed, packed, causal=True).causal
    assert Mask.between(None, None).dense(3, 3, CPU) is None


# Errors


def test_mixed_layouts_are_rejected() -> None:
    with pytest.raises(ValueError, match="both be packed or both be padded"):
        Mask(queries=Packed.of([2]), keys=Padded.of([2]))
    with pytest.raises(ValueError, match="both be packed or both be padded"):
        Mask(keys=Packed.of([2]))
    with pytest.raises(ValueError, match="both be packed or both be padded"):
        Mask(queries=Packed.of([2]))


def test_packed_layouts_of_different_batches_are_rejected() -> None:
    with pytest.raises(ValueError, match="same number of sequences"):
        Mask(queries=Packed.of([2, 1]), keys=Packed.of([3]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_dense_mask_that_is_not_boolean_is_rejected(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match="allowed must be boolean"):
        Mask(allowed=torch.ones(2, 2, dtype=dtype))


# Properties


lengths = st.integers(1, 4).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 5), min_size=n, max_size=n) for _ in "qk"])
)
windows = st.none() | st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))


@settings(max_examples=150, derandomize=True)
@given(lengths, st.booleans(), windows)
def test_packed_mask_is_block_diagonal_in_the_masks_of_its_sequences(
    sizes: tuple[list[int], list[int]], causal: bool, window: tuple[int | None, int | None] | None
) -> None:
    queries, keys = sizes
    blocks = []
    for T, S in zip(queries, keys, strict=True):
        allowed = Mask(causal=causal, window=window).dense(T, S, CPU)
        blocks.append(torch.ones(T, S, dtype=torch.bool) if allowed is None else allowed[0, 0])
    packed = Mask(queries=Packed.of(queries), keys=Packed.of(keys), causal=causal, window=window)
    allowed = packed.dense(sum(queries), sum(keys), CPU)
    assert allowed is not None
    assert torch.equal(allowed[0, 0], torch.block_diag(*blocks).bool().view(sum(queries), sum(keys)))


def test_keys_with_a_layout_have_no_last_keys() -> None:
    with pytest.raises(ValueError, match="the last keys cannot be selected"):
        Mask(keys=Padded.of([3, 1])).last_keys(2)
