"""Image sets in idx, CSV, Parquet and tar files."""

import gzip
import io
import json
import os
import re
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.images.image_sets import ImageSet, ImageSettings, open_images, open_splits
from regard.data.images.preprocessing import ImageError
from regard.data.images.sources import TempStorage
from regard.errors import UserError
from tests.data.images.helpers import encoded, folder_of_classes, random_pixels, write

SETTINGS = ImageSettings()


def contents(images: ImageSet) -> list[tuple[str, bytes]]:
    """Return the class and the pixels of every image."""
    return [(images.classes[images.labels[index]], images.read(index).tobytes()) for index in range(len(images))]


def pixels(seed: int) -> bytes:
    return random_pixels(seed).tobytes()


# Idx


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, name: str, count: int, suffix: str = "", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 5, 4), np.uint8)
    pack = gzip.compress if suffix else bytes
    write(folder / f"{name}-images-idx3-ubyte{suffix}", pack(idx(images)))
    write(folder / f"{name}-labels-idx1-ubyte{suffix}", pack(idx(np.arange(count) % 3)))
    return images


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_in_a_folder_are_splits(tmp_path: Path, suffix: str) -> None:
    train, test = write_idx(tmp_path, "train", 30, suffix), write_idx(tmp_path, "t10k", 6, suffix, seed=1)
    splits = open_splits(tmp_path, ImageSettings(hold_out=0))
    assert splits.test is not None
    assert (len(splits.train), len(splits.test), splits.train.channels) == (30, 6, 1)
    assert splits.train.classes == ("0", "1", "2")
    assert splits.train.labels.tolist() == [index % 3 for index in range(30)]
    assert np.array_equal(splits.train.read(29)[..., 0], train[29])
    assert np.array_equal(splits.test.read(2)[..., 0], test[2])
    assert splits.test.name(2) == f"t10k-images-idx3-ubyte{suffix}[2]"


def test_a_single_idx_file_can_be_read_as_colour(tmp_path: Path) -> None:
    train = write_idx(tmp_path, "train", 6, ".gz")
    write_idx(tmp_path, "t10k", 3)
    images = open_images(tmp_path / "train-images-idx3-ubyte.gz", ImageSettings(channels=3))
    assert len(images) == 6
    assert np.array_equal(images.read(1), train[1][..., None].repeat(3, 2))


def test_errors_of_an_idx_image_name_the_folder(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6)
    images = open_images(tmp_path, ImageSettings())
    os.truncate(tmp_path / "train-images-idx3-ubyte", 20)
    with pytest.raises(UserError, match=re.escape(f"{tmp_path}: train-images-idx3-ubyte[5]: its file has become")):
        images.read(5)


def test_damaged_idx_files_are_named(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6)
    path = tmp_path / "train-images-idx3-ubyte"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte: has 135 bytes, but its header requires 136"):
        open_images(tmp_path, SETTINGS)
    path.write_bytes(b"hello world")
    with pytest.raises(UserError, match="not an idx file of bytes"):
        open_images(tmp_path, SETTINGS)
    path.write_bytes(content)
    write(tmp_path / "train-labels-idx1-ubyte", idx(np.arange(5)))
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte: has 5 labels, but train-images-idx3-ubyte has 6"):
        open_images(tmp_path, SETTINGS)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="the labels are missing; train-labels-idx1-ubyte must be in the same folder"):
        open_images(tmp_path, SETTINGS)


def test_idx_files_of_images_without_pixels_are_rejected(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6)
    write(tmp_path / "train-images-idx3-ubyte", idx(np.zeros((6, 0, 4), np.uint8)))
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte: has arrays of shape \[0, 4\]"):
        open_images(tmp_path, SETTINGS)


def test_no_more_of_a_compressed_idx_file_is_unpacked_than_its_header_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, "train", 6, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + bytes(2**22)))
    unpacked = []
    append = TempStorage.append
    monkeypatch.setattr(TempStorage, "append", lambda *given: unpacked.append(append(*given)) or unpacked[-1])
    with pytest.raises(UserError, match=r"\.gz: has more bytes, but its header requires 136; download it again"):
        open_images(tmp_path, SETTINGS)
    assert [location.size for location in unpacked] == [137]


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, "train", 6, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz: truncated"):
        open_images(tmp_path, SETTINGS)


