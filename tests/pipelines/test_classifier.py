"""A classifier takes images in any form, and every form means the same."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.errors import UserError
from regard.pipelines.classifier import Classifier
from regard.pipelines.preprocessing import ImagePreprocessing

PREPROCESSING = {"classes": ("a", "b"), "size": 4, "channels": 3, "mean": (0.5,) * 3, "std": (0.2,) * 3}


@pytest.fixture(scope="module")
def classifier(image_run: Path) -> Classifier:
    return regard.Classifier.load(image_run)


def test_paths_pillow_and_arrays_mean_the_same(classifier: Classifier, painted: Path) -> None:
    path = painted / "test" / "red" / "004.png"
    image = Image.open(path)
    first = classifier(path)
    assert first[0][0] == "red"
    assert sum(probability for _, probability in first) == pytest.approx(1)
    for form in (str(path), image, np.asarray(image), image.convert("RGBA")):
        assert classifier(form) == first
    assert classifier([path, str(path)], top=1) == [first[:1], first[:1]]
    assert classifier([]) == []


def test_company_changes_nothing(classifier: Classifier, painted: Path) -> None:
    paths = sorted((painted / "test").rglob("*.png"))
    together = classifier.probabilities([*paths, *paths, *paths])  # several batches
    assert together.shape == (90, 3)
    assert np.allclose(together[:30], together[60:], atol=1e-6)
    assert np.allclose(together[7], classifier.probabilities([paths[7]])[0], atol=1e-6)


def test_features_are_what_the_head_reads(classifier: Classifier, painted: Path) -> None:
    import torch

    paths = [painted / "test" / "red" / "004.png", painted / "test" / "blue" / "001.png"]
    features = torch.from_numpy(classifier.embed(paths))
    assert features.shape == (2, 16)
    said = classifier.model.head(features).softmax(1).detach().numpy()
    assert np.allclose(said, classifier.probabilities(paths), atol=1e-5)
    assert classifier.embed([]).shape == (0, 16)


def test_images_of_any_size_and_colour_are_read(classifier: Classifier) -> None:
    grey = np.full((30, 50), 90, np.uint8)
    assert classifier.preprocessing.open(grey).shape == (8, 8, 3)
    assert len(classifier(Image.new("CMYK", (3, 90)))) == 3


def odd_images() -> dict[str, tuple[Image.Image, dict[str, object]]]:
    """Images of which not only the pixels count, and how they are written as PNG."""
    turned = Image.Exif()
    turned[0x0112] = 6
    half = Image.new("RGB", (8, 8), "red")
    half.paste("blue", (0, 0, 4, 8))
    clear = half.convert("RGBA")
    clear.putalpha(Image.new("L", clear.size, 40))
    deep = Image.fromarray(np.full((8, 8), 33000, np.uint16))
    return {"turned": (half, {"exif": turned}), "clear": (clear, {}), "deep": (deep, {})}


@pytest.mark.parametrize("name", sorted(odd_images()))
def test_an_image_of_pillow_is_seen_as_its_file_is(name: str, classifier: Classifier, tmp_path: Path) -> None:
    image, options = odd_images()[name]
    image.save(tmp_path / "odd.png", **options)
    seen = classifier.preprocessing.open(tmp_path / "odd.png")
    with Image.open(tmp_path / "odd.png") as opened:
        assert np.array_equal(classifier.preprocessing.open(opened), seen)
    plain = classifier.preprocessing.open(np.asarray(image.convert("RGB")))
    assert not np.array_equal(plain, seen), "an image that is odd in no way shows nothing"


def test_a_damaged_image_of_pillow_is_named(classifier: Classifier, painted: Path, tmp_path: Path) -> None:
    content = (painted / "test" / "red" / "000.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    with Image.open(tmp_path / "cut.png") as image, pytest.raises(UserError, match=r"cut\.png: truncated or damaged"):
        classifier(image)
    with pytest.raises(UserError, match="image: is 0×4, without a single pixel"):
        classifier(Image.new("RGB", (0, 4)))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (np.zeros((4, 4, 3)), r"must be uint8 .* found 4 × 4 × 3 float64"),
        (np.zeros((4, 4, 2), np.uint8), "4 × 4 × 2 uint8"),
        (np.zeros((0, 4, 3), np.uint8), "0 × 4 × 3 uint8"),
        (3, "expected an image as a path, a Pillow image or an array, found int"),
        (Path("nowhere.png"), r"nowhere\.png: cannot be read \(No such file"),
    ],
)
def test_what_is_no_image_is_refused(image: object, said: str, classifier: Classifier) -> None:
    with pytest.raises(UserError, match=said):
        classifier(image)  # type: ignore[call-overload]


def test_a_grey_model_reads_colour() -> None:
    preprocessing = ImagePreprocessing.parse(PREPROCESSING | {"channels": 1, "mean": (0.5,), "std": (0.2,)}, "test")
    assert preprocessing.open(np.zeros((4, 4, 3), np.uint8)).shape == (4, 4, 1)
    assert preprocessing.normalise([preprocessing.open(np.full((4, 4), 255, np.uint8))]).flatten()[0] == pytest.approx(
        2.5
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean": (0.5,)}, "3 channels need as many values"),
        ({"std": (0.2, 0.0, 0.1)}, "std: every value must be greater than 0"),
        ({"classes": ("a", "a")}, "a name is repeated"),
        ({"interpolation": "nearest"}, "interpolation"),
    ],
)
def test_a_wrong_reading_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ImagePreprocessing.parse(PREPROCESSING | change, "test")


def test_a_folder_whose_parts_do_not_belong_together_is_refused(image_run: Path, tmp_path: Path) -> None:
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


def test_what_is_saved_is_loaded(classifier: Classifier, painted: Path, tmp_path: Path) -> None:
    classifier.save(tmp_path)
    path = painted / "test" / "green" / "000.png"
    assert Classifier.load(tmp_path)(path) == classifier(path)


def test_a_translator_is_no_classifier_nor_the_other_way_round(trained_run: Path, image_run: Path) -> None:
    with pytest.raises(UserError, match="is a text model; use regard translate"):
        Classifier.load(trained_run)
    with pytest.raises(UserError, match="is an image model; use regard classify"):
        regard.Translator.load(image_run)
