"""`regard demo` and `regard demo --vision`, with little data and few steps."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import Command

SHORT = ("--set", "training.steps=20", "--set", "training.validate_every=20")
demo = import_module("regard.cli.demo")  # the name regard.cli.demo is the command


def test_vision_demo_renders_trains_scores_and_draws(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SPLITS", {"train": 60, "valid": 20, "test": 30})
    monkeypatch.chdir(tmp_path)
    small = {"model.width": 16, "model.heads": 2, "model.hidden": 16, "model.layers": 2, "batch.images": 16}
    short = {"training.steps": 3, "training.validate_every": 3, "training.log_every": 3, "optim.warmup": 1}
    words = [word for key, value in (small | short).items() for word in ("--set", f"{key}={value}")]
    answer = command("demo", "--vision", *words)
    assert answer.code == 0, answer.err
    assert "Drawing 110 small images of ten shapes into runs/vision-images." in answer.out
    assert re.search(r"^accuracy .* of 30 images", answer.out, re.M)
    assert len(list((tmp_path / "runs" / "vision-images" / "test").iterdir())) == 10
    with Image.open(tmp_path / "runs" / "vision" / "attention.png") as picture:
        assert picture.width > picture.height > 200  # the image and two maps
    again = command("demo", "--vision", *words)
    assert "Drawing" not in again.out and "this run is already finished" in again.out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.kind=swim", "model.kind: 'swim' is not one of transformer, nat, vit, swin, croco"),
        ("optim.lr=-1", "shapes: optim.lr: input should be greater than 0, found -1"),
    ],
)
def test_settings_are_checked_before_rendering(
    change: str, message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "render_splits", None)
    assert command("demo", "--vision", "--out", tmp_path / "runs" / "vision", "--set", change).error == message
    assert list(tmp_path.iterdir()) == []


def test_images_of_a_rejected_run_are_removed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SPLITS", {"train": 60, "valid": 20, "test": 30})
    out, images = tmp_path / "runs" / "vision", tmp_path / "runs" / "vision-images"
    words = ("demo", "--vision", "--out", out, "--set", "training.device=nowhere")
    assert "nowhere" in command(*words).error
    assert list(tmp_path.iterdir()) == []
    demo.render_splits(images)  # by another run of the demo
    assert "nowhere" in command(*words).error
    assert list(out.parent.iterdir()) == [images]


@pytest.mark.usefixtures("short_builtin_corpus")
def test_translation_demo_trains_scores_and_draws(
    tmp_path: Path, command: Command, small_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # must not be mistaken for the recipe
    answer = command("demo", *small_settings, *SHORT)
    assert (answer.code, answer.err) == (0, "")
    assert "20 held-out sentences" in answer.out
    assert "exact matches" in answer.out
    assert re.search(r"^  I love apples  → .*\n  I am human  → ", answer.out, re.MULTILINE)
    assert "regard translate runs/demo" in answer.out
    assert "head 0" in (tmp_path / "runs" / "demo" / "attention.svg").read_text(encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"demo", "runs"}