# CSV


def test_csv_and_tsv_files_contain_relative_paths(tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path / "files" / f"{seed}.png", encoded(seed))
    rows = "\ufeffid,path,label\n7,files/0.png,dog\n8,files/1.png,cat\n9,files/2.png,dog\n"
    write(tmp_path / "set.csv", rows.encode())
    images = open_images(tmp_path / "set.csv", SETTINGS)
    assert contents(images) == [("dog", pixels(0)), ("cat", pixels(1)), ("dog", pixels(2))]
    assert images.classes == ("cat", "dog")
    write(tmp_path / "set.tsv", b"animal\twhere\tsplit\nb\tfiles/0.png\ttrain\na\tfiles/1.png\ttest\n")
    other = open_images(tmp_path / "set.tsv", ImageSettings(columns=("where", "animal")), "test")
    assert contents(other) == [("a", pixels(1))]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"where,what\na.png,x\n", r"no column with images \(.*path.*\); it has where, what: set data.columns"),
        (b"path,what\na.png,x\n", r"no column with labels"),
        (b"path,label\na.png,x\nb.png,\n", r"set.csv, line 3: path and label must not be empty"),
        (b"path,label\na.png\n", r"set.csv, line 2: path and label must not be empty"),
        (b"path,label,split\na.png,x,tomorrow\n", r"line 2: split is 'tomorrow', but must be train, valid or test"),
        (b"path,label\n", r"contains no images"),
        (b"path,label\na.png,x\nb.png,  \n", r"set.csv, line 3: path and label must not be empty"),
        (b"path,label\n ,x\n", r"set.csv, line 2: path and label must not be empty"),
        (b"", r"set.csv: is empty; the first line must contain the column names"),
        (b"path,label\n\xff\xfe,x\n", r"not a table in UTF-8"),
    ],
)
def test_an_invalid_csv_file_is_rejected(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        open_images(write(tmp_path / "set.csv", content), SETTINGS)


def test_images_without_a_split_are_rejected_if_others_have_one(tmp_path: Path) -> None:
    for seed in range(4):
        write(tmp_path / f"{seed}.png", encoded(seed))
    rows = "path,label,split\n0.png,a,train\n1.png,b,train\n2.png,a,\n3.png,b,test\n"
    write(tmp_path / "set.csv", rows.encode())
    with pytest.raises(
        UserError, match=r"set\.csv: 1 of 4 images belong to no split, for example 2\.png; assign train, valid"
    ):
        open_splits(tmp_path / "set.csv", SETTINGS)
    assert len(open_images(tmp_path / "set.csv", SETTINGS)) == 4
    write_parquet(tmp_path / "shards" / "train-0.parquet", [0, 1, 0, 1])
    write_parquet(tmp_path / "shards" / "more.parquet", [0, 1])
    with pytest.raises(UserError, match=r"shards: 2 of 6 images belong to no split, for example more\.parquet, row 1"):
        open_splits(tmp_path / "shards", SETTINGS)
    for name in ("train.tar", "more.tar"):
        write_tar(tmp_path / "tars" / name, {f"{n}.{kind}": data for n in "01" for kind, data in sample(n).items()})
    with pytest.raises(UserError, match=r"tars: 2 of 4 images belong to no split, for example more\.tar/0\.png"):
        open_splits(tmp_path / "tars", SETTINGS)


def sample(label: str) -> dict[str, bytes]:
    """Return an image and its label in the format of WebDataset."""
    return {"png": encoded(int(label)), "cls": label.encode()}


def test_a_missing_file_in_a_csv_is_an_image_error(tmp_path: Path) -> None:
    write(tmp_path / "set.csv", b"path,label\ngone.png,x\n")
    with pytest.raises(ImageError, match=r"gone\.png: cannot be read \(no such file"):
        open_images(tmp_path / "set.csv", SETTINGS).read(0)


# Parquet


def write_parquet(
    path: Path,
    labels: list[object],
    *,
    record: bool = True,
    names: list[str] | None = None,
    split: list[str | None] | None = None,
) -> Path:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files = [encoded(seed) for seed in range(len(labels))]
    images = [{"bytes": file, "path": f"{seed}.png"} for seed, file in enumerate(files)] if record else files
    table = pyarrow.table({"image": images, "label": labels} | ({} if split is None else {"split": split}))
    if names is not None:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=2)
    return path


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("labels", [[2, 0, 10], ["b", "a", "c"]])
def test_parquet_files_contain_images(tmp_path: Path, labels: list[object], record: bool) -> None:
    images = open_images(write_parquet(tmp_path / "set.parquet", labels, record=record), SETTINGS)
    assert contents(images) == [(str(label), pixels(seed)) for seed, label in enumerate(labels)]
    assert images.classes == (("0", "2", "10") if labels[0] == 2 else ("a", "b", "c"))
    assert images.name(2) == "set.parquet, row 3"


