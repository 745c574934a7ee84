"""Model cards, and `save_pretrained` and `from_pretrained`: complete folders without scores of other weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard import Classifier, Translator
from regard.errors import UserError
from regard.interop.ctranslate2 import load_translator
from regard.models.card import _score_lines, _validation_lines, build_card


def test_card_of_a_run_on_a_built_in_corpus(tmp_path: Path) -> None:
    folder = tmp_path / "best"
    (tmp_path / "data").mkdir()
    folder.mkdir()
    config = {"format": 1, "model": {"kind": "transformer", "width": 32}, "languages": ["en", "zh"]}
    (folder / "config.json").write_text(json.dumps(config))
    validation = {"loss": 0.135, "bleu": 99.6292, "score": 99.6292}
    (folder / "scores.json").write_text(json.dumps({"step": 700, "validation": validation}))
    valid = {"bytes": 95746, "sha256": "c8681c669dec347d"}
    fingerprints = {"files": {}, "settings": {"data.builtin": "en-zh"}, "tokens": "92952dc9a3ab21ac", "valid": valid}
    (tmp_path / "data" / "fingerprints.json").write_text(json.dumps(fingerprints))
    card = build_card(folder, "ctranslate2")
    assert card.startswith("---\nlibrary_name: ctranslate2\n")
    assert "| tokens of en-zh |  | 92952dc9a3ab |" in card
    assert "| validation | 95746 | c8681c669dec |" in card
    assert "at step 700:\n\n- validation loss 0.135\n- validation bleu 99.63\n" in card
    assert "No scores yet" not in card
    assert "score 99" not in card


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_translator_is_saved_and_loaded(trained_run: Path, tmp_path: Path) -> None:
    translator = Translator.from_pretrained(trained_run)
    for step in ("once", "twice"):
        translator.save_pretrained(tmp_path / step)
        translator = Translator.from_pretrained(tmp_path / step)
        assert files(tmp_path / step) == files(trained_run / "best") | {"fingerprints.json", "README.md"}
    assert translator("I love apples") == "我喜欢苹果"
    card = (tmp_path / "twice" / "README.md").read_text(encoding="utf-8")
    assert "# en → zh" in card
    assert "| width | 32 |" in card
    assert "| train.en |" in card or "| source |" in card
    assert card == (tmp_path / "once" / "README.md").read_text(encoding="utf-8")
    translator.save_pretrained(tmp_path / "once")  # replaces the existing folder
    assert files(tmp_path / "once") == files(tmp_path / "twice")


def test_classifier_is_saved_and_loaded(image_run: Path, tmp_path: Path) -> None:
    classifier = Classifier.from_pretrained(image_run)
    classifier.save_pretrained(tmp_path / "saved")
    again = Classifier.from_pretrained(tmp_path / "saved")
    image = np.zeros((8, 8, 3), np.uint8)
    assert again(image) == classifier(image)
    assert again.classes == classifier.classes
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: image-classification" in card
    assert "## Training data" in card


def test_scores_are_not_copied_if_the_weights_have_changed(trained_run: Path, tmp_path: Path) -> None:
    translator = Translator.from_pretrained(trained_run)
    with torch.no_grad():
        translator.model.output_weight[0] += 1
    translator.save_pretrained(tmp_path / "saved")
    assert files(tmp_path / "saved") == {"config.json", "model.safetensors", "tokenizer.json", "README.md"}
    assert "No scores yet" in (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")


def test_other_files_are_not_overwritten(trained_run: Path, tmp_path: Path) -> None:
    translator = Translator.from_pretrained(trained_run)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match="contains files that are not part of a model folder"):
        translator.save_pretrained(tmp_path / "notes")
    with pytest.raises(UserError, match="is a file; choose another"):
        translator.save_pretrained(tmp_path / "notes" / "diary.txt")
    with pytest.raises(UserError, match="save each model separately"):
        Translator.load(trained_run, trained_run).save_pretrained(tmp_path / "both")
    assert files(tmp_path) == {"notes"}


def test_weights_of_another_engine_cannot_be_saved(trained_run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    exported = load_translator(trained_run, engine="ctranslate2")
    with pytest.raises(UserError, match="load the model with the engine regard"):
        exported.save_pretrained(tmp_path / "saved")


def test_values_that_are_no_scores_are_omitted(tmp_path: Path) -> None:
    huge = {"bleu": 41.25, "huge": 10**400, "nan": float("nan"), "text": "41"}
    lines = list(_score_lines({"evaluations": [{"scores": huge}]}))
    assert [line for line in lines if line.startswith("- ")] == ["- bleu 41.25"]
    lines = list(_validation_lines({"validation": huge}))
    assert [line for line in lines if line.startswith("- ")] == ["- validation bleu 41.25"]
