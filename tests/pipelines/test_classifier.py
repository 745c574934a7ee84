"""`Classifier` and the preprocessing of images."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.data.images.preprocessing import ImagePreprocessing
from regard.errors import UserError
from regard.pipelines.classifier import Classifier

PREPROCESSING = {"classes": ("a", "b"), "size": 4, "channels": 3, "mean": (0.5,) * 3, "std": (0.2,) * 3}


@pytest.fixture(scope="module")
def classifier(image_run: Path) -> Classifier:
    return regard.Classifier.load(image_run)


def test_paths_pillow_images_and_arrays_give_the_same_result(classifier: Classifier, painted: Path) -> None:
    path = painted / "test" / "red" / "004.png"
    image = Image.open(path)
    first = classifier(path)
    assert first[0][0] == "red"
    assert sum(probability for _, probability in first) == pytest.approx(1)
    for form in (str(path), image, np.asarray(image), image.convert("RGBA")):
        assert classifier(form) == first
    assert classifier([path, str(path)], top=1) == [first[:1], first[:1]]
    assert classifier([]) == []


def test_result_does_not_depend_on_the_batch(classifier: Classifier, painted: Path) -> None:
    paths = sorted((painted / "test").rglob("*.png"))
    batched = classifier.probabilities([*paths, *paths, *paths])  # several batches
    assert batched.shape == (90, 3)
    assert np.allclose(batched[:30], batched[60:], atol=1e-6)
    assert np.allclose(batched[7], classifier.probabilities([paths[7]])[0], atol=1e-6)


def test_features_are_the_input_of_the_head(classifier: Classifier, painted: Path) -> None:
    import torch

    paths = [painted / "test" / "red" / "004.png", painted / "test" / "blue" / "001.png"]
    features = torch.from_numpy(classifier.embed(paths))
    assert features.shape == (2, 16)
    probabilities = classifier.model.head(features).softmax(1).detach().numpy()
    assert np.allclose(probabilities, classifier.probabilities(paths), atol=1e-5)
    assert classifier.embed([]).shape == (0, 16)


def test_images_of_any_size_and_mode_are_accepted(classifier: Classifier) -> None:
    grey = np.full((30, 50), 90, np.uint8)
    assert classifier.preprocessing.open(grey).shape == (8, 8, 3)
    assert len(classifier(Image.new("CMYK", (3, 90)))) == 3


def unusual_images() -> dict[str, tuple[Image.Image, dict[str, object]]]:
    """Return images with rotation, transparency or 16 bits, and the options for saving them as PNG."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    half = Image.new("RGB", (8, 8), "red")
    half.paste("blue", (0, 0, 4, 8))
    transparent = half.convert("RGBA")
    transparent.putalpha(Image.new("L", transparent.size, 40))
    deep = Image.fromarray(np.full((8, 8), 33000, np.uint16))
    return {"rotated": (half, {"exif": rotated}), "transparent": (transparent, {}), "16 bits": (deep, {})}


@pytest.mark.parametrize("name", sorted(unusual_images()))
def test_pillow_image_is_read_like_its_file(name: str, classifier: Classifier, tmp_path: Path) -> None:
    image, options = unusual_images()[name]
    image.save(tmp_path / "image.png", **options)
    expected = classifier.preprocessing.open(tmp_path / "image.png")
    with Image.open(tmp_path / "image.png") as opened:
        assert np.array_equal(classifier.preprocessing.open(opened), expected)
    plain = classifier.preprocessing.open(np.asarray(image.convert("RGB")))
    assert not np.array_equal(plain, expected), "the image must differ from plain RGB"


def test_damaged_pillow_image_is_rejected_by_name(classifier: Classifier, painted: Path, tmp_path: Path) -> None:
    content = (painted / "test" / "red" / "000.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with Image.open(tmp_path / "cut.png") as image, pytest.raises(UserError, match=r"cut\.png: truncated or damaged"):
        classifier(image)
    with pytest.raises(UserError, match="image: is 0×4, without a single pixel"):
        classifier(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)), r"must be uint8 .* found 4 × 4 × 3 float64"),
        (np.zeros((4, 4, 2), np.uint8), "4 × 4 × 2 uint8"),
        (np.zeros((0, 4, 3), np.uint8), "0 × 4 × 3 uint8"),
        (3, "expected an image as a path, a Pillow image or an array, found int"),
        (Path("nowhere.png"), r"nowhere\.png: cannot be read \(no such file"),
    ],
)
def test_invalid_image_is_rejected(image: object, message: str, classifier: Classifier) -> None:
    with pytest.raises(UserError, match=message):
        classifier(image)  # type: ignore[call-overload]


def test_grey_model_accepts_colour_images() -> None:
    preprocessing = ImagePreprocessing.parse(PREPROCESSING | {"channels": 1, "mean": (0.5,), "std": (0.2,)}, "test")
    assert preprocessing.open(np.zeros((4, 4, 3), np.uint8)).shape == (4, 4, 1)
    assert preprocessing.normalise([preprocessing.open(np.full((4, 4), 255, np.uint8))]).flatten()[0] == pytest.approx(
        2.5
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": (0.5,)}, "3 channels need as many values"),
        ({"std": (0.2, 0.0, 0.1)}, "std: every value must be greater than 0"),
        ({"classes": ("a", "a")}, "a name is repeated"),
        ({"interpolation": "nearest"}, "interpolation"),
    ],
)
def test_invalid_preprocessing_is_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ImagePreprocessing.parse(PREPROCESSING | change, "test")


def test_inconsistent_folder_is_rejected(image_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(image_run / "best", folder)
    config = folder / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"red"', '"red", "rose"'))
    with pytest.raises(UserError, match=r"states 4 classes and 3 channels, but the model has 3 and 3"):
        Classifier.load(folder)
    config.write_text(text.replace('"images"', '"pictures"'))
    with pytest.raises(UserError, match=r"config\.json: images: expected keys and values"):
        Classifier.load(folder)


def test_saved_classifier_gives_the_same_result_after_loading(
    classifier: Classifier, painted: Path, tmp_path: Path
) -> None:
    classifier.save(tmp_path)
    path = painted / "test" / "green" / "000.png"
    assert Classifier.load(tmp_path)(path) == classifier(path)


def test_model_of_another_kind_is_rejected(trained_run: Path, image_run: Path) -> None:
    with pytest.raises(UserError, match="is a text model; use regard translate"):
        Classifier.load(trained_run)
    with pytest.raises(UserError, match="is an image model; use regard classify"):
        regard.Translator.load(image_run)
