"""Runs that are initialised from a trained translator: its weights, new tokens, or only its encoder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard import Translator
from regard.errors import UserError
from regard.models.folder import unique_tensors
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe
from tests.conftest import SMALL, Command, settings_of
from tests.training.test_run_folder import crashing_at, log, read_files, weights

Make = Callable[..., Recipe]
PLACEHOLDER = "<ent>"


@pytest.fixture
def entities(tmp_path: Path) -> Path:
    """A folder with a synthetic corpus in which a placeholder is copied to the target."""
    subjects = {"I": "我", "You": "你", "They": "他们", "We": "我们"}
    verbs = {"love": "喜欢", "buy": "买", "see": "看见", "want": "要"}
    pairs = [
        (f"{s} {v} {PLACEHOLDER}{tail}", f"{subjects[s]}{verbs[v]}{PLACEHOLDER}{zh}")
        for s in subjects
        for v in verbs
        for tail, zh in (
            ("", ""),
            (" and tea", "和茶"),
            (" and books", "和书"),
            (f" and {PLACEHOLDER}", f"和{PLACEHOLDER}"),
        )
    ]
    (tmp_path / "ent.en").write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    (tmp_path / "ent.zh").write_text("".join(f"{target}\n" for _, target in pairs), encoding="utf-8")
    return tmp_path


def recipe(folder: Path, name: str, **changes: Any) -> Recipe:
    """Return a recipe without settings of model and tokenizer, which follow from the initial model."""
    kept = {key: value for key, value in SMALL.items() if not key.startswith(("model.", "tokenizer."))}
    files = {"data.source": str(folder / f"{name}.en"), "data.target": str(folder / f"{name}.zh")}
    short = {"optim.schedule": "constant", "optim.lr": 3e-3, "optim.warmup": 0, "training.steps": 10}
    intervals = {"training.validate_every": 4, "training.log_every": 1, "training.checkpoint_every": 2}
    return load_recipe(
        None, [], kept | files | short | intervals | {k.replace("__", "."): v for k, v in changes.items()}
    )


def init_from(run: Path, **more: Any) -> dict[str, Any]:
    return {"init": {"from": str(run)} | more}


def first_loss(out: Path) -> float:
    return float(log(out)[0][1])


# Weights


def test_run_starts_with_the_weights_of_the_folder(
    toy: Path, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_files(trained_run)
    run_recipe(recipe(toy, "train", **init_from(trained_run), training__steps=1), tmp_path / "tuned")
    assert f"initialised with the weights of {trained_run}" in capsys.readouterr().out
    run_recipe(recipe(toy, "train", training__steps=1, model={"preset": "tiny"}), tmp_path / "random")
    assert first_loss(tmp_path / "tuned") < 0.5 * first_loss(tmp_path / "random")
    initial = load_file(tmp_path / "tuned" / "data" / "initial.safetensors")
    old = load_file(trained_run / "best" / "model.safetensors")
    assert initial.keys() == old.keys()
    assert all(torch.equal(initial[name], old[name]) for name in old)
    assert read_files(trained_run) == before


def test_model_tokenizer_and_languages_follow_the_folder(toy: Path, trained_run: Path, tmp_path: Path) -> None:
    for language in ("en", "zh"):
        shutil.copy(toy / f"train.{language}", tmp_path / f"plain_{language}.txt")
    files = {"data__source": str(tmp_path / "plain_en.txt"), "data__target": str(tmp_path / "plain_zh.txt")}
    tuned = recipe(toy, "train", **init_from(trained_run), **files, training__steps=1, model={"dropout": 0.3})
    run_recipe(tuned, tmp_path / "tuned")
    old, new = Translator.load(trained_run), Translator.load(tmp_path / "tuned")
    assert new.vocabularies.fingerprint() == old.vocabularies.fingerprint()
    assert new.languages == old.languages == ("en", "zh")
    assert new.model.config == old.model.config.changed(dropout=0.3)
    kept = load_recipe(tmp_path / "tuned" / "recipe.yaml")
    assert (kept.tokenizer.size, kept.model["width"]) == (len(old.vocabularies.source), 32)


def test_recipe_of_the_folder_does_not_contradict_it(toy: Path, trained_run: Path, tmp_path: Path) -> None:
    given = {"data.source": str(toy / "train.en"), "data.target": str(toy / "train.zh")}
    short = {"training.steps": 1, "init.from": str(trained_run)}
    run_recipe(load_recipe(trained_run / "recipe.yaml", [], given | short), tmp_path / "again")
    run_recipe(load_recipe(None, [], SMALL | given | short), tmp_path / "and again")
    assert weights(tmp_path / "again") == weights(tmp_path / "and again")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"width": 64}}, "model.width: 64 contradicts 32"),
        ({"model": {"preset": "tiny"}}, "model.width: 128 contradicts 32"),
        ({"model": {"norm": "post"}}, "model.norm: post contradicts pre"),
        ({"model": {"widht": 32}}, "unknown key model.widht; did you mean model.width?"),
        ({"tokenizer": {"kind": "word"}}, "tokenizer.kind: word contradicts bpe"),
        ({"tokenizer": {"joint": False}}, "tokenizer.joint: False contradicts True"),
        ({"tokenizer": {"size": 300}}, "tokenizer.size: 300 contradicts 340"),
        ({"init": {"from": "no/such"}}, "no/such: no such model folder"),
        ({"init.new_tokens": ["", "<a>"]}, "init.new_tokens: The new token '' is blank"),
        ({"init.new_tokens": ["apples"]}, "is already in the vocabulary"),
        ({"init.new_tokens": ["<eos>"]}, "is already in the vocabulary"),
        ({"init.new_tokens": ["a\nb"]}, "control character"),
        ({"init.new_tokens_file": "no.such"}, "no.such does not exist"),
    ],
)
def test_contradicting_setting_is_rejected_without_leaving_files(
    changes: dict[str, Any], message: str, toy: Path, trained_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        run_recipe(recipe(toy, "train", **init_from(trained_run) | changes), tmp_path / "tuned")
    assert not (tmp_path / "tuned").exists()


def test_new_tokens_and_parts_need_a_folder() -> None:
    for key, value in (("new_tokens", ["<a>"]), ("new_tokens_file", "t"), ("parts", "encoder")):
        with pytest.raises(UserError, match=r"give init\.from too"):
            load_recipe(None, [], {"data.builtin": "en-zh", f"init.{key}": value})


def test_init_from_on_the_command_line(toy: Path, trained_run: Path, tmp_path: Path, command: Command) -> None:
    files = ("--src", toy / "train.en", "--tgt", toy / "train.zh", "--out", tmp_path / "tuned")
    short = settings_of({"training.steps": 2, "data.hold_out": 30, "training.device": "cpu"})
    answer = command("train", *files, "--init-from", trained_run, *short)
    assert (answer.code, answer.err) == (0, "")
    assert Translator.load(tmp_path / "tuned")("I love apples") == "我喜欢苹果"


# New tokens


@pytest.mark.parametrize("joint", [True, False])
def test_new_token_is_not_split_and_can_be_learned(
    joint: bool, entities: Path, trained_run: Path, tmp_path: Path, make_recipe: Make
) -> None:
    run = trained_run
    if not joint:
        run = tmp_path / "separate"
        run_recipe(make_recipe(tokenizer__joint=False, tokenizer__size=300), run)
    (tmp_path / "words").write_text("<unused>\n\n")
    words = init_from(run, new_tokens=[PLACEHOLDER], new_tokens_file=str(tmp_path / "words"))
    tuned = recipe(entities, "ent", **words, training__steps=100, training__validate_every=100, data__hold_out=5)
    run_recipe(tuned, tmp_path / "tuned")
    old, new = Translator.load(run), Translator.load(tmp_path / "tuned")
    for before, now in (
        (old.vocabularies.source, new.vocabularies.source),
        (old.vocabularies.target, new.vocabularies.target),
    ):
        assert now.encode_continuation(PLACEHOLDER) == [len(before)]
        assert len(now) == len(before) + 2
        assert now.encode("I love apples") == before.encode("I love apples")
    assert new.vocabularies.joint == joint
    assert PLACEHOLDER not in old(f"I love {PLACEHOLDER}")
    hypotheses = new.hypotheses([f"I love {PLACEHOLDER}", f"We want {PLACEHOLDER} and tea"])
    assert all(PLACEHOLDER in best[0].text and PLACEHOLDER in best[0].subwords for best in hypotheses)


def test_embeddings_of_old_tokens_are_kept(entities: Path, trained_run: Path, tmp_path: Path) -> None:
    run_recipe(
        recipe(entities, "ent", **init_from(trained_run, new_tokens=[PLACEHOLDER]), training__steps=1),
        tmp_path / "tuned",
    )
    initial = load_file(tmp_path / "tuned" / "data" / "initial.safetensors")
    old = load_file(trained_run / "best" / "model.safetensors")
    assert initial["source_embedding.weight"].shape[0] == old["source_embedding.weight"].shape[0] + 1
    assert all(torch.equal(initial[name][: len(old[name])], old[name]) for name in old)


# Encoder only


def test_encoder_is_initialised_and_decoder_is_random(
    toy: Path, trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"decoder_layers": 1, "tie": "none", "dropout": 0.0}
    run_recipe(recipe(toy, "train", **init_from(trained_run, parts="encoder"), model=other), tmp_path / "tuned")
    assert f"initialised with the encoder of {trained_run}" in capsys.readouterr().out
    initial = load_file(tmp_path / "tuned" / "data" / "initial.safetensors")
    old = unique_tensors(Translator.load(trained_run).model)
    taken = {name for name in initial if name in old and torch.equal(initial[name], old[name])}
    assert {name for name in initial if name.startswith(("encoder", "source_embedding"))} <= taken
    random = ("target_embedding.weight", "output", "decoder.0.attention.qkv.weight")
    assert not taken & set(random) and set(random) <= initial.keys()
    with pytest.raises(UserError, match=r"model\.heads: 4 contradicts 2"):
        wrong = {"model": {"heads": 4}}
        run_recipe(recipe(toy, "train", **init_from(trained_run, parts="encoder"), **wrong), tmp_path / "wrong")


def test_nat_model_is_initialised_with_an_autoregressive_encoder(toy: Path, trained_run: Path, tmp_path: Path) -> None:
    kept = {key: value for key, value in SMALL.items() if not key.startswith(("model.", "tokenizer.", "search."))}
    files = {"data.source": str(toy / "train.en"), "data.target": str(toy / "train.zh")}
    wanted = kept | files | {"model.kind": "nat", "training.steps": 4, "init.from": str(trained_run)}
    run_recipe(load_recipe(None, [], wanted | {"init.parts": "encoder"}), tmp_path / "nat")
    initial = load_file(tmp_path / "nat" / "data" / "initial.safetensors")
    old = load_file(trained_run / "best" / "model.safetensors")
    taken = [name for name in old if name.startswith(("encoder", "source_embedding"))]
    assert all(torch.equal(initial[name], old[name]) for name in taken)
    assert Translator.load(tmp_path / "nat").model.config.kind == "nat"
    with pytest.raises(UserError, match=r"model\.kind: .* has kind transformer, not nat"):
        run_recipe(load_recipe(None, [], wanted), tmp_path / "wrong")
    words = wanted | {"init.from": str(tmp_path / "nat"), "init.new_tokens": [PLACEHOLDER]}
    run_recipe(load_recipe(None, [], words), tmp_path / "grown")
    assert len(Translator.load(tmp_path / "grown").vocabularies.source) == len(old["source_embedding.weight"]) + 1


# Resuming


@pytest.fixture(scope="module")
def random_parts() -> dict[str, Any]:
    return {"model": {"dropout": 0.2}, "data__hold_out": 5, "optim__accumulate": 2}


@pytest.mark.parametrize("parts", ["all", "encoder"])
@pytest.mark.parametrize("crash", [1, 7])
def test_run_resumes_without_the_initial_folder(
    parts: str, crash: int, entities: Path, trained_run: Path, tmp_path: Path, random_parts: dict[str, Any]
) -> None:
    folder = shutil.copytree(trained_run, tmp_path / "folder")
    (tmp_path / "words").write_text(f"{PLACEHOLDER}\n")
    words = init_from(folder, parts=parts, new_tokens=["<x>"], new_tokens_file=str(tmp_path / "words"))
    tuned = recipe(entities, "ent", **words, **random_parts)
    run_recipe(tuned, tmp_path / "uninterrupted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.training.run._remove_run", lambda *_: None)  # as if the process had been killed
        with crashing_at(crash):
            run_recipe(tuned, tmp_path / "resumed")
    shutil.rmtree(folder)
    (tmp_path / "words").unlink()
    run_recipe(tuned, tmp_path / "resumed")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "uninterrupted")
    assert log(tmp_path / "resumed") == log(tmp_path / "uninterrupted")


def test_initial_folder_may_change_but_init_settings_may_not(
    entities: Path, trained_run: Path, tmp_path: Path, random_parts: dict[str, Any]
) -> None:
    folder = shutil.copytree(trained_run, tmp_path / "folder")
    init = init_from(folder, new_tokens=[PLACEHOLDER])
    out = tmp_path / "run"
    with crashing_at(7):
        run_recipe(recipe(entities, "ent", **init, **random_parts), out)
    (folder / "best" / "config.json").write_text("{}")
    for changes, message in (
        ({"init": {"from": str(folder)}}, r'started with init\.new_tokens=\["<ent>"\], not \[\]'),
        (
            {"init": {"from": str(folder), "new_tokens": [PLACEHOLDER], "parts": "encoder"}},
            r"init\.parts=all, not encoder",
        ),
        ({"init": {}}, "started with "),
        ({"model": {"width": 64}}, r"model\.width: 64 contradicts 32"),
    ):
        with pytest.raises(UserError, match=message):
            run_recipe(recipe(entities, "ent", **init | random_parts | changes), out)
    run_recipe(recipe(entities, "ent", **init, **random_parts), out)
    assert json.loads((out / "last" / "scores.json").read_text())["step"] == 10


def test_damaged_initial_weights_are_rejected(
    entities: Path, trained_run: Path, tmp_path: Path, random_parts: dict[str, Any]
) -> None:
    out = tmp_path / "run"
    tuned = recipe(entities, "ent", **init_from(trained_run), **random_parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("regard.training.run._remove_run", lambda *_: None)
        with crashing_at(1):
            run_recipe(tuned, out)
    (out / "data" / "initial.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"initial\.safetensors: damaged"):
        run_recipe(tuned, out)
