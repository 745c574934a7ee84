"""`regard look` with a model of two views: the match of a patch, as a line between them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.inspection.two_view import SCALE, find_peaks
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import load_model, save_model
from regard.pipelines.views import VIEWS, open_view
from tests.conftest import Command


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
    """Two photographs of a size of their own."""
    chance = np.random.default_rng(0)
    paths = tmp_path / "left.png", tmp_path / "right.jpg"
    for path in paths:
        Image.fromarray(chance.integers(0, 256, (30, 36, 3), np.uint8)).save(path)
    return paths


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture).astype(int)


def test_a_view_is_the_middle_of_an_image_in_the_models_size(tmp_path: Path) -> None:
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = (255, 0, 0)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    view = open_view(tmp_path / "wide.png", (8, 8))
    assert view.shape == (1, 3, 8, 8)
    assert torch.allclose(view[0, :, 4, 4], torch.tensor([1.0, 0.0, 0.0]))
    assert view[0, 0].min() > 0.9, "what is beside the middle is cut off"


def test_the_match_of_a_patch_is_drawn(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path
) -> None:
    plain, drawn = tmp_path / "plain.png", tmp_path / "drawn.png"
    name = "decoder.1.cross"
    model, _ = load_model(croco_folder)
    one, other = (open_view(path, (12, 16)) for path in views)
    row, column = find_peaks(model, one, other, names=[name])[name].patch[0, 1 * 4 + 2].tolist()
    answer = command("look", croco_folder, *views, "--only", name, "--patch", 1, 2, "--out", drawn)
    assert (answer.code, answer.out) == (0, f"the peaks of {name}\n{drawn}\n"), answer.err
    assert command("look", croco_folder, *views, "--only", name, "--patch", 0, 0, "--out", plain).code == 0
    changed = (pixels_of(drawn) != pixels_of(plain)).any(-1)
    assert changed.shape == (12 * SCALE, (2 * 16 + 2) * SCALE)
    ends = ((1 + 0.5) * 4, (2 + 0.5) * 4), ((row + 0.5) * 4, 16 + 2 + (column + 0.5) * 4)
    for y, x in ends:
        assert changed[round(y * SCALE), round(x * SCALE)]


def test_without_a_choice_the_clearest_peaks_are_drawn(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("look", croco_folder, *views)
    assert answer.code == 0, answer.err
    model, _ = load_model(croco_folder)
    found = find_peaks(model, *(open_view(path, (12, 16)) for path in views))
    clearest = max(found, key=lambda name: float(found[name].weight.mean()))
    assert answer.out == f"the peaks of {clearest}\nlook.png\n"
    assert (tmp_path / "look.png").read_bytes().startswith(b"\x89PNG")


def test_what_two_views_cannot_show_is_refused(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "matches.png")

    def refusal(*words: object) -> str:
        return command("look", croco_folder, *words).refusal

    assert "two images, the views of a scene, at a time; 1 arguments" in refusal(views[0], *out)
    assert "--head is for models that classify images" in refusal(*views, "--head", 0, *out)
    said = refusal(*views, "--only", "decoder.7.cross", *out)
    assert said == "--only decoder.7.cross: attentions to the other view are decoder.0.cross, decoder.1.cross"
    assert "patch 3,0 is outside this image; rows go from 0 to 2" in refusal(*views, "--patch", 3, 0, *out)
    assert "nowhere.png: cannot be read" in refusal(views[0], "nowhere.png", *out)
    assert "written as .png" in refusal(*views, "--out", tmp_path / "matches.html")
    config = json.loads((croco_folder / "config.json").read_text())
    for size in (None, [12], [12, 18], [12, "16"]):
        (croco_folder / "config.json").write_text(json.dumps(config | {VIEWS: size}))
        assert "must be the height and width of the model's views" in refusal(*views, *out)
    assert not (tmp_path / "matches.png").exists()


def test_a_model_of_two_views_is_not_called_another(
    command: Command, croco_folder: Path, views: tuple[Path, Path], tmp_path: Path
) -> None:
    for words in (("embed", croco_folder, views[0], "--out", tmp_path / "x.npy"), ("classify", croco_folder, views[0])):
        assert command(*words).refusal.endswith("is a model of two views; use regard look with both, or regard.CroCo "
                                                "from Python")  # fmt: skip
