"""Image folders: classes, splits, hidden files, held-out images and fingerprints."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.images.folders import list_images
from regard.data.images.image_sets import ImageSettings, open_images, open_splits
from regard.data.images.preprocessing import ImageError, decode_image
from regard.data.images.sources import natural_sort_key
from regard.errors import UserError
from tests.data.images.helpers import encoded, folder_of_classes, random_pixels, write

SETTINGS = ImageSettings()


def test_classes_are_folders_in_natural_order(tmp_path: Path) -> None:
    images = open_images(folder_of_classes(tmp_path / "set", {"10": 1, "9": 2, "Cat": 1, "bee": 1}), SETTINGS)
    assert images.classes == ("9", "10", "bee", "Cat")
    assert images.labels.tolist() == [0, 0, 1, 2, 3]
    assert [images.name(i) for i in range(5)] == ["9/0.png", "9/1.png", "10/0.png", "bee/0.png", "Cat/0.png"]
    assert np.array_equal(images.read(0), random_pixels(1))


@given(st.lists(st.integers(0, 10**6)))
def test_natural_sort_orders_by_number(numbers: list[int]) -> None:
    assert sorted((f"a{n}.png" for n in numbers), key=natural_sort_key) == [f"a{n}.png" for n in sorted(numbers)]
    assert sorted((f"a{n:09}" for n in numbers), key=natural_sort_key) == [f"a{n:09}" for n in sorted(numbers)]


def test_natural_sort_accepts_numbers_of_any_length() -> None:
    names = ["1" * 5000, "2", "10", "x2", "x10", "02"]
    assert sorted(names, key=natural_sort_key) == ["02", "2", "10", "1" * 5000, "x2", "x10"]


def test_images_in_subfolders_and_upper_case_suffixes_are_found(tmp_path: Path) -> None:
    write(tmp_path / "a" / "x" / "y" / "1.PNG", encoded())
    write(tmp_path / "b" / "2.JpEg", encoded(1, "JPEG"))
    images = open_images(tmp_path, SETTINGS)
    assert images.classes == ("a", "b")
    assert images.name(0) == "a/x/y/1.PNG"


def test_other_files_are_ignored_and_counted(tmp_path: Path) -> None:
    folder_of_classes(tmp_path, {"a": 4, "b": 4})
    write(tmp_path / "a" / "notes.txt", b"x")
    write(tmp_path / "README.md", b"x")
    write(tmp_path / "loose.png", encoded())
    write(tmp_path / "a" / ".DS_Store", b"x")
    write(tmp_path / ".ipynb_checkpoints" / "1.png", encoded())
    write(tmp_path / "__MACOSX" / "a" / "0.png", b"x")
    splits = open_splits(tmp_path, SETTINGS)
    assert splits.train.classes == ("a", "b")
    assert len(splits.train) + len(splits.valid) == 8
    assert splits.ignored == 3


def test_an_empty_class_folder_is_rejected(tmp_path: Path) -> None:
    folder_of_classes(tmp_path, {"a": 2, "b": 2, "zebra": 0})
    with pytest.raises(UserError, match=r"zebra: this class folder contains no images; add some or remove the folder"):
        open_splits(tmp_path, SETTINGS)


def test_a_class_may_be_missing_from_the_test_split_only(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train", {"a": 2, "b": 2})
    folder_of_classes(tmp_path / "test", {"a": 2, "b": 0})
    assert open_images(tmp_path, SETTINGS, "test").classes == ("a", "b")
    folder_of_classes(tmp_path / "test", {"c": 1})
    with pytest.raises(UserError, match="class c has no training images"):
        open_splits(tmp_path, SETTINGS)


@pytest.mark.parametrize("outer", ["", "imagenette2/"])
def test_splits_are_folders_above_the_classes(tmp_path: Path, outer: str) -> None:
    for split, count in (("Train", 3), ("val", 2), ("test", 1), ("junk", 1)):
        folder_of_classes(tmp_path / outer / split, {"a": count, "b": count})
    splits = open_splits(tmp_path, SETTINGS)
    assert splits.test is not None
    assert [len(part) for part in (splits.train, splits.valid, splits.test)] == [6, 4, 2]
    assert splits.validation == "given"
    assert splits.ignored == 2
    assert open_images(tmp_path, SETTINGS, "valid").name(0) == f"{outer}val/a/0.png"


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    splits = open_splits(folder_of_classes(tmp_path, {"test": 3, "run": 3}), SETTINGS)
    assert splits.train.classes == ("run", "test")
    assert splits.test is None


def test_images_of_each_class_are_held_out_if_there_is_no_validation_split(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train", {"a": 40, "b": 3})
    folder_of_classes(tmp_path / "test", {"a": 1, "b": 1})
    splits = open_splits(tmp_path, SETTINGS)
    assert splits.validation == "held out"
    assert np.bincount(splits.valid.labels).tolist() == [4, 1]
    assert np.bincount(splits.train.labels).tolist() == [36, 2]
    assert not set(splits.valid.names()) & set(splits.train.names())


def test_held_out_images_stay_the_same_when_another_class_is_added(tmp_path: Path) -> None:
    before = set(open_splits(folder_of_classes(tmp_path, {"a": 20, "b": 10}), SETTINGS).valid.names())
    folder_of_classes(tmp_path, {"a": 20, "c": 50})
    after = set(open_splits(tmp_path, SETTINGS).valid.names())
    assert {name for name in after if not name.startswith("c")} == before


def test_test_images_are_used_for_validation_if_nothing_is_held_out(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train", {"a": 2, "b": 2})
    folder_of_classes(tmp_path / "test", {"a": 1, "b": 1})
    splits = open_splits(tmp_path, ImageSettings(hold_out=0))
    assert (len(splits.train), len(splits.valid), splits.validation) == (4, 2, "test")
    with pytest.raises(UserError, match="hold_out must be greater than 0"):
        open_splits(tmp_path / "train", ImageSettings(hold_out=0))


def test_a_class_with_one_image_is_too_small_to_split(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="class b has 1 images; it needs 2"):
        open_splits(folder_of_classes(tmp_path, {"a": 2, "b": 1}), SETTINGS)


def test_a_single_class_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has only one class, a; at least two"):
        open_splits(folder_of_classes(tmp_path, {"a": 5}), SETTINGS)


def test_images_without_class_folders_are_rejected(tmp_path: Path) -> None:
    write(tmp_path / "1.png", encoded())
    with pytest.raises(UserError, match=r"no images in class folders .* found 1 images and 0 other files"):
        open_images(tmp_path, SETTINGS)
    with pytest.raises(UserError, match="no such file or folder"):
        open_images(tmp_path / "gone", SETTINGS)


def test_a_missing_split_is_rejected(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "train", {"a": 2, "b": 2})
    with pytest.raises(UserError, match="no split test; it has train"):
        open_images(tmp_path, SETTINGS, "test")


def test_a_link_to_itself_and_a_pipe_are_bad_images(tmp_path: Path) -> None:
    folder_of_classes(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "a" / "z.png").symlink_to(tmp_path / "a" / "z.png")
    os.mkfifo(tmp_path / "b" / "z.png")
    images = open_images(tmp_path, ImageSettings())
    assert len(images) == 4
    for index, reason in ((1, "symbolic links"), (3, "is a pipe, but must be a regular file")):
        with pytest.raises(ImageError, match=rf"z\.png: cannot be read \(.*{reason}"):
            images.read(index)
        with pytest.raises(ImageError, match=rf"z\.png: cannot be read \(.*{reason}"):
            decode_image(tmp_path / images.name(index))


def test_large_image_files_are_not_read(tmp_path: Path) -> None:
    folder_of_classes(tmp_path, {"a": 1, "b": 1})
    with (tmp_path / "a" / "z.png").open("wb") as file:
        file.truncate(2**36)
    images = open_images(tmp_path, ImageSettings())
    with pytest.raises(ImageError, match=r"z\.png: cannot be read \(has 68,719,476,736 bytes, but"):
        images.read(1)


def test_symbolic_links_are_followed_without_cycles(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "elsewhere", {"a": 1})
    folder_of_classes(tmp_path / "set", {"b": 1})
    (tmp_path / "set" / "a").symlink_to(tmp_path / "elsewhere" / "a")
    (tmp_path / "set" / "b" / "back").symlink_to(tmp_path / "set")
    assert [path.name for path in list_images(tmp_path / "set")] == ["0.png", "0.png"]


def test_grey_images_have_one_channel_by_default(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name / "1.png", encoded(channels=1))
    assert open_images(tmp_path, SETTINGS).read(0).shape == (6, 8, 1)
    assert open_images(tmp_path, ImageSettings(channels=3)).read(0).shape == (6, 8, 3)
    write(tmp_path / "a" / "2.png", encoded())
    assert open_images(tmp_path, SETTINGS).channels == 3


def test_the_fingerprint_depends_on_the_contents_and_not_on_the_location(tmp_path: Path) -> None:
    first = open_images(folder_of_classes(tmp_path / "one", {"a": 2, "b": 2}), SETTINGS).fingerprint()
    second = open_images(folder_of_classes(tmp_path / "two", {"a": 2, "b": 2}), SETTINGS)
    os.utime(tmp_path / "two" / "a" / "0.png", (1, 1))
    assert second.fingerprint() == first
    assert second.select([0, 1, 2]).fingerprint() != first
    assert second.with_classes(["b", "a"]).fingerprint() != first
    write(tmp_path / "two" / "a" / "0.png", encoded(99))
    changed = second.fingerprint()
    assert changed != first
    (tmp_path / "two" / "a" / "0.png").unlink()
    assert second.fingerprint() not in (first, changed)


def test_labels_can_refer_to_the_classes_of_a_model(tmp_path: Path) -> None:
    images = open_images(folder_of_classes(tmp_path, {"a": 1, "b": 2}), SETTINGS)
    assert images.with_classes(["c", "b", "a"]).labels.tolist() == [2, 1, 1]
    with pytest.raises(UserError, match="class a is unknown; the known classes are b, c"):
        images.with_classes(["b", "c"])
    assert images.select([1]).with_classes(["b", "c"]).labels.tolist() == [0]


def test_a_folder_without_images_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no images"):
        list_images(tmp_path)


def test_unreadable_folder_is_rejected_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_classes(tmp_path / "set", {"a": 1, "b": 1})
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "b":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=r"b: cannot be read \(Permission denied\)$"):
        open_images(tmp_path / "set", SETTINGS)
