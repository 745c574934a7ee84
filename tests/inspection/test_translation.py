"""Scenes of translations: attention maps with labels for their rows and columns."""

from pathlib import Path

import numpy as np
import pytest

import regard
from regard.errors import UserError
from regard.inspection.translation import translation_scene
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
