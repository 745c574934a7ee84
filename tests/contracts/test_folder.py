"""Contract 6, model folder.

It contains config.json, model.safetensors, the tokenizer and scores.json, is portable, and has no pickle.
"""

import io
import json
import pickletools
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from regard import Transformer, TransformerConfig, Translator
from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.errors import UserError
from regard.models.folder import find_model_folder, load_model, replace_folder, save_model
from regard.training.recipe import Recipe
from regard.training.run import run_recipe

SENTENCES = ["I love apples", "They buy tea and dogs", "", "Something else entirely!"]


@pytest.fixture
def separate_run(make_recipe: Callable[..., Recipe], tmp_path: Path) -> Path:
    out = tmp_path / "separate"
    run_recipe(make_recipe(tokenizer__joint=False, tokenizer__size=300, training__steps=3), out)
    return out


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def is_pickle(content: bytes) -> bool:
    """Return whether bytes are a pickle, or a zip archive as written by torch.save."""
    if content.startswith(b"PK"):
        return True
    try:
        operations = [operation.name for operation, _, _ in pickletools.genops(io.BytesIO(content))]
    except Exception:
        return False
    return operations[-1] == "STOP" and len(operations) > 1


def test_run_contains_models_checkpoints_data_log_and_recipe(trained_run: Path) -> None:
    assert names(trained_run) == {"best", "last", "checkpoints", "data", "log.jsonl", "recipe.yaml"}


@pytest.mark.parametrize("which", ["best", "last"])
def test_model_folder_contains_the_listed_files(trained_run: Path, which: str) -> None:
    expected = {"config.json", "model.safetensors", "tokenizer.json", "scores.json", "confidence.json"}
    assert names(trained_run / which) == expected


def test_separate_vocabularies_are_saved_in_two_files(separate_run: Path) -> None:
    tokenizers = {"source.tokenizer.json", "target.tokenizer.json"}
    assert (
        names(separate_run / "best")
        == {"config.json", "model.safetensors", "scores.json", "confidence.json"} | tokenizers
    )
    vocabularies = Translator.load(separate_run).vocabularies
    assert vocabularies.source.fingerprint() != vocabularies.target.fingerprint()
    assert vocabularies.source.decode(vocabularies.source.encode("I love apples")) == "I love apples"


def test_pickles_are_detected(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "new")
    torch.save({"a": torch.zeros(2)}, tmp_path / "old", _use_new_zipfile_serialization=False)
    assert all(is_pickle(path.read_bytes()) for path in tmp_path.iterdir())


def test_run_has_no_pickles(trained_run: Path) -> None:
    files = [path for path in trained_run.rglob("*") if path.is_file()]
    assert not [path for path in files if is_pickle(path.read_bytes())]
    suffixes = {".json", ".jsonl", ".yaml", ".safetensors", ".npy", ".tsv"}
    assert {path.suffix for path in files if path.name != "last"} == suffixes


def test_file_permissions_follow_the_umask(trained_run: Path) -> None:
    probe = trained_run.parent / "probe"
    probe.touch()
    usual = stat.S_IMODE(probe.stat().st_mode)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (trained_run / "best").iterdir()} == {usual}


def test_moved_folder_gives_the_same_translations(
    trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Translator.load(trained_run).hypotheses(SENTENCES)
    moved = shutil.copytree(trained_run / "best", tmp_path / "else where" / "模型")
    monkeypatch.chdir(moved.parent)
    assert Translator.load("模型").hypotheses(SENTENCES) == before
    assert before[0][0].text == "我喜欢苹果"


@pytest.mark.parametrize("joint", [True, False])
def test_saved_translator_gives_the_same_translations_after_loading(joint: bool, tmp_path: Path) -> None:
    texts = ["a b c d e f g h"] * 3
    source = Tokenizer.train(texts, 270)
    target = source if joint else Tokenizer.train(["x y z"] * 3, 264)
    torch.manual_seed(3)
    size = {"width": 16, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1}
    vocab = len(source) if joint else (len(source), len(target))
    translator = Translator(
        Transformer(TransformerConfig.base(vocab, **size)), Vocabularies(source, target), ("de", "en")
    )
    with replace_folder(tmp_path / "model") as folder:
        translator.save(folder)
    loaded = Translator.load(tmp_path / "model")
    assert loaded.languages == ("de", "en")
    assert loaded.vocabularies.joint == joint
    assert loaded.model.config == translator.model.config
    assert loaded(texts, max_extra=5) == translator(texts, max_extra=5)


def test_scores_and_configuration_describe_the_model(trained_run: Path) -> None:
    scores = json.loads((trained_run / "best" / "scores.json").read_text(encoding="utf-8"))
    assert scores["step"] in (150, 300, 450)
    assert scores["validation"]["bleu"] > 50
    config = json.loads((trained_run / "best" / "config.json").read_text(encoding="utf-8"))
    assert config["format"] == 1
    assert config["languages"] == ["en", "zh"]
    assert TransformerConfig.parse(config["model"], "config").width == 32


@pytest.mark.parametrize(("tie", "tables"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_embedding_is_saved_once_and_tied_after_loading(tie: str, tables: int, tmp_path: Path) -> None:
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(TransformerConfig.base(11, tie=tie, **size))
    save_model(tmp_path, model, {})
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = [name for name in file.keys() if file.get_slice(name).get_shape() == [11, 16]]  # noqa: SIM118
    assert len(saved) == tables
    loaded, _ = load_model(tmp_path)
    assert (loaded.source_embedding.weight is loaded.target_embedding.weight) == (tie == "all")
    assert len(list(loaded.parameters())) == len(list(model.parameters()))
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_best_model_of_a_run_is_loaded(trained_run: Path) -> None:
    assert find_model_folder(trained_run) == trained_run / "best"
    assert find_model_folder(trained_run / "last") == trained_run / "last"


def test_damaged_best_model_is_rejected(trained_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    (run / "best" / "config.json").unlink()
    with pytest.raises(UserError, match=r"best: contains no config\.json"):
        Translator.load(run)


# Atomic writes


def test_replaced_folder_contains_only_the_new_files(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name in ("old", "new"):
        with replace_folder(folder) as fresh:
            (fresh / name).write_text(name)
    assert names(folder) == {"new"}
    assert names(tmp_path) == {"model"}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failed_save_leaves_the_old_folder_unchanged(error: type[BaseException], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with replace_folder(folder) as fresh:
        (fresh / "old").write_text("old")
    with pytest.raises(error), replace_folder(folder) as fresh:
        (fresh / "half").write_text("half")
        raise error
    assert names(folder) == {"old"}
    assert names(tmp_path) == {"model"}


def test_failed_first_save_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replace_folder(tmp_path / "model") as fresh:
        (fresh / "half").write_text("half")
        raise RuntimeError
    assert names(tmp_path) == set()


def test_failed_replacement_restores_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    with replace_folder(folder) as fresh:
        (fresh / "old").write_text("old")
    rename = Path.rename
    calls = []

    def fail_second_call(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_second_call)
    with pytest.raises(OSError, match="no"), replace_folder(folder) as fresh:
        (fresh / "new").write_text("new")
    assert len(calls) == 3
    assert names(folder) == {"old"}
    assert names(tmp_path) == {"model"}


def test_loaded_weights_equal_the_saved_weights(trained_run: Path) -> None:
    tensors = load_file(trained_run / "best" / "model.safetensors")
    state = Translator.load(trained_run).model.state_dict()
    assert tensors.keys() <= state.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