def test_parquet_labels_that_are_not_utf8_are_rejected(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "set.parquet", ["zebra", "ape", "zebra"])
    content = path.read_bytes()
    assert b"zebra" in content
    path.write_bytes(content.replace(b"zebra", b"zebr\xec"))
    with pytest.raises(UserError, match=r"set\.parquet: damaged or not a Parquet file \('utf-8' codec"):
        open_images(path, SETTINGS)


def test_parquet_metadata_define_the_names_and_order_of_classes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "set.parquet", [1, 0, 1], names=["zebra", "ape", "unused"])
    images = open_images(path, SETTINGS)
    assert images.classes == ("zebra", "ape")
    assert images.labels.tolist() == [1, 0, 1]


def test_the_names_of_parquet_shards_define_splits(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", [0, 1, 0, 1])
    write_parquet(tmp_path / "data" / "train-00001-of-00002.parquet", [0, 1])
    write_parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", [1])
    splits = open_splits(tmp_path, SETTINGS)
    assert (len(splits.train), len(splits.valid), splits.validation) == (6, 1, "given")


def test_a_parquet_column_defines_splits(tmp_path: Path) -> None:
    words = ["train", "train", "test", "train", "train", "validation", None, "test"]
    path = write_parquet(tmp_path / "set.parquet", [0, 1, 0, 1, 0, 1], split=words[:6])
    splits = open_splits(path, SETTINGS)
    assert splits.test is not None
    assert (len(splits.train), len(splits.valid), len(splits.test)) == (4, 1, 1)
    assert splits.test.name(0) == "set.parquet, row 3"
    write_parquet(tmp_path / "shards" / "train.parquet", [0, 1, 1, 0], split=words[4:])
    write_parquet(tmp_path / "shards" / "test.parquet", [0, 1])
    shards = open_splits(tmp_path / "shards", SETTINGS)  # the column takes precedence over the file name
    assert shards.test is not None
    assert (len(shards.train), len(shards.valid), len(shards.test)) == (2, 1, 3)
    with pytest.raises(UserError, match=r"a\.parquet, row 2: split is 'later', but must be train, valid or test"):
        open_images(write_parquet(tmp_path / "a.parquet", [0, 1], split=["train", "later"]), SETTINGS)


def test_an_invalid_parquet_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="row 2: the label is None"):
        open_images(write_parquet(tmp_path / "a.parquet", [1, None]), SETTINGS)
    with pytest.raises(UserError, match="row 1: the label is '  '"):
        open_images(write_parquet(tmp_path / "a.parquet", ["  ", "b"]), SETTINGS)
    with pytest.raises(UserError, match="row 1: the label is 5, but there are 2 classes"):
        open_images(write_parquet(tmp_path / "a.parquet", [5], names=["x", "y"]), SETTINGS)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"image": ["a.png"], "label": [1]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match="the column image has type string, but must contain images as bytes"):
        open_images(tmp_path / "b.parquet", SETTINGS)
    with pytest.raises(UserError, match="no column with labels"):
        open_images(tmp_path / "b.parquet", ImageSettings(columns=("image", "kind")))
    with pytest.raises(UserError, match=r"c\.parquet: damaged or not a Parquet file"):
        open_images(write(tmp_path / "c.parquet", b"x"), SETTINGS)


