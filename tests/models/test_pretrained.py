"""save_pretrained and from_pretrained: a folder that is whole, reads well, and says nothing that is no longer true."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard import Classifier, Translator
from regard.errors import UserError
from regard.interop.ctranslate2 import load_translator


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_translator_goes_round(trained_run: Path, tmp_path: Path) -> None:
    ours = Translator.from_pretrained(trained_run)
    for step in ("once", "twice"):
        ours.save_pretrained(tmp_path / step)
        ours = Translator.from_pretrained(tmp_path / step)
        expected = {"config.json", "model.safetensors", "tokenizer.json", "scores.json", "fingerprints.json"}
        assert files(tmp_path / step) == {*expected, "README.md"}
    assert ours("I love apples") == "我喜欢苹果"
    card = (tmp_path / "twice" / "README.md").read_text(encoding="utf-8")
    assert "# en → zh" in card and "| width | 32 |" in card
    assert "| train.en |" in card or "| source |" in card
    assert card == (tmp_path / "once" / "README.md").read_text(encoding="utf-8")
    ours.save_pretrained(tmp_path / "once")  # in place of the one that is there
    assert files(tmp_path / "once") == files(tmp_path / "twice")


def test_a_classifier_goes_round(image_run: Path, tmp_path: Path) -> None:
    ours = Classifier.from_pretrained(image_run)
    ours.save_pretrained(tmp_path / "saved")
    again = Classifier.from_pretrained(tmp_path / "saved")
    image = np.zeros((8, 8, 3), np.uint8)
    assert again(image) == ours(image) and again.classes == ours.classes
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: image-classification" in card and "## Training data" in card


def test_scores_stay_behind_when_the_weights_have_changed(trained_run: Path, tmp_path: Path) -> None:
    ours = Translator.from_pretrained(trained_run)
    with torch.no_grad():
        ours.model.output_weight[0] += 1
    ours.save_pretrained(tmp_path / "saved")
    assert files(tmp_path / "saved") == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert "None were recorded" in (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")


def test_what_is_in_the_way_is_refused(trained_run: Path, tmp_path: Path) -> None:
    ours = Translator.from_pretrained(trained_run)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match="holds more than a model folder does"):
        ours.save_pretrained(tmp_path / "notes")
    with pytest.raises(UserError, match="a file; choose another"):
        ours.save_pretrained(tmp_path / "notes" / "diary.txt")
    with pytest.raises(UserError, match="save each model separately"):
        Translator.load(trained_run, trained_run).save_pretrained(tmp_path / "both")
    assert files(tmp_path) == {"notes"}


def test_weights_of_another_engine_cannot_be_saved(trained_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    theirs = load_translator(trained_run, engine="ctranslate2")
    with pytest.raises(UserError, match="load the model with the engine regard"):
        theirs.save_pretrained(tmp_path / "saved")
