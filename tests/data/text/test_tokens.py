import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.text.tokens import ParallelTokens, RaggedArray

ROWS = [[5, 6, 7], [], [8], [9, 10]]


def rows_of(ragged: RaggedArray) -> list[list[int]]:
    return [ragged.tokens[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


rows = st.lists(st.lists(st.integers(1, 99), max_size=6), max_size=8)


def test_rows_lie_end_to_end() -> None:
    ragged = RaggedArray.of(ROWS)
    assert ragged.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert ragged.offsets.tolist() == [0, 3, 3, 4, 6]
    assert ragged.lengths.tolist() == [3, 0, 1, 2]
    assert len(ragged) == 4


@given(rows, st.data())
def test_taken_rows_are_those_asked_for_in_their_order(given_rows: list[list[int]], data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, len(given_rows) - 1), max_size=10)) if given_rows else []
    taken = RaggedArray.of(given_rows).take(np.array(places, np.int64))
    assert rows_of(taken) == [given_rows[i] for i in places]


@given(rows)
def test_padded_rows_are_filled_up_at_the_end(given_rows: list[list[int]]) -> None:
    table = RaggedArray.of(given_rows).padded(0)
    longest = max(map(len, given_rows), default=0)
    assert table.shape == (len(given_rows), longest)
    assert table.tolist() == [row + [0] * (longest - len(row)) for row in given_rows]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=60), st.data())
def test_lengths_come_in_the_order_asked_for(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    sides = [RaggedArray.of([[1] * length for length in side]) for side in zip(*lengths, strict=True)]
    tokens = ParallelTokens(*sides, None, (len(lengths),))
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.data.text.tokens.PIECE", 7)
        source, target = tokens.lengths_at(np.array(rows, np.int64))
        assert list(zip(source, target, strict=True)) == [lengths[row] for row in rows]
        patch.setattr("regard.data.text.tokens.SCAN_ROWS", 10)
        longest = tokens.longest_pairs(5)
    sizes = sorted((max(s, t - 1), s + t) for s, t in lengths)[::-1]
    assert [(max(lengths[row][0], lengths[row][1] - 1), sum(lengths[row])) for row in longest] == sizes[:5]


def test_padding_is_the_asked_for_number() -> None:
    assert RaggedArray.of([[1], [2, 3]]).padded(7).tolist() == [[1, 7], [2, 3]]


@given(st.lists(rows, max_size=4))
def test_joined_parts_follow_each_other(parts: list[list[list[int]]]) -> None:
    joined = RaggedArray.join([RaggedArray.of(part) for part in parts])
    assert rows_of(joined) == [row for part in parts for row in part]
