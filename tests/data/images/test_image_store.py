"""Image stores: decoding once, skipped images, streaming and resizing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.images import image_store
from regard.data.images.datasets import StreamedImages, TensorImages, prefetch_batches
from regard.data.images.image_sets import ImageSet, ImageSettings, open_images
from regard.data.images.image_store import has_pixels, open_image_store, should_store, stored_names, write_image_store
from regard.data.images.preprocessing import Resize
from regard.errors import UserError
from regard.models.folder import replace_folder
from tests.data.images.helpers import encoded, folder_of_classes, random_pixels, write

RESIZE = Resize(6)


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    return open_images(folder_of_classes(tmp_path / "set", {"a": 70, "b": 80}), ImageSettings())


@pytest.fixture
def folder(images: ImageSet, tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    assert write_image_store(tmp_path / "store", images, RESIZE, max_bad=0.01, threads=3) == 0
    return tmp_path / "store"


def test_every_image_is_stored_resized(images: ImageSet, folder: Path) -> None:
    dataset = open_image_store(folder)
    assert (len(dataset), dataset.shape, dataset.classes) == (150, (3, 6, 6), ("a", "b"))
    assert dataset.labels.tolist() == images.labels.tolist()
    batch = dataset.take(torch.tensor([149, 0, 77]))
    for row, index in enumerate((149, 0, 77)):
        assert np.array_equal(batch[row].permute(1, 2, 0), RESIZE(images.read(index)))
    assert np.load(folder / "pixels.npy").shape == (150, 3, 6, 6)


def test_streamed_and_stored_images_are_equal(images: ImageSet, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "checked").mkdir()
    write_image_store(tmp_path / "checked", images, RESIZE, max_bad=0.01, store_pixels=False)
    streamed = open_image_store(tmp_path / "checked", images)
    assert isinstance(streamed, StreamedImages)
    assert not (tmp_path / "checked" / "pixels.npy").exists()
    indices = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    assert torch.equal(streamed.take(indices), open_image_store(folder).take(indices))
    assert torch.equal(streamed.labels, open_image_store(folder).labels)
    assert has_pixels(folder) and not has_pixels(tmp_path / "checked")
    with pytest.raises(UserError, match="the store has no pixels"):
        open_image_store(tmp_path / "checked")


def test_prefetched_batches_are_equal_to_the_planned_ones(folder: Path) -> None:
    dataset, plan = open_image_store(folder), torch.randperm(150).split(32)
    for batch, indices in zip(prefetch_batches(dataset, plan), plan, strict=True):
        assert torch.equal(batch, dataset.take(indices))


def test_a_dataset_can_be_moved_to_a_device(folder: Path) -> None:
    dataset = open_image_store(folder)
    assert isinstance(dataset, TensorImages)
    assert torch.equal(dataset.to("cpu").take(torch.tensor([3])), dataset.take(torch.tensor([3])))


@pytest.mark.parametrize("store_pixels", [True, False])
def test_bad_images_are_skipped_and_listed(tmp_path: Path, store_pixels: bool) -> None:
    root = folder_of_classes(tmp_path / "set", {"a": 90, "b": 110})
    write(root / "a" / "3.png", b"only text")
    write(root / "b" / "x.png", encoded()[:60])
    images = open_images(root, ImageSettings())
    assert len(images) == 201
    (tmp_path / "store").mkdir()
    assert write_image_store(tmp_path / "store", images, RESIZE, max_bad=0.01, store_pixels=store_pixels) == 2
    dataset = open_image_store(tmp_path / "store", images)
    assert (len(dataset), dataset.labels.bincount().tolist()) == (199, [89, 110])
    assert np.array_equal(dataset.take(torch.tensor([3]))[0].permute(1, 2, 0), RESIZE(images.read(4)))
    assert stored_names(tmp_path / "store", images) == [images.name(i) for i in range(201) if i not in (3, 200)]
    title, first, second = (tmp_path / "store" / "skipped.tsv").read_text().splitlines()
    assert title == "image\treason"
    assert first.split("\t") == [str(root / "a" / "3.png"), "a text file, not an image"]
    assert "x.png\ttruncated or damaged" in second


def test_too_many_bad_images_are_rejected(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "set", {"a": 9, "b": 9})
    for number in range(2):
        write(root / "a" / f"{number}.png", b"only text")
    (tmp_path / "store").mkdir()
    with pytest.raises(
        UserError, match=r"2 of the first 18 images cannot be decoded, more than allowed.*a/0.png: a text file"
    ):
        write_image_store(tmp_path / "store", open_images(root, ImageSettings()), RESIZE, max_bad=0.05)
    write(root / "a" / "0.png", encoded())
    with pytest.raises(UserError, match=r"1 of the first 18 images"):
        write_image_store(tmp_path / "store", open_images(root, ImageSettings()), RESIZE, max_bad=0)


def test_share_of_bad_images_is_not_rounded_down(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "set", {"a": 50, "b": 50})
    for number in range(29):
        write(root / "a" / f"{number}.png", b"only text")
    images = open_images(root, ImageSettings())
    (tmp_path / "store").mkdir()
    assert write_image_store(tmp_path / "store", images, RESIZE, max_bad=0.29, store_pixels=False) == 29
    write(root / "a" / "29.png", b"only text")
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"30 of the first .* images cannot be decoded"):
        write_image_store(tmp_path / "other", images, RESIZE, max_bad=0.29, store_pixels=False)


def test_a_class_without_good_images_is_rejected(tmp_path: Path) -> None:
    root = folder_of_classes(tmp_path / "set", {"a": 9, "b": 1})
    write(root / "b" / "0.png", b"only text")
    (tmp_path / "store").mkdir()
    with pytest.raises(UserError, match=r"no image of class b can be decoded; for example: .*b/0.png: a text file"):
        write_image_store(tmp_path / "store", open_images(root, ImageSettings()), RESIZE, max_bad=0.5)


def test_interrupted_writing_leaves_no_store(images: ImageSet, tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replace_folder(tmp_path / "store") as fresh:
        write_image_store(fresh, images, RESIZE, max_bad=0, on_progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]


def test_a_store_made_from_other_images_is_rejected(images: ImageSet, folder: Path) -> None:
    with pytest.raises(UserError, match=r"not the images that .*store was made from"):
        open_image_store(folder, images.select([0, 1]))


def test_large_sets_are_not_stored(images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert should_store(images, RESIZE, tmp_path)
    monkeypatch.setattr(image_store, "MAX_BYTES", 150 * 3 * 36 - 1)
    assert not should_store(images, RESIZE, tmp_path)


def test_progress_is_reported(images: ImageSet, tmp_path: Path) -> None:
    reported: list[int] = []
    write_image_store(tmp_path, images, RESIZE, max_bad=0, on_progress=reported.append)
    assert reported == [64, 128, 150]


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_of_the_right_size_is_not_resized(channels: int) -> None:
    pixels = random_pixels(0, 6, 6, channels).reshape(6, 6, channels)
    assert RESIZE(pixels) is pixels


def test_resizing_crops_the_centre_or_squashes_the_image() -> None:
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    assert (Resize(10, "crop")(pixels) == 200).all()
    squashed = Resize(10, "squash")(pixels)
    assert squashed[5, 0, 0] == squashed[5, 9, 0] == 0
    expected = Image.fromarray(pixels).resize((10, 10), Image.Resampling.BICUBIC)
    assert np.array_equal(squashed, expected)


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_very_thin_images_can_be_resized(size: tuple[int, int]) -> None:
    assert Resize(32)(np.full((*size, 1), 9, np.uint8)).tolist() == np.full((32, 32, 1), 9).tolist()