def test_a_missing_pyarrow_is_reported_with_the_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'regard\[data\]'"):
        open_images(write(tmp_path / "c.parquet", b"x"), SETTINGS)


# Tar


def write_tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz"), (".tgz", "w:gz")]
)
@pytest.mark.parametrize("outer", ["", "./cifar/"])
def test_tar_archives_of_class_folders(tmp_path: Path, suffix: str, mode: str, outer: str) -> None:
    members = {
        f"{outer}train/cat/1.png": encoded(0),
        f"{outer}train/dog/x/2.PNG": encoded(1),
        f"{outer}train/dog/.hidden.png": b"x",
        f"{outer}test/dog/3.png": encoded(2),
        f"{outer}README": b"x",
    }
    path = write_tar(tmp_path / f"set{suffix}", members, mode)
    assert contents(open_images(path, SETTINGS, "train")) == [("cat", pixels(0)), ("dog", pixels(1))]
    assert contents(open_images(path, SETTINGS, "test")) == [("dog", pixels(2))]


def test_a_folder_with_one_tar_archive(tmp_path: Path) -> None:
    write_tar(tmp_path / "set.tar.xz", {"a/1.png": encoded(0), "b/1.png": encoded(1)}, "w:xz")
    write(tmp_path / "README.md", b"x")
    assert open_images(tmp_path, SETTINGS).classes == ("a", "b")


def test_an_empty_class_folder_in_a_tar_archive_is_rejected(tmp_path: Path) -> None:
    folder_of_classes(tmp_path / "set", {"a": 1, "b": 1, "zebra": 0})
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        archive.add(tmp_path / "set", "set")
    with pytest.raises(UserError, match="zebra: this class folder contains no images"):
        open_images(tmp_path / "set.tar", SETTINGS)


def test_webdataset_shards(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "set-train-000.tar",
        {"x/0001.png": encoded(0), "x/0001.cls": b"3\n", "x/0002.json": b'{"label": "7"}', "x/0002.png": encoded(1)},
    )
    write_tar(tmp_path / "set-train-001.tar.gz", {"0001.png": encoded(2), "0001.cls": b"7"}, "w:gz")
    write_tar(tmp_path / "set-test-000.tar", {"0001.cls": b"3", "0001.seg.png": encoded(3)})
    assert contents(open_images(tmp_path, SETTINGS, "train")) == [("3", pixels(0)), ("7", pixels(1)), ("7", pixels(2))]
    test = open_images(tmp_path, SETTINGS, "test")
    assert contents(test) == [("3", pixels(3))]
    assert test.name(0) == "set-test-000.tar/0001.seg.png"


def test_names_of_tar_archives_of_class_folders_define_splits(tmp_path: Path) -> None:
    write_tar(tmp_path / "train.tar", {"a/1.png": encoded(0), "b/1.png": encoded(1)})
    write_tar(tmp_path / "test.tar", {"b/1.png": encoded(2)})
    assert contents(open_images(tmp_path, SETTINGS, "train")) == [("a", pixels(0)), ("b", pixels(1))]
    assert contents(open_images(tmp_path, SETTINGS, "test")) == [("b", pixels(2))]


def test_split_folders_take_precedence_over_names_of_tar_archives(tmp_path: Path) -> None:
    write_tar(tmp_path / "train-0.tar", {"train/a/1.png": encoded(0), "test/b/2.png": encoded(1)})
    write_tar(tmp_path / "train-1.tar", {"train/b/3.png": encoded(2)})
    assert contents(open_images(tmp_path, SETTINGS, "train")) == [("a", pixels(0)), ("b", pixels(2))]
    assert contents(open_images(tmp_path, SETTINGS, "test")) == [("b", pixels(1))]


@pytest.mark.parametrize("suffix", ["", "/"], ids=["file", "folder"])
def test_name_of_a_single_tar_archive_defines_no_split(tmp_path: Path, suffix: str) -> None:
    path = write_tar(tmp_path / "test.tar", {f"{name}/{n}.png": encoded(n) for name in "ab" for n in range(4)})
    splits = open_splits(path.parent if suffix else path, SETTINGS)
    assert (splits.validation, len(splits.train) + len(splits.valid)) == ("held out", 8)


