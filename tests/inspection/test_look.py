from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.errors import UserError
from regard.inspection.look import look_at
from regard.inspection.look_translation import translation_scene
from regard.inspection.maps import layer_weights, rollout
from regard.inspection.overlay import overlays
from regard.inspection.patches import global_attention
from regard.pipelines.classifier import Classifier
from tests.conftest import Command
from tests.test_package import DOCS, blocks

SENTENCE = "I love apples"


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


def test_a_scene_holds_every_attention_with_what_it_looked_at(translator: regard.Translator) -> None:
    scene = translation_scene(translator, SENTENCE)
    with regard.probe(translator.model) as seen:
        (best,) = translator(SENTENCE, n_best=1)
    assert (scene.source, scene.translation) == (SENTENCE, "我喜欢苹果")
    assert [view.name for view in scene.views] == list(seen)
    for view in scene.views:
        np.testing.assert_allclose(view.weights, seen[view.name].weights[0].numpy(), atol=1e-6)
    np.testing.assert_allclose(scene.alignment, best.alignment, atol=1e-6)
    assert {view.group for view in scene.views} == {"encoder", "decoder", "cross"}


def test_rows_say_what_is_written_and_columns_what_was_read(translator: regard.Translator) -> None:
    labels = translation_scene(translator, SENTENCE).labels
    assert labels["source"][-1] == labels["decoder_output"][-1] == "END"
    assert labels["decoder_input"][0] == "BOS"
    assert labels["decoder_input"][1:] == labels["decoder_output"][:-1]
    assert "".join(labels["decoder_output"][:-1]).replace("␣", "") == "我喜欢苹果"


def test_only_what_is_named_is_shown(translator: regard.Translator) -> None:
    scene = translation_scene(translator, SENTENCE, ["decoder.1.cross"])
    assert [view.name for view in scene.views] == ["decoder.1.cross"]


def test_the_first_head_to_be_seen_is_one_across(translator: regard.Translator) -> None:
    scene = translation_scene(translator, SENTENCE)
    view, head = scene.first()
    assert scene.views[view].group == "cross"
    assert 0 <= head < 2


@pytest.mark.parametrize("sentence", ["", "  \n"])
def test_a_blank_sentence_is_refused(translator: regard.Translator, sentence: str) -> None:
    with pytest.raises(UserError, match="blank"):
        translation_scene(translator, sentence)


