"""Ragged arrays of tokens, tokenised corpora and their stores."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.array_store import DamagedStoreError, store_checksum
from regard.data.text.tokens import ParallelTokens, RaggedArray, open_token_store, write_token_store

ROWS = [[5, 6, 7], [], [8], [9, 10]]
MAX_VALUES = {"source": 300, "target": 70_000, "links": 255}

rows = st.lists(st.lists(st.integers(1, 99), max_size=6), max_size=8)
pairs = st.lists(st.tuples(*(st.lists(st.integers(0, top), max_size=5) for top in MAX_VALUES.values())), max_size=6)


def rows_of(ragged: RaggedArray) -> list[list[int]]:
    return [ragged.tokens[a:b].tolist() for a, b in zip(ragged.offsets, ragged.offsets[1:], strict=False)]


def chunk(rows: list[tuple[list[int], ...]]) -> ParallelTokens:
    columns = [RaggedArray.of([row[i] for row in rows]) for i in range(3)]
    return ParallelTokens(*columns, (len(rows),))


FIRST, SECOND = chunk([([1, 2], [3], [0, 0]), ([4], [5, 70_000], [])]), chunk([([6], [7], [])])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_token_store(tmp_path / "store", [[FIRST], [SECOND]], MAX_VALUES)
    return tmp_path / "store"


def test_rows_are_concatenated() -> None:
    ragged = RaggedArray.of(ROWS)
    assert ragged.tokens.tolist() == [5, 6, 7, 8, 9, 10]
    assert ragged.offsets.tolist() == [0, 3, 3, 4, 6]
    assert ragged.lengths.tolist() == [3, 0, 1, 2]
    assert len(ragged) == 4


@given(rows, st.data())
def test_take_returns_the_given_rows_in_order(given_rows: list[list[int]], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(given_rows) - 1), max_size=10)) if given_rows else []
    taken = RaggedArray.of(given_rows).take(np.array(indices, np.int64))
    assert rows_of(taken) == [given_rows[i] for i in indices]


@given(rows)
def test_padded_fills_rows_at_the_end(given_rows: list[list[int]]) -> None:
    matrix = RaggedArray.of(given_rows).padded(0)
    longest = max(map(len, given_rows), default=0)
    assert matrix.shape == (len(given_rows), longest)
    assert matrix.tolist() == [row + [0] * (longest - len(row)) for row in given_rows]


def test_padded_uses_the_given_value() -> None:
    assert RaggedArray.of([[1], [2, 3]]).padded(7).tolist() == [[1, 7], [2, 3]]


@given(st.lists(rows, max_size=4))
def test_concatenated_arrays_keep_their_order(parts: list[list[list[int]]]) -> None:
    joined = RaggedArray.concatenate([RaggedArray.of(part) for part in parts])
    assert rows_of(joined) == [row for part in parts for row in part]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=60), st.data())
def test_lengths_have_the_order_of_the_rows(lengths: list[tuple[int, int]], data: st.DataObject) -> None:
    sides = [RaggedArray.of([[1] * length for length in side]) for side in zip(*lengths, strict=True)]
    tokens = ParallelTokens(*sides, None, (len(lengths),))
    rows = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.data.text.tokens.LENGTH_ROWS", 7)
        source, target = tokens.lengths_at(np.array(rows, np.int64))
        assert list(zip(source, target, strict=True)) == [lengths[row] for row in rows]
        patch.setattr("regard.data.text.tokens.SCAN_ROWS", 10)
        longest = tokens.longest_pairs(5)
    sizes = sorted((max(s, t - 1), s + t) for s, t in lengths)[::-1]
    assert [(max(lengths[row][0], lengths[row][1] - 1), sum(lengths[row])) for row in longest] == sizes[:5]


@given(corpora=st.lists(st.lists(pairs, max_size=3), min_size=1, max_size=3))
@settings(max_examples=30)
def test_chunks_are_read_back_as_one_corpus(
    corpora: list[list[list[tuple[list[int], ...]]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store") / "new"
    write_token_store(folder, ([chunk(part) for part in corpus] for corpus in corpora), MAX_VALUES)
    tokens = open_token_store(folder)
    expected = [row for corpus in corpora for part in corpus for row in part]
    assert tokens.sizes == tuple(sum(map(len, corpus)) for corpus in corpora)
    for number, column in enumerate(tokens.columns.values()):
        assert rows_of(column) == [row[number] for row in expected]


def test_the_store_uses_the_smallest_data_types(folder: Path) -> None:
    tokens = open_token_store(folder)
    assert [column.tokens.dtype for column in tokens.columns.values()] == [np.uint16, np.uint32, np.uint8]
    assert tokens.source.take(np.array([0])).tokens.dtype == np.int32


def test_alignment_links_are_optional(tmp_path: Path) -> None:
    write_token_store(tmp_path / "s", [[chunk([([1], [2], [])])]], {"source": 9, "target": 9})
    assert open_token_store(tmp_path / "s").links is None


def test_released_pages_are_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.text.tokens.RELEASE_ABOVE", 0)
    tokens = open_token_store(folder)
    before = rows_of(tokens.target)
    tokens.release_pages()
    assert rows_of(tokens.target) == before


@pytest.mark.parametrize("name", ["source.npy", "source.offsets.npy", "target.npy", "target.offsets.npy", "links.npy"])
def test_missing_files_are_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DamagedStoreError, match=name.replace(".", r"\.")):
        open_token_store(folder)


def test_the_checksum_depends_on_the_division_into_corpora(folder: Path, tmp_path: Path) -> None:
    write_token_store(tmp_path / "same", [[FIRST], [SECOND]], MAX_VALUES)
    write_token_store(tmp_path / "joined", [[FIRST, SECOND]], MAX_VALUES)
    assert store_checksum(tmp_path / "same") == store_checksum(folder) != store_checksum(tmp_path / "joined")