def test_an_image_without_a_label_is_rejected(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {"1.png": encoded(0), "1.cls": b"3", "2.png": encoded(0), "2.json": b"[1]"})
    with pytest.raises(UserError, match=r"s\.tar: 2\.png has no label; 2\.cls or \.json must contain it"):
        open_images(path, SETTINGS)


@pytest.mark.parametrize(("suffix", "mode"), [(".tar", "w"), (".tar.gz", "w:gz"), (".tar.xz", "w:xz")])
def test_a_damaged_tar_archive_is_named(tmp_path: Path, suffix: str, mode: str) -> None:
    members = {f"{name}/{seed}.png": encoded(seed, width=40, height=40) for seed in range(4) for name in "ab"}
    path = write_tar(tmp_path / f"set{suffix}", members, mode)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"set{suffix}: truncated, damaged or not a tar file"):
        open_images(path, SETTINGS)
    path.write_bytes(b"no tar at all")
    with pytest.raises(UserError, match=rf"set{suffix}: truncated, damaged or not a tar file"):
        open_images(path, SETTINGS)


def test_compression_of_a_tar_archive_is_detected_by_its_content(tmp_path: Path) -> None:
    members = {"a/1.png": encoded(0), "b/1.png": encoded(1)}
    for suffix, mode in ((".tar", "w:gz"), (".tar.gz", "w:bz2"), (".tar.xz", "w"), (".tar.bz2", "w:xz")):
        path = write_tar(tmp_path / f"set{suffix}", members, mode)
        assert contents(open_images(path, SETTINGS)) == [("a", pixels(0)), ("b", pixels(1))]


def test_large_members_of_a_tar_archive_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    entry = tarfile.TarInfo("a/1.png")
    entry.size = 10**12
    path.write_bytes(entry.tobuf() + bytes(1024))
    with pytest.raises(UserError, match=r"set\.tar: a/1\.png has 1,000,000,000,000 bytes, more than an image may have"):
        open_images(path, SETTINGS)


def test_a_bad_image_in_a_tar_archive_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "set.tar", {"a/1.png": b"text", "b/1.png": encoded(0)})
    with pytest.raises(ImageError, match=r"set\.tar: a/1\.png: a text file, not an image"):
        open_images(path, SETTINGS).read(0)


# All formats


def test_other_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not an image set; it must be a folder of class folders"):
        open_images(write(tmp_path / "notes.txt", b"x"), SETTINGS)


def test_the_same_images_have_the_same_pixels_in_every_format(tmp_path: Path) -> None:
    folder = folder_of_classes(tmp_path / "folder", {"a": 2, "b": 2})
    files = {f"{name}/{n}.png": (folder / name / f"{n}.png").read_bytes() for name in "ab" for n in range(2)}
    write_tar(tmp_path / "set.tar.gz", files, "w:gz")
    write(tmp_path / "folder" / "set.csv", ("path,label\n" + "".join(f"{name},{name[0]}\n" for name in files)).encode())
    write_parquet(tmp_path / "set.parquet", ["a", "a", "b", "b"])
    paths = ("folder", "set.tar.gz", "folder/set.csv", "set.parquet")
    first, *others = [contents(open_images(tmp_path / name, SETTINGS)) for name in paths]
    assert all(other == first for other in others)


def test_colour_idx_files_can_be_read_as_grey(tmp_path: Path) -> None:
    colour = random_pixels(0, 4, 5)
    write(tmp_path / "train-images-idx4-ubyte", idx(colour[None]))
    write(tmp_path / "train-labels-idx1-ubyte", idx(np.zeros(1)))
    assert np.array_equal(open_images(tmp_path, SETTINGS).read(0), colour)
    grey = open_images(tmp_path, ImageSettings(channels=1)).read(0)
    assert np.array_equal(grey[..., 0], np.asarray(Image.fromarray(colour).convert("L")))
