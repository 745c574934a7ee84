"""`regard look` with translators, image classifiers and two-view models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.data.images.preprocessing import VIEWS, open_view
from regard.inspection.image_attention import global_attention
from regard.inspection.maps import layer_weights, rollout
from regard.inspection.overlay import overlays
from regard.inspection.two_view import SCALE, find_peaks
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import load_model, save_model
from regard.pipelines.classifier import Classifier
from tests.conftest import Command

SENTENCE = "I love apples"


@pytest.mark.parametrize(
    ("name", "first_bytes"), [("a.html", b"<!doctype html>"), ("b.PNG", b"\x89PNG"), ("c.svg", b"<?xml")]
)
def test_suffix_selects_the_format(
    command: Command, trained_run: Path, tmp_path: Path, name: str, first_bytes: bytes
) -> None:
    answer = command("look", trained_run, SENTENCE, "--out", tmp_path / name)
    assert answer.code == 0
    assert answer.out == f"我喜欢苹果\n{tmp_path / name}\n"
    assert (tmp_path / name).read_bytes().startswith(first_bytes)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_invalid_arguments_are_rejected_without_output(command: Command, trained_run: Path, tmp_path: Path) -> None:
    def error(*words: object) -> str:
        return command("look", *words).error

    assert "look.gif" in error(trained_run, SENTENCE, "--out", tmp_path / "look.gif")
    assert "does not exist" in error(trained_run, SENTENCE, "--out", tmp_path / "no" / "look.html")
    assert "decoder.1.cross" in error(trained_run, SENTENCE, "--out", tmp_path / "a.html", "--only", "decoder.9.cross")
    assert "blank" in error(trained_run, " ", "--out", tmp_path / "a.html")
    assert "no such model folder" in error(tmp_path / "nothing", SENTENCE, "--out", tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_page_does_not_contain_the_path_of_the_run(command: Command, trained_run: Path, tmp_path: Path) -> None:
    for run, name in ((trained_run, "toy"), (trained_run / "best", "toy/best")):
        assert command("look", run, SENTENCE, "--out", tmp_path / "look.html").code == 0
        page = (tmp_path / "look.html").read_text(encoding="utf-8")
        assert str(trained_run.parent) not in page
        assert json.dumps(f"{name} · en → zh") in page


def test_one_sentence_of_a_text_is_shown(command: Command, trained_run: Path, image_run: Path, tmp_path: Path) -> None:
    text, out = "I love apples! You buy tea", ("--out", tmp_path / "look.html")
    error = command("look", trained_run, text, *out).error
    assert error == (
        "the text has 2 sentences; choose one with --sentence 1 to 2, or show them as one sequence with --no-split"
    )
    assert command("look", trained_run, text, *out, "--sentence", 2).out.startswith("你买茶\n")
    whole = command("look", trained_run, text, *out, "--no-split")
    assert whole.out.startswith(regard.Translator.load(trained_run)(text, split=False))
    assert "the last sentence of the text is 2" in command("look", trained_run, text, *out, "--sentence", 3).error
    assert "for translators" in command("look", image_run, "x.png", "--no-split").error


def test_long_sentence_gives_a_warning(command: Command, trained_run: Path, tmp_path: Path) -> None:
    sentence = "I love apples " + "and tea " * 20
    answer = command("look", trained_run, sentence, "--out", tmp_path / "look.html", "--search", "max_length=9")
    assert "but the longest training source has" in answer.err
    assert answer.err.removeprefix("regard: ").strip() in (tmp_path / "look.html").read_text(encoding="utf-8")


def test_image_attention_is_drawn_as_png(command: Command, image_run: Path, painted: Path, tmp_path: Path) -> None:
    photo = next(path for path in sorted((painted / "test").rglob("*")) if path.is_file())
    answer = command("look", image_run, photo, "--out", tmp_path / "look.png")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(photo.parent.name)
    config = Classifier.load(image_run).model.config
    with Image.open(tmp_path / "look.png") as picture:
        panels = 1 + config.layers + config.heads
        assert picture.height > picture.width / 4 * (panels // 4)
    assert "written as .png" in command("look", image_run, photo, "--out", tmp_path / "look.html").error
    assert "nothing.png" in command("look", image_run, "nothing.png", "--out", tmp_path / "a.png").error
    assert [path.name for path in tmp_path.iterdir()] == ["look.png"]


def test_default_output_for_images_is_a_png(
    command: Command, image_run: Path, painted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("look", image_run, painted / "test" / "red" / "004.png")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "look.png"), answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["look.png"]


@pytest.fixture
def drawn_maps(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """Maps drawn over images, by title, one entry per call."""
    calls: list[dict[str, np.ndarray]] = []

    def record(pixels: np.ndarray, maps: dict[str, np.ndarray], **options: object) -> Image.Image:
        calls.append(maps)
        return overlays(pixels, maps, **options)

    monkeypatch.setattr("regard.inspection.overlay.overlays", record)
    return calls


def test_layers_and_heads_can_be_selected(
    command: Command,
    image_run: Path,
    swin_run: Path,
    painted: Path,
    tmp_path: Path,
    drawn_maps: list[dict[str, np.ndarray]],
) -> None:
    photo, out = painted / "test" / "red" / "004.png", ("--out", tmp_path / "a.png")
    assert command("look", image_run, photo, *out, "--only", "encoder.0.attention", "--head", 1).code == 0
    classifier = Classifier.load(image_run)
    with regard.probe(classifier.model) as records:
        classifier.predict([classifier.preprocessing.open(photo)])
    heads = global_attention(classifier.model, records).heads[0]
    assert list(drawn_maps[0]) == ["layer 0", "layer 0, head 1"]
    for title, expected in (("layer 0", heads.mean(0)), ("layer 0, head 1", heads[1])):
        np.testing.assert_allclose(drawn_maps[0][title].ravel(), expected / expected.max(), rtol=1e-4)
    assert command("look", image_run, photo, *out, "--head", 0).code == 0
    assert list(drawn_maps[1]) == ["up to layer 0", "layer 0, head 0"]
    name = "stages.0.blocks.1.attention"
    assert command("look", swin_run, photo, *out, "--only", name, "--patch", 3, 6).code == 0
    assert list(drawn_maps[2]) == [f"stage 0, layer 1{suffix}" for suffix in ("", ", head 0", ", head 1")]

    def error(*words: object) -> str:
        return command("look", *words, "--out", tmp_path / "b.png").error

    expected_message = "'x' is not an attention module of this model; it has encoder.0.attention"
    assert error(image_run, photo, "--only", "x") == expected_message
    assert error(image_run, photo, "--head", 2) == "encoder.0.attention has no head 2; it has heads 0 to 1"
    assert "give one image, not 2 arguments" in error(image_run, photo, photo)
    assert not (tmp_path / "b.png").exists()


def test_window_attention_is_drawn_for_swin(
    command: Command, swin_run: Path, trained_run: Path, painted: Path, tmp_path: Path
) -> None:
    photo = painted / "test" / "red" / "004.png"
    whole, patch = tmp_path / "whole.png", tmp_path / "patch.png"
    answer = command("look", swin_run, photo, "--out", whole)
    assert (answer.code, answer.out.split()[0]) == (0, "red"), answer.err
    assert command("look", swin_run, photo, "--out", patch, "--patch", 3, 6).code == 0
    with Image.open(whole) as whole_image, Image.open(patch) as patch_image:
        assert whole_image.size == patch_image.size
        rows = -(-(1 + 4 + 4) // 4)  # the image, four layers, four heads of the last layer
        assert whole_image.height == 8 + rows * (224 + 18 + 8)
        assert whole_image.tobytes() != patch_image.tobytes()
    message = command("look", swin_run, photo, "--out", patch, "--patch", 8, 0).error
    assert message == "patch 8,0 is outside this image; rows go from 0 to 7, columns from 0 to 7"
    assert "--patch" in command("look", trained_run, SENTENCE, "--out", whole, "--patch", 0, 0).error
    assert "--head" in command("look", trained_run, SENTENCE, "--out", whole, "--head", 0).error


def test_attention_of_a_patch_replaces_that_of_the_class_token(image_run: Path, painted: Path) -> None:
    classifier = Classifier.load(image_run)
    pixels = classifier.preprocessing.open(painted / "test" / "red" / "004.png")
    with regard.probe(classifier.model) as records:
        classifier.predict([pixels])
    prefix = classifier.model.config.prefix_tokens
    weights = layer_weights(records)[0][0]
    attention = global_attention(classifier.model, records, (1, 0))
    token = prefix + classifier.model.config.grid[1]
    np.testing.assert_allclose(attention.heads[0], weights[:, token, prefix:])
    np.testing.assert_allclose(attention.rollout[0], rollout([weights[None]])[0, token, prefix:])


@pytest.fixture
def croco_folder(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 2}
    folder = tmp_path / "croco"
    folder.mkdir()
    save_model(folder, CroCo(CroCoConfig.micro(**sizes)), {VIEWS: [12, 16]})
    return folder


@pytest.fixture
def views(tmp_path: Path) -> tuple[Path, Path]:
    """Two images whose size differs from the model's."""
    rng = np.random.default_rng(0)
    paths = tmp_path / "left.png", tmp_path / "right.jpg"
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (30, 36, 3), np.uint8)).save(path)
    return paths


