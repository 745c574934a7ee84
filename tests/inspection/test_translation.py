"""Scenes of translations: attention maps with labels for their rows and columns."""

from pathlib import Path

import numpy as np
import pytest

import regard
from regard.errors import UserError
from regard.inspection.translation import record_translation, translation_scene
from tests.test_package import DOCS, blocks

SENTENCE = "I love apples"


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


def test_scene_holds_the_weights_of_every_attention_module(translator: regard.Translator) -> None:
    scene = translation_scene(translator, SENTENCE)
    with regard.probe(translator.model) as records:
        (best,) = translator(SENTENCE, n_best=1)
    assert (scene.source, scene.translation) == (SENTENCE, "我喜欢苹果")
    assert [view.name for view in scene.views] == list(records)
    for view in scene.views:
        np.testing.assert_allclose(view.weights, records[view.name].weights[0].numpy(), atol=1e-6)
    np.testing.assert_allclose(scene.alignment, best.alignment, atol=1e-6)
    assert {view.group for view in scene.views} == {"encoder", "decoder", "cross"}


def test_rows_are_predicted_tokens_and_columns_input_tokens(translator: regard.Translator) -> None:
    labels = translation_scene(translator, SENTENCE).labels
    assert labels["source"][-1] == labels["decoder_output"][-1] == "END"
    assert labels["decoder_input"][0] == "BOS"
    assert labels["decoder_input"][1:] == labels["decoder_output"][:-1]
    assert "".join(labels["decoder_output"][:-1]).replace("␣", "") == "我喜欢苹果"


def test_scene_holds_only_the_named_modules(translator: regard.Translator) -> None:
    scene = translation_scene(translator, SENTENCE, ["decoder.1.cross"])
    assert [view.name for view in scene.views] == ["decoder.1.cross"]


def test_initial_head_is_a_cross_attention_head(translator: regard.Translator) -> None:
    scene = translation_scene(translator, SENTENCE)
    view, head = scene.initial_head()
    assert scene.views[view].group == "cross"
    assert 0 <= head < 2


def test_given_target_is_read_with_teacher_forcing(translator: regard.Translator) -> None:
    vocabularies = translator.vocabularies
    target = vocabularies.target.encode("你买茶")
    found = record_translation(translator, SENTENCE, target, names=["decoder.1.cross", "decoder.0.attention"])
    source = vocabularies.source.encode(SENTENCE)
    assert found.labels["source"] == [label.strip("▁") or "␣" for label in vocabularies.source.tokens(source)] + ["END"]
    assert "".join(found.labels["translation"]).replace("␣", "") == "你买茶END"
    assert found.labels["decoder_output"] == found.labels["translation"]
    assert found.labels["decoder_input"] == ["BOS", *found.labels["translation"][:-1]]
    with regard.probe(translator.model) as records:
        translator.log_probs([source], [target])
    assert set(found.records) == {"decoder.1.cross", "decoder.0.attention"}
    for name, record in found.records.items():
        np.testing.assert_array_equal(record.weights, records[name].weights)


def test_without_a_target_the_translation_is_recorded(translator: regard.Translator) -> None:
    found = record_translation(translator, SENTENCE, None)
    assert found.labels == translation_scene(translator, SENTENCE).labels
    assert found.records["decoder.1.cross"].weights.shape[2:] == (
        len(found.labels["translation"]),
        len(found.labels["source"]),
    )


def test_invalid_target_is_rejected(translator: regard.Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(translator.vocabularies.target)
    for target in ([size], [-1]):
        with pytest.raises(UserError, match=f"target: token ids of this model go from 0 to {size - 1}"):
            record_translation(translator, SENTENCE, target)
    record_translation(translator, SENTENCE, [0, size - 1])
    with pytest.raises(UserError, match="blank"):
        record_translation(translator, " ", [5])
    config = translator.model.config.model_copy(update={"positions": "learned", "max_length": 4})
    monkeypatch.setattr(translator.model, "config", config)
    with pytest.raises(UserError, match="target: 4 tokens exceed this model's limit of 3"):
        record_translation(translator, SENTENCE, [5] * 4)


@pytest.mark.parametrize("sentence", ["", "  \n"])
def test_blank_sentence_is_rejected(translator: regard.Translator, sentence: str) -> None:
    with pytest.raises(UserError, match="blank"):
        translation_scene(translator, sentence)


def test_python_code_of_the_inspection_guide_runs(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snippets = blocks((DOCS / "inspection.md").read_text(encoding="utf-8"), "python")
    assert len(snippets) >= 3
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(trained_run)
    monkeypatch.chdir(tmp_path)
    for snippet in snippets:
        exec(compile(snippet, "inspection.md", "exec"), {"__name__": "looking"})