@pytest.mark.parametrize(
    ("name", "begins"), [("a.html", b"<!doctype html>"), ("b.PNG", b"\x89PNG"), ("c.svg", b"<?xml")]
)
def test_regard_look_writes_what_the_name_asks_for(
    command: Command, trained_run: Path, tmp_path: Path, name: str, begins: bytes
) -> None:
    answer = command("look", trained_run, SENTENCE, "--out", tmp_path / name)
    assert answer.code == 0
    assert answer.out == f"我喜欢苹果\n{tmp_path / name}\n"
    assert (tmp_path / name).read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_cannot_be_looked_at_is_refused(command: Command, trained_run: Path, tmp_path: Path) -> None:
    def refusal(*words: object) -> str:
        return command("look", *words).refusal

    assert "look.gif" in refusal(trained_run, SENTENCE, "--out", tmp_path / "look.gif")
    assert "no folder" in refusal(trained_run, SENTENCE, "--out", tmp_path / "no" / "look.html")
    assert "decoder.1.cross" in refusal(
        trained_run, SENTENCE, "--out", tmp_path / "a.html", "--only", "decoder.9.cross"
    )
    assert "blank" in refusal(trained_run, " ", "--out", tmp_path / "a.html")
    assert "no such model folder" in refusal(tmp_path / "nothing", SENTENCE, "--out", tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


def test_the_python_of_the_page_on_looking_runs(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snippets = blocks((DOCS / "looking.md").read_text(encoding="utf-8"), "python")
    assert len(snippets) >= 3
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(trained_run)
    monkeypatch.chdir(tmp_path)
    for snippet in snippets:
        exec(compile(snippet, "looking.md", "exec"), {"__name__": "looking"})


def test_an_image_is_drawn_with_what_its_class_owes_to_each_patch(
    command: Command, image_run: Path, painted: Path, tmp_path: Path
) -> None:
    photo = next(path for path in sorted((painted / "test").rglob("*")) if path.is_file())
    answer = command("look", image_run, photo, "--out", tmp_path / "look.png")
    assert answer.code == 0, answer.err
    assert answer.out.startswith(photo.parent.name)
    config = Classifier.load(image_run).model.config
    with Image.open(tmp_path / "look.png") as picture:
        panels = 1 + config.layers + config.heads
        assert picture.height > picture.width / 4 * (panels // 4)
    assert "written as .png" in command("look", image_run, photo, "--out", tmp_path / "look.html").refusal
    assert "nothing.png" in command("look", image_run, "nothing.png", "--out", tmp_path / "a.png").refusal
    assert [path.name for path in tmp_path.iterdir()] == ["look.png"]


def test_an_image_is_drawn_where_nobody_says_where(
    command: Command, image_run: Path, painted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("look", image_run, painted / "test" / "red" / "004.png")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "look.png"), answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["look.png"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """What is laid over images from now on, by its titles."""
    laid: list[dict[str, np.ndarray]] = []

    def keep(pixels: np.ndarray, maps: dict[str, np.ndarray], **more: object) -> Image.Image:
        laid.append(maps)
        return overlays(pixels, maps, **more)

    monkeypatch.setattr("regard.inspection.look_image.overlays", keep)
    return laid


def test_layers_and_heads_of_an_image_can_be_chosen(
    command: Command, image_run: Path, swin_run: Path, painted: Path, tmp_path: Path, shown: list[dict[str, np.ndarray]]
) -> None:
    photo, out = painted / "test" / "red" / "004.png", ("--out", tmp_path / "a.png")
    assert command("look", image_run, photo, *out, "--only", "encoder.0.attention", "--head", 1).code == 0
    classifier = Classifier.load(image_run)
    with regard.probe(classifier.model) as seen:
        classifier.predict([classifier.preprocessing.open(photo)])
    heads = global_attention(classifier.model, seen).heads[0]
    assert list(shown[0]) == ["layer 0", "layer 0, head 1"]
    for title, expected in (("layer 0", heads.mean(0)), ("layer 0, head 1", heads[1])):
        np.testing.assert_allclose(shown[0][title].ravel(), expected / expected.max(), rtol=1e-4)
    assert command("look", image_run, photo, *out, "--head", 0).code == 0
    assert list(shown[1]) == ["up to layer 0", "layer 0, head 0"]
    name = "stages.0.blocks.1.attention"
    assert command("look", swin_run, photo, *out, "--only", name, "--patch", 3, 6).code == 0
    assert list(shown[2]) == [f"stage 0, layer 1{more}" for more in ("", ", head 0", ", head 1")]

    def refusal(*words: object) -> str:
        return command("look", *words, "--out", tmp_path / "b.png").refusal

    assert refusal(image_run, photo, "--only", "x") == "--only x: this model's attentions are encoder.0.attention"
    assert refusal(image_run, photo, "--head", 2) == "--head 2: layer 0 has heads 0 to 1"
    assert "an image at a time; 2 arguments" in refusal(image_run, photo, photo)
    assert not (tmp_path / "b.png").exists()


def test_a_model_that_reads_no_text_is_given_no_sentence(image_run: Path) -> None:
    with pytest.raises(UserError, match="an image model"):
        look_at(image_run, SENTENCE)


def test_what_a_model_of_windows_looks_at_is_drawn(
    command: Command, swin_run: Path, trained_run: Path, painted: Path, tmp_path: Path
) -> None:
    photo = painted / "test" / "red" / "004.png"
    whole, patch = tmp_path / "whole.png", tmp_path / "patch.png"
    answer = command("look", swin_run, photo, "--out", whole)
    assert (answer.code, answer.out.split()[0]) == (0, "red"), answer.err
    assert command("look", swin_run, photo, "--out", patch, "--patch", 3, 6).code == 0
    with Image.open(whole) as one, Image.open(patch) as other:
        assert one.size == other.size
        rows = -(-(1 + 4 + 4) // 4)  # the image, four layers, four heads of the last
        assert one.height == 8 + rows * (224 + 18 + 8)
        assert one.tobytes() != other.tobytes()
    refusal = command("look", swin_run, photo, "--out", patch, "--patch", 8, 0).refusal
    assert refusal == "patch 8,0 is outside this image; rows go from 0 to 7, columns from 0 to 7"
    assert "--patch" in command("look", trained_run, SENTENCE, "--out", whole, "--patch", 0, 0).refusal
    assert "--head" in command("look", trained_run, SENTENCE, "--out", whole, "--head", 0).refusal


def test_a_patch_of_an_image_is_asked_in_place_of_the_answer(image_run: Path, painted: Path) -> None:
    classifier = Classifier.load(image_run)
    pixels = classifier.preprocessing.open(painted / "test" / "red" / "004.png")
    with regard.probe(classifier.model) as seen:
        classifier.predict([pixels])
    leading = classifier.model.config.leading
    weights = layer_weights(seen)[0][0]
    shown = global_attention(classifier.model, seen, (1, 0))
    token = leading + classifier.model.config.grid[1]
    np.testing.assert_allclose(shown.heads[0], weights[:, token, leading:])
    np.testing.assert_allclose(shown.rollout[0], rollout([weights[None]])[0, token, leading:])
