import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decoding.top_k import CHUNK, top


@settings(max_examples=30)
@given(rows=st.integers(1, 5), vocabulary=st.integers(1, 6_000), count=st.integers(1, 10), seed=st.integers(0, 99))
def test_the_highest_are_found_however_long_the_row(rows: int, vocabulary: int, count: int, seed: int) -> None:
    count = min(count, vocabulary)
    x = torch.rand(rows, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values, places = top(x, count)
    expected = x.topk(count, -1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


@pytest.mark.parametrize("place", [0, CHUNK - 1, 40 * CHUNK - 1, 40 * CHUNK, 40 * CHUNK + 6])
def test_also_at_the_borders_of_chunks(place: int) -> None:
    x = torch.rand(2, 40 * CHUNK + 7, generator=torch.Generator().manual_seed(0))
    x[1, place] = 2
    assert top(x, 4)[1][1, 0] == place
