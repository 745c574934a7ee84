"""Stores: arrays written as a stream, opened memory-mapped, with damage detected."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard.data.array_store import DESCRIPTION, DamagedStoreError, Store, StoreWriter, open_store, store_checksum


def write(folder: Path, chunks: int = 1) -> Path:
    with StoreWriter(folder) as store:
        numbers, matrices = store.add_array("numbers", np.uint16), store.add_array("matrices", np.float32, (2, 3))
        for chunk in np.split(np.arange(6), chunks):
            numbers.append(chunk)
            matrices.append(np.ones((len(chunk), 2, 3)) * chunk[:, None, None])
        store.metadata["names"] = ["a", "b"]
    return folder


def read(folder: Path) -> Store:
    return open_store(folder, ("numbers", "matrices"), {"names": list})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "store")


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_appended_chunks_are_read_as_one_array(tmp_path: Path, chunks: int) -> None:
    store = read(write(tmp_path / "store", chunks))
    assert store.arrays["numbers"].tolist() == [0, 1, 2, 3, 4, 5]
    assert store.arrays["matrices"].shape == (6, 2, 3)
    assert store.arrays["matrices"][4].tolist() == [[4.0] * 3] * 2
    assert store.metadata == {"names": ["a", "b"]}


def test_files_are_plain_npy_arrays_opened_read_only(folder: Path) -> None:
    assert np.load(folder / "numbers.npy").tolist() == [0, 1, 2, 3, 4, 5]
    assert not read(folder).arrays["numbers"].flags.writeable


def test_an_error_while_writing_leaves_no_description(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path) as store:
        store.add_array("numbers", np.uint16)
        raise KeyboardInterrupt
    with pytest.raises(DamagedStoreError, match=r"store.json cannot be read"):
        open_store(tmp_path, (), ())


def test_a_copy_with_other_modification_times_is_accepted(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)
    assert read(copy).arrays["numbers"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["numbers.npy", "matrices.npy"])
def test_damaged_files_are_detected_and_named(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for damaged in (b"", content[:-1], content + b"x", b"x" + content[1:], content[:-1] + bytes([content[-1] ^ 1])):
        (folder / name).write_bytes(damaged)
        os.utime(folder / name, ns=(0, 0))
        with pytest.raises(DamagedStoreError, match=name.replace(".", r"\.")):
            read(folder)
    (folder / name).unlink()
    with pytest.raises(DamagedStoreError, match=name.replace(".", r"\.")):
        read(folder)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "{}", "[" * 10**5, '{"format": 99}', '{"format": 2, "arrays": {}}'),
        '{"format": 2, "arrays": [], "metadata": {}}',
        '{"format": 2, "arrays": {"a.npy": {}}, "metadata": {}}',
    ],
    ids=len,
)
def test_a_damaged_description_is_detected(folder: Path, content: str) -> None:
    (folder / DESCRIPTION).write_text(content)
    with pytest.raises(DamagedStoreError, match=DESCRIPTION):
        read(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": ["names"]}, r"store\.json is incomplete"),
        ({"arrays": {"../a.npy": {"sha256": "x"}}}, r"store\.json does not describe \.\./a\.npy"),
        ({"arrays": {"/dev/zero": {"sha256": "x"}}}, r"store\.json does not describe /dev/zero"),
        ({"arrays": {"numbers.npy": {"sha256": ""}}}, r"store\.json does not describe numbers\.npy"),
    ],
)
def test_what_is_wrong_in_a_description_is_named(folder: Path, changes: dict[str, object], message: str) -> None:
    description = json.loads((folder / DESCRIPTION).read_text())
    (folder / DESCRIPTION).write_text(json.dumps(description | changes))
    with pytest.raises(DamagedStoreError, match=message):
        read(folder)


@pytest.mark.parametrize(
    "array",
    [np.array(1), np.ones((2, 3), order="F"), np.array([1, "a"], object), np.array(["a", "b"]), np.ones(2, complex)],
    ids=["scalar", "columns", "objects", "strings", "complex"],
)
def test_arrays_of_another_layout_are_detected(folder: Path, array: np.ndarray) -> None:
    path = folder / "numbers.npy"
    np.save(path, array)
    description = json.loads((folder / DESCRIPTION).read_text())
    description["arrays"]["numbers.npy"] |= {"bytes": path.stat().st_size, "length": 2}
    (folder / DESCRIPTION).write_text(json.dumps(description))
    with pytest.raises(DamagedStoreError, match=r"numbers\.npy"):
        read(folder)


@pytest.mark.parametrize("value", [None, 5, "ab", {"a": 1}])
def test_metadata_of_another_type_is_rejected(folder: Path, value: object) -> None:
    description = json.loads((folder / DESCRIPTION).read_text())
    description["metadata"]["names"] = value
    (folder / DESCRIPTION).write_text(json.dumps(description))
    with pytest.raises(DamagedStoreError, match="does not list names, or lists it incorrectly"):
        read(folder)


def test_messages_about_long_values_are_short(folder: Path) -> None:
    original = json.loads((folder / DESCRIPTION).read_text())
    long_array = original["arrays"]["numbers.npy"] | {"bytes": "9" * 10**5}
    for changed in (
        original | {"format": "9" * 10**5},
        original | {"arrays": original["arrays"] | {"numbers.npy": long_array}},
    ):
        (folder / DESCRIPTION).write_text(json.dumps(changed))
        with pytest.raises(DamagedStoreError) as error:
            read(folder)
        assert len(str(error.value)) < 150


@pytest.mark.parametrize(("group", "key"), [("arrays", "numbers.npy"), ("metadata", "names")])
def test_missing_entries_of_the_description_are_named(folder: Path, group: str, key: str) -> None:
    description = json.loads((folder / DESCRIPTION).read_text())
    del description[group][key]
    (folder / DESCRIPTION).write_text(json.dumps(description))
    with pytest.raises(DamagedStoreError, match=f"does not list {key}"):
        read(folder)


def test_the_checksum_depends_on_the_contents_only(folder: Path, tmp_path: Path) -> None:
    assert store_checksum(write(tmp_path / "chunked", 3)) == store_checksum(folder)
    with StoreWriter(tmp_path / "other") as store:
        store.add_array("numbers", np.uint16).append(np.arange(5))
    assert store_checksum(tmp_path / "other") != store_checksum(folder)
