"""`regard demo --vision`, with fewer images and steps."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from tests.conftest import Command

demo = import_module("regard.cli.demo")  # the name regard.cli.demo is the command


def test_the_demo_draws_trains_scores_and_shows(
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
    assert "Drawing" not in again.out and "this run is already done" in again.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("model.kind=swim", "model.kind: 'swim' is not one of transformer, nat, vit, swin, croco"),
        ("optim.lr=-1", "shapes: optim.lr: input should be greater than 0, found -1"),
    ],
)
def test_settings_are_checked_before_anything_is_drawn(
    change: str, said: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "render_splits", None)
    assert command("demo", "--vision", "--out", tmp_path / "runs" / "vision", "--set", change).error == said
    assert list(tmp_path.iterdir()) == []


def test_what_was_drawn_for_a_run_that_is_refused_is_taken_away(
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
