"""Sums of the rows of each word against PyTorch's own, however often each word comes."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from regard.ops import embedding_backward as adding
from regard.ops.dispatch import TRITON_INSTALLED
from regard.ops.embedding_backward import Reading, add_up_rows

pytestmark = pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
WORDS = 6


def in_chunks(chunk: int, *readings: Reading, words: int = WORDS, onto: Tensor | None = None) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adding, "CHUNK", chunk)
        return add_up_rows(readings, words, onto=onto)


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 14), min_size=WORDS, max_size=WORDS),
    chunk=st.integers(1, 5),
    share=st.one_of(st.none(), st.floats(0, 1)),
    onto=st.booleans(),
    seed=st.integers(),
)
def test_no_row_is_lost_or_added_twice(
    counts: list[int], chunk: int, share: float | None, onto: bool, seed: int
) -> None:
    source = torch.Generator().manual_seed(seed % 2**32)
    tokens = torch.repeat_interleave(torch.arange(WORDS), torch.tensor(counts))
    tokens = tokens[torch.randperm(len(tokens), generator=source)].to(DEVICE)
    grad = torch.randint(-9, 10, (len(tokens), 3), generator=source).to(DEVICE, torch.float32)  # sums are exact
    there = torch.randint(-9, 10, (WORDS, 3), generator=source).to(DEVICE, torch.float32) if onto else None
    expected = torch.zeros(WORDS, 3, device=DEVICE) if there is None else there.clone()
    expected.index_add_(0, tokens, grad)
    cut = len(tokens) if share is None else round(share * len(tokens))
    readings = [Reading(grad[:cut], tokens[:cut]), Reading(grad[cut:], tokens[cut:])]
    found = in_chunks(chunk, *readings[: 1 if share is None else 2], onto=there)
    assert torch.equal(found, expected)
    assert there is None or found is there


def test_rows_of_what_is_no_word_are_left_out() -> None:
    tokens = torch.tensor([-1, 2, WORDS, 2, 1] * 7 + [WORDS + 5, 2**16 + 3, -(2**16) + 3] * 9, device=DEVICE)
    found = in_chunks(4, Reading(torch.ones(len(tokens), 2, device=DEVICE), tokens))
    assert found[:, 0].tolist() == [0, 7, 14, 0, 0, 0]


def test_words_that_were_not_read_are_left_alone() -> None:
    there = torch.full((WORDS, 2), float("nan"), device=DEVICE)
    there[2] = 1
    tokens = torch.tensor([2, 2, 2], device=DEVICE)
    found = in_chunks(2, Reading(torch.ones(3, 2, device=DEVICE), tokens), onto=there)
    assert found[:, 0].isnan().tolist() == [True, True, False, True, True, True]
    assert found[2].tolist() == [4, 4]


def test_many_words_are_sorted_as_larger_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([5, 1, 5, 0, -1, 9], device=DEVICE)
    found = []
    for few in (WORDS, WORDS - 1):
        monkeypatch.setattr(adding, "FEW", few)
        assert adding._write_keys(tokens, None, WORDS).tolist() == [5, 1, 5, 0, 6, 6]
        found.append(in_chunks(2, Reading(torch.arange(12.0, device=DEVICE).view(6, 2), tokens)))
    assert torch.equal(*found)


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_of_usual_size_is_the_same_to_the_bit_every_time(dtype: torch.dtype) -> None:
    source = torch.Generator().manual_seed(0)
    tokens = (32_000 * torch.rand(25_344, generator=source) ** 4).long().to(DEVICE)
    grad = torch.randn(25_344, 512, generator=source).to(DEVICE, dtype)
    first = add_up_rows([Reading(grad, tokens)], 32_000)
    assert all(torch.equal(add_up_rows([Reading(grad, tokens)], 32_000), first) for _ in range(5))
    exact = torch.zeros(32_000, 512, dtype=torch.float64, device=DEVICE).index_add_(0, tokens, grad.double())
    torch.testing.assert_close(first.double(), exact, atol=1e-3, rtol=1e-5)
