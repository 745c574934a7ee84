import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text import store
from regard.data.text.store import DamagedStoreError, digest_store, open_store, write_store
from regard.data.text.tokens import ParallelTokens, RaggedArray
from tests.data.text.test_tokens import rows_of

LARGEST = {"source": 300, "target": 70_000, "links": 255}
Rows = list[list[int]]
rows = st.lists(st.tuples(*(st.lists(st.integers(0, top), max_size=5) for top in LARGEST.values())), max_size=6)


def chunk(rows: list[tuple[list[int], ...]]) -> ParallelTokens:
    columns = [RaggedArray.of([row[i] for row in rows]) for i in range(3)]
    return ParallelTokens(*columns, (len(rows),))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    write_store(folder, [[chunk([([1, 2], [3], [0, 0]), ([4], [5, 70_000], [])])], [chunk([([6], [7], [])])]], LARGEST)
    return folder


@given(corpora=st.lists(st.lists(rows, max_size=3), min_size=1, max_size=3))
@settings(max_examples=30)
def test_what_is_written_in_chunks_is_read_whole(
    corpora: list[list[list[tuple[list[int], ...]]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("store") / "new"
    write_store(folder, ([chunk(part) for part in corpus] for corpus in corpora), LARGEST)
    tokens = open_store(folder)
    everything = [row for corpus in corpora for part in corpus for row in part]
    assert tokens.sizes == tuple(sum(map(len, corpus)) for corpus in corpora)
    for number, column in enumerate(tokens.columns.values()):
        assert rows_of(column) == [row[number] for row in everything]


def test_numbers_take_no_more_bytes_than_they_need(made: Path) -> None:
    tokens = open_store(made)
    assert [column.tokens.dtype for column in tokens.columns.values()] == [np.uint16, np.uint32, np.uint8]
    assert tokens.source.take(np.array([0])).tokens.dtype == np.int32


def test_the_files_are_plain_arrays(made: Path) -> None:
    assert np.load(made / "source.npy").tolist() == [1, 2, 4, 6]
    assert np.load(made / "target.offsets.npy").tolist() == [0, 1, 3, 4]
    assert not open_store(made).source.tokens.flags.writeable


def test_without_links_none_are_kept(tmp_path: Path) -> None:
    write_store(tmp_path / "s", [[chunk([([1], [2], [])])]], {"source": 9, "target": 9})
    assert open_store(tmp_path / "s").links is None


def test_memory_that_was_let_go_comes_back(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "KEPT", 0)
    tokens = open_store(made)
    before = rows_of(tokens.target)
    tokens.release_pages()
    assert rows_of(tokens.target) == before


def test_a_copy_is_read_through_and_trusted(made: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(made, tmp_path / "copy", copy_function=shutil.copyfile)  # new times, same contents
    assert rows_of(open_store(copy).source) == rows_of(open_store(made).source)


@pytest.mark.parametrize("name", ["source.npy", "source.offsets.npy", "target.npy", "target.offsets.npy", "links.npy"])
def test_damage_is_found_and_named(made: Path, name: str) -> None:
    content = (made / name).read_bytes()
    for damaged in (b"", content[:-1], content + b"x", b"x" + content[1:], content[:-1] + bytes([content[-1] ^ 1])):
        (made / name).write_bytes(damaged)
        os.utime(made / name, ns=(0, 0))
        with pytest.raises(DamagedStoreError, match=name.replace(".", r"\.")):
            open_store(made)
    (made / name).unlink()
    with pytest.raises(DamagedStoreError, match=name.replace(".", r"\.")):
        open_store(made)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 99}', '{"format": 1, "arrays": {}, "sizes": []}'])
def test_a_damaged_description_is_found(made: Path, content: str) -> None:
    (made / "store.json").write_text(content)
    with pytest.raises(DamagedStoreError):
        open_store(made)


def test_a_description_without_an_array_is_found(made: Path) -> None:
    description = json.loads((made / "store.json").read_text())
    del description["arrays"]["source.offsets.npy"]
    (made / "store.json").write_text(json.dumps(description))
    with pytest.raises(DamagedStoreError, match=r"source\.offsets\.npy"):
        open_store(made)


def test_the_checksum_depends_on_the_contents_alone(made: Path, tmp_path: Path) -> None:
    one, other = [chunk([([1, 2], [3], [0, 0]), ([4], [5, 70_000], [])])], [chunk([([6], [7], [])])]
    write_store(tmp_path / "same", [one, other], LARGEST)
    write_store(tmp_path / "parted", [one + other], LARGEST)
    assert digest_store(tmp_path / "same") == digest_store(made) != digest_store(tmp_path / "parted")
