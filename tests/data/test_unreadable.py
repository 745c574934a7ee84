"""Files that become unreadable or were damaged while they are in use."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regard.config import Settings
from regard.data.array_store import DamagedStoreError
from regard.data.images import preprocessing
from regard.data.images.image_sets import ImageSettings, open_images
from regard.data.images.preprocessing import ImageError, _orientation, open_image
from regard.data.images.tar import _parse_label
from regard.data.text.tokens import ParallelTokens, RaggedArray, open_token_store, write_token_store
from regard.errors import UserError
from tests.data.images.helpers import encoded
from tests.data.images.test_formats import write_tar


def test_images_without_permission_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", refuse)
    with pytest.raises(ImageError, match=r"^a\.png: cannot be read \(Permission denied\)$"):
        open_image(b"content", "a.png")


def test_an_image_has_its_stored_orientation_unless_that_is_damaged() -> None:
    class Damaged:
        def getexif(self) -> None:
            raise SyntaxError("not a TIFF file")

    assert _orientation(Damaged()) == 1  # type: ignore[arg-type]
    exif = Image.Exif()
    exif[0x0112] = 6

    class Turned:
        def getexif(self) -> Image.Exif:
            return exif

    assert _orientation(Turned()) == 6  # type: ignore[arg-type]
    assert preprocessing.EXIF_ORIENTATION == 0x0112


def test_an_archive_that_shrinks_or_disappears_is_reported_for_each_image(tmp_path: Path) -> None:
    path = tmp_path / "train.tar"
    write_tar(path, {"a/1.png": encoded(0), "b/2.png": encoded(1)})
    source = open_images(path, ImageSettings()).source
    assert source.content(1) == encoded(1)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ImageError, match=r"b/2\.png: its file has become shorter"):
        source.content(1)
    path.unlink()
    with pytest.raises(ImageError, match=r"b/2\.png: cannot be read \(No such file or directory\)"):
        source.content(1)


@pytest.mark.parametrize(
    ("content", "suffix", "label"),
    [
        (b" 3\n", ".cls", "3"),
        (b" \n", ".cls", None),
        (b"\xff", ".cls", None),
        (b"{", ".json", None),
        (b"[3]", ".json", None),
        (b'{"cls": [3]}', ".json", None),
        (b'{"other": 3}', ".json", None),
        (b'{"label": 3}', ".json", "3"),
        (b'{"label": "cat"}', ".json", "cat"),
    ],
)
def test_labels_are_text_or_json(content: bytes, suffix: str, label: str | None) -> None:
    assert _parse_label(content, suffix) == label


def test_a_store_without_the_offsets_of_its_alignments_is_damaged(tmp_path: Path) -> None:
    row = RaggedArray(np.array([5, 6]), np.array([0, 2]))
    links = RaggedArray(np.array([0, 1]), np.array([0, 2]))
    write_token_store(
        tmp_path / "store", [[ParallelTokens(row, row, links, (1,))]], {"source": 9, "target": 9, "links": 9}
    )
    assert open_token_store(tmp_path / "store").links is not None
    (header,) = (path for path in (tmp_path / "store").iterdir() if path.suffix == ".json")
    values = json.loads(header.read_text())
    assert values["arrays"].pop("links.offsets.npy")
    header.write_text(json.dumps(values))
    with pytest.raises(DamagedStoreError, match=r"links\.offsets\.npy is missing"):
        open_token_store(tmp_path / "store")


def test_errors_about_other_sequences_keep_the_message_of_the_library() -> None:
    from pydantic import Field

    class Names(Settings):
        names: list[str] = Field(["a"], max_length=1)

    with pytest.raises(UserError, match=r"names: list should have at most 1 item"):
        Names.parse({"names": ["a", "b"]}, "test")
