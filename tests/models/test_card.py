"""The model card, built from the files of a model folder."""

import json
from pathlib import Path

from regard.models.card import build_card


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