def read_pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)


def test_view_is_cropped_to_the_centre_and_resized(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    view = open_view(tmp_path / "wide.png", (8, 8))
    assert view.shape == (1, 3, 8, 8)
    assert torch.allclose(view[0, :, 4, 4], torch.tensor([1.0, 0.0, 0.0]))
    assert view[0, 0].min() > 0.9, "the sides are cropped"


def test_match_of_a_patch_is_drawn(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path
) -> None:
    other, drawn = tmp_path / "other.png", tmp_path / "drawn.png"
    name = "decoder.1.cross"
    model, _ = load_model(croco_folder)
    view1, view2 = (open_view(path, (12, 16)) for path in views)
    row, column = find_peaks(model, view1, view2, names=[name])[name].patch[0, 1 * 4 + 2].tolist()
    answer = command("look", croco_folder, *views, "--only", name, "--patch", 1, 2, "--out", drawn)
    assert (answer.code, answer.out) == (0, f"the peaks of {name}\n{drawn}\n"), answer.err
    assert command("look", croco_folder, *views, "--only", name, "--patch", 0, 0, "--out", other).code == 0
    changed = (read_pixels(drawn) != read_pixels(other)).any(-1)
    assert changed.shape == (12 * SCALE, (2 * 16 + 2) * SCALE)
    ends = ((1 + 0.5) * 4, (2 + 0.5) * 4), ((row + 0.5) * 4, 16 + 2 + (column + 0.5) * 4)
    for y, x in ends:
        assert changed[round(y * SCALE), round(x * SCALE)]


def test_module_with_the_highest_peaks_is_drawn_by_default(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("look", croco_folder, *views)
    assert answer.code == 0, answer.err
    model, _ = load_model(croco_folder)
    peaks = find_peaks(model, *(open_view(path, (12, 16)) for path in views))
    best = max(peaks, key=lambda name: float(peaks[name].weight.mean()))
    assert answer.out == f"the peaks of {best}\nlook.png\n"
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


def test_invalid_arguments_for_two_views_are_rejected(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "matches.png")

    def error(*words: object) -> str:
        return command("look", croco_folder, *words).error

    assert "give two images, the views of a scene, not 1 arguments" in error(views[0], *out)
    assert "--head is for models that classify images" in error(*views, "--head", 0, *out)
    message = error(*views, "--only", "decoder.7.cross", *out)
    assert message.endswith("not a cross-attention module of this model; it has decoder.0.cross, decoder.1.cross")
    assert "patch 3,0 is outside this image; rows go from 0 to 2" in error(*views, "--patch", 3, 0, *out)
    assert "nowhere.png: cannot be read" in error(views[0], "nowhere.png", *out)
    assert "written as .png" in error(*views, "--out", tmp_path / "matches.html")
    config = json.loads((croco_folder / "config.json").read_text())
    for size in (None, [12], [12, 18], [12, "16"], [12, 0], [0, 12]):
        (croco_folder / "config.json").write_text(json.dumps(config | {VIEWS: size}))
        assert "must be a height and a width that are multiples" in error(*views, *out)
    assert not (tmp_path / "matches.png").exists()


def test_other_commands_reject_a_two_view_model(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path
) -> None:
    for words in (("embed", croco_folder, views[0], "--out", tmp_path / "x.npy"), ("classify", croco_folder, views[0])):
        hint = "is a model of two views; use regard look with both views, or regard.CroCo in Python"
        assert command(*words).error.endswith(hint)
