"""Contract 8, errors.

Invalid input is rejected with one sentence that names the file, line or key, the problem, and the correct form. No
partial output remains.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard import SearchSettings, Transformer, TransformerConfig, Translator, UserError
from regard.data.text.tokenizer import Tokenizer, Vocabularies
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe
from tests.conftest import Command
from tests.forks import Forked


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy: Path) -> Path:
    """Working directory of every test, with valid and invalid files."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(toy / "train.en", tmp_path / "good.en")
    shutil.copy(toy / "train.zh", tmp_path / "good.zh")
    (tmp_path / "short.zh").write_text("一\n二\n三\n", encoding="utf-8")
    (tmp_path / "few.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (tmp_path / "empty.en").touch()
    (tmp_path / "empty.zh").touch()
    (tmp_path / "blank.en").write_text("\n" * 20, encoding="utf-8")
    (tmp_path / "blank.zh").write_text("\n" * 20, encoding="utf-8")
    lines = (toy / "train.en").read_bytes().splitlines(keepends=True)
    (tmp_path / "latin.en").write_bytes(b"".join([*lines[:6], b"caf\xe9\n", *lines[7:]]))
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "broken.yaml").write_text("optim: [1,\n")
    (tmp_path / "five.yaml").write_text("data: 5\n")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    (tmp_path / "group.yaml").write_text("dta: {builtin: en-zh}\ntraining: {steps: 1}\n")
    (tmp_path / "typo.yaml").write_text("data: {builtin: en-zh}\noptim: {learnrate: 1}\n")
    (tmp_path / "plain.txt").write_text("I am a file.\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    return tmp_path


def read_all(folder: Path) -> dict[str, bytes | None]:
    """Return the content of all files below a folder, with None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


FILES = ("--src", "good.en", "--tgt", "good.zh")
OUT = ("--out", "new/parent/run")


def train(*words: str) -> tuple[str, ...]:
    return ("train", *OUT, *words)


def changed(*changes: str) -> tuple[str, ...]:
    return train(*FILES, *(word for change in changes for word in ("--set", change)))


# Arguments of a command, and parts of its error message.
INVALID_TRAINING = {
    "source is missing": (
        train("--src", "no.en", "--tgt", "good.zh"),
        ["no.en: no such file or folder; give the data with --src"],
    ),
    "target is missing": (train("--src", "good.en", "--tgt", "no.zh"), ["no.zh: no such file", "with --tgt"]),
    "validation is missing": (
        train(*FILES, "--valid-src", "no.en", "--valid-tgt", "good.zh"),
        ["no.en", "--valid-src"],
    ),
    "different lengths": (train("--src", "good.en", "--tgt", "short.zh"), ["good.en has 500", "short.zh has 3"]),
    "empty corpus": (train("--src", "empty.en", "--tgt", "empty.zh"), ["empty.en", "contains no pairs"]),
    "blank corpus": (train("--src", "blank.en", "--tgt", "blank.zh"), ["blank.en: all 20 pairs have an empty side"]),
    "blank validation": (
        (*changed("tokenizer.size=300"), "--valid-src", "blank.en", "--valid-tgt", "blank.zh"),
        ["none of the 20 validation pairs"],
    ),
    "all pairs too long": (
        changed("data.max_length=2", "tokenizer.size=300"),
        ["no training pair", "max_length=2"],
    ),
    "too few to hold out": (
        train("--src", "few.en", "--tgt", "short.zh"),
        ["few.en: 3 pairs with 3 different sources", "valid_source"],
    ),
    "invalid utf-8": (train("--src", "latin.en", "--tgt", "good.zh"), ["latin.en, line 7", "UTF-8"]),
    "no target": (train("--src", "good.en"), ["good.en", "a .tsv, .jsonl, .tmx or .xlf file"]),
    "folder instead of a file": (train("--src", "full", "--tgt", "good.zh"), ["full is a directory"]),
    "target without source": (train("demo", "--tgt", "good.zh"), ["builtin en-zh"]),
    "validation of the builtin": (train("demo", "--valid-src", "good.en"), ["builtin en-zh"]),
    "valid target alone": (train(*FILES, "--valid-tgt", "good.zh"), ["valid_target needs valid_source"]),
    "nothing to train on": (train(), ["recipe", "demo", "--src"]),
    "text and images": (train(*FILES, "--data", "full"), ["--src", "text", "--data", "images", "only one kind"]),
    "targets and images": (train("--tgt", "good.zh", "--data", "full"), ["--tgt", "--data", "only one kind"]),
    "text for an image model": (train("mnist", *FILES), ["data.source is for model.kind=transformer or nat, not vit"]),
    "images for a translator": (
        train("demo", "--data", "full"),
        ["data.images is for model.kind=vit or swin or croco"],
    ),
    "recipe of images without data": (train("mnist"), ["mnist: no such file or folder; give the data with --data"]),
    "recipe of text without data": (train("multi30k-en-de"), ["train.en.gz: no such file", "give the data with --src"]),
    "images are missing": (train("--data", "no"), ["no: no such file or folder; give the data with --data"]),
    "no --out": (("train", *FILES), ["--out"]),
    "unknown key": (changed("optim.learnrate=1"), ["unknown key optim.learnrate; did you mean optim.lr?"]),
    "unknown model key": (changed("model.dropot=0.3"), ["unknown key model.dropot; did you mean model.dropout?"]),
    "misspelt preset": (changed("model.presett=tiny"), ["did you mean model.preset?"]),
    "unknown group": (changed("optm.lr=1"), ["unknown key optm.lr; did you mean optim.lr?"]),
    "no similar key": (
        changed("zzz=1"),
        ["unknown key zzz; known are data, init, tokenizer, model, optim, batch"],
    ),
    "key of another group": (changed("training.lr=1"), ["unknown key training.lr; did you mean optim.lr?"]),
    "key without group": (changed("lr=1"), ["unknown key lr; did you mean optim.lr?"]),
    "text for a number": (changed("optim.lr=fast"), ["optim.lr", "number", "'fast'"]),
    "number out of range": (changed("training.steps=0"), ["training.steps", "greater than 0", "found 0"]),
    "fraction for a count": (changed("training.steps=1.5"), ["training.steps", "integer", "1.5"]),
    "unknown choice": (changed("optim.schedule=linear"), ["optim.schedule", "'noam'", "'linear'"]),
    "value for a group": (changed("optim=3"), ["optim: input should be a group of keys and values, found 3"]),
    "value for the model": (changed("model=3"), ["model: input should be a group", "preset (tiny", "found 3"]),
    "value for the data": (
        train("five.yaml"),
        ["five.yaml: data: input should be a group of keys and values (the corpus: source and target, or builtin)"],
    ),
    "file for a value": (train("five.yaml", *FILES), ["five.yaml: data must be a group", "data: {source: good.en}"]),
    "key below a value": (changed("optim.lr=1", "optim.lr.x=3"), ["--set optim.lr.x=3", "lr"]),
    "unknown preset": (changed("model.preset=gigantic"), ["model.preset", "tiny, small, base, big"]),
    "list for a preset": (changed("model.preset=[1]"), ["model.preset"]),
    "wrong model value": (changed("model.heads=many"), ["model", "heads", "'many'"]),
    "indivisible width": (changed("model.heads=7"), ["model: width 256 is not divisible by heads 7"]),
    "vocabulary set by hand": (changed("model.source_vocab=7"), ["model.source_vocab", "tokenizer"]),
    "vocab is a preset's argument": (changed("model.vocab=7"), ["model.vocab"]),
    "end token set by hand": (changed("model.eos=7"), ["model.eos", "tokenizer"]),
    "tied but separate": (changed("tokenizer.joint=false", "model.tie=all"), ["model.tie", "one vocabulary"]),
    "n_best over beam": (changed("search.n_best=9"), ["search", "n_best 9", "5"]),
    "set without =": (changed("optim.lr"), ["--set optim.lr", "key=value"]),
    "set without key": (changed("=3"), ["unknown key"]),
    "set with bad yaml": (changed("optim.lr=[1"), ["--set optim.lr=[1", "YAML"]),
    "recipe is missing": (train("no.yaml"), ["no.yaml", "no such recipe", "demo"]),
    "recipe is not yaml": (train("broken.yaml"), ["broken.yaml", "not valid YAML"]),
    "recipe is a list": (train("list.yaml"), ["list.yaml", "list"]),
    "recipe is a folder": (train("full"), ["full"]),
    "recipe is not text": (train("latin.en"), ["latin.en"]),
    "misspelt group in a recipe": (train("group.yaml"), ["unknown key dta.builtin; did you mean data.builtin?"]),
    "recipe is empty": (
        train("empty.yaml"),
        ["empty.yaml: data is missing (the corpus: source and target, or builtin)"],
    ),
    "model larger than memory": (changed("model.hidden=1099511627776"), ["M parameters take", "a smaller model"]),
    "unknown key in a recipe": (train("typo.yaml"), ["typo.yaml", "optim.learnrate", "did you mean optim.lr?"]),
    "out is not empty": (("train", *FILES, "--out", "full"), ["full", "already exists", "--out"]),
    "out is a file": (("train", *FILES, "--out", "plain.txt"), ["plain.txt", "already exists"]),
    "file instead of a folder": (("train", *FILES, "--out", "plain.txt/run"), ["plain.txt/run", "cannot be"]),
    "unknown device": (changed("training.device=gpu"), ["'gpu'", "auto or cpu"]),
    "device without numbers": (changed("training.device=meta"), ["'meta'"]),
    "demo into a full folder": (("demo", "--out", "full"), ["full", "already exists"]),
    "demo with an unknown key": (("demo", "--set", "optim.learnrate=1", *OUT), ["did you mean optim.lr?"]),
    "unknown option": (train(*FILES, "--otu", "x"), ["--otu"]),
    "unknown command": (("trian",), ["trian", "train"]),
}


@pytest.mark.parametrize(("words", "parts"), INVALID_TRAINING.values(), ids=INVALID_TRAINING)
def test_invalid_training_is_rejected_without_output(
    words: tuple[str, ...], parts: list[str], here: Path, command: Command
) -> None:
    before = read_all(here)
    answer = command(*words)
    for part in parts:
        assert part in answer.error
    assert read_all(here) == before


def test_new_process_prints_the_same_error(here: Path, shell: Command) -> None:
    words, parts = INVALID_TRAINING["unknown key"]
    before = read_all(here)
    answer = shell(*words)
    for part in parts:
        assert part in answer.error
    assert "Traceback" not in answer.out + answer.err
    assert read_all(here) == before


def test_python_api_raises_the_same_error(here: Path, command: Command) -> None:
    by_command = command(*train("--src", "good.en", "--tgt", "short.zh")).error
    recipe = load_recipe(None, [], {"data.source": "good.en", "data.target": "short.zh"})
    with pytest.raises(UserError) as error:
        run_recipe(recipe, here / "out")
    assert str(error.value) == by_command
    assert not (here / "out").exists()


def test_failed_run_leaves_an_empty_output_folder_empty(
    here: Path, make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "out").mkdir()

    def fail(*_: object) -> None:
        assert (here / "out" / "recipe.yaml").exists()
        (here / "out" / "log.jsonl").touch()
        raise RuntimeError("failure of the first step")

    monkeypatch.setattr("regard.training.run.Run.train", fail)
    with pytest.raises(RuntimeError, match="failure of the first step"):
        run_recipe(make_recipe(), here / "out")
    assert list((here / "out").iterdir()) == []


def test_failed_run_does_not_remove_other_runs(
    here: Path, make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        (here / "runs" / "other").mkdir()
        raise RuntimeError("failure of the first step")

    monkeypatch.setattr("regard.training.run.Run.train", fail)
    with pytest.raises(RuntimeError, match="failure of the first step"):
        run_recipe(make_recipe(), here / "runs" / "mine")
    assert [path.name for path in (here / "runs").iterdir()] == ["other"]


def test_failure_after_the_first_checkpoint_keeps_the_model(
    here: Path, make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.training.progress import Progress

    def fail_late(self: Progress, step: int, report: dict[str, float]) -> None:
        if step > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "step", fail_late)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(make_recipe(training__steps=4, training__validate_every=2, training__log_every=1), here / "out")
    assert Translator.load(here / "out")("I love apples", max_extra=2) is not None


# Damaged model folders


def rewrite_config(folder: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def rewrite_tensors(folder: Path, change: Callable[[dict], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


NORM = "encoder_norm.weight"
DAMAGES = {
    "no config": (lambda m: (m / "config.json").unlink(), ["config.json"]),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), ["model.safetensors", "no such file"]),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), ["tokenizer.json"]),
    "truncated config": (lambda m: truncate(m / "config.json"), ["config.json", "damaged"]),
    "truncated weights": (lambda m: truncate(m / "model.safetensors"), ["model.safetensors", "damaged"]),
    "truncated tokenizer": (lambda m: truncate(m / "tokenizer.json"), ["tokenizer.json", "damaged"]),
    "garbage for config": (lambda m: (m / "config.json").write_bytes(b"\xff\xfe{"), ["config.json", "damaged"]),
    "garbage for weights": (lambda m: (m / "model.safetensors").write_bytes(b"garbage" * 9), ["model.safetensors"]),
    "garbage for tokenizer": (lambda m: (m / "tokenizer.json").write_bytes(b"\xff{"), ["tokenizer.json"]),
    "empty weights": (lambda m: (m / "model.safetensors").write_bytes(b""), ["model.safetensors", "damaged"]),
    "config is a list": (lambda m: (m / "config.json").write_text("[]"), ["config.json", "format 1"]),
    "other format": (lambda m: rewrite_config(m, lambda c: c.update(format=9)), ["config.json", "format 1"]),
    "no model in config": (lambda m: rewrite_config(m, lambda c: c.pop("model")), ["config.json"]),
    "model is a word": (lambda m: rewrite_config(m, lambda c: c.update(model="big")), ["config.json", "kind"]),
    "unknown kind": (
        lambda m: rewrite_config(m, lambda c: c["model"].update(kind="rnn")),
        ["config.json", "'rnn'", "transformer"],
    ),
    "unknown key": (
        lambda m: rewrite_config(m, lambda c: c["model"].update(widht=1)),
        ["config.json", "widht", "did you mean width?"],
    ),
    "other width": (
        lambda m: rewrite_config(m, lambda c: c["model"].update(width=64)),
        ["model.safetensors", "[32]", "[64]"],
    ),
    "other depth": (
        lambda m: rewrite_config(m, lambda c: c["model"].update(encoder_layers=1)),
        ["model.safetensors", "unknown tensor encoder.1"],
    ),
    "missing tensor": (
        lambda m: rewrite_tensors(m, lambda t: t.pop(NORM)),
        ["model.safetensors", f"lacks tensor {NORM}"],
    ),
    "wrong shape": (
        lambda m: rewrite_tensors(m, lambda t: t.update({NORM: torch.zeros(5)})),
        ["model.safetensors", NORM, "[5]", "[32]"],
    ),
    "other tokenizer": (
        lambda m: Tokenizer.train(["a b c"] * 3, 261).save(m / "tokenizer.json"),
        ["261", "340", "not saved together"],
    ),
    "pipe for config": (lambda m: replace(m / "config.json", os.mkfifo), ["config.json", "is a pipe"]),
    "pipe for weights": (lambda m: replace(m / "model.safetensors", os.mkfifo), ["model.safetensors", "is a pipe"]),
    "endless tokenizer": (
        lambda m: replace(m / "tokenizer.json", lambda path: path.symlink_to("/dev/zero")),
        ["tokenizer.json", "is a device, but must be a regular file"],
    ),
    "folder for weights": (lambda m: replace(m / "model.safetensors", Path.mkdir), ["is a directory"]),
    "deeply nested config": (lambda m: (m / "config.json").write_text("[" * 10**5), ["config.json", "nested"]),
    "tokenizer without normaliser": (
        lambda m: (m / "tokenizer.json").write_text((m / "tokenizer.json").read_text().replace("normalizer", "other")),
        ["tokenizer.json"],
    ),
    "half of two tokenizers": (
        lambda m: (m / "tokenizer.json").rename(m / "source.tokenizer.json"),
        ["target.tokenizer.json"],
    ),
}


@pytest.fixture
def folder(trained_run: Path, here: Path) -> Path:
    return shutil.copytree(trained_run / "best", here / "model")


@pytest.mark.parametrize(("damage", "parts"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_folder_is_rejected_by_name(
    damage: Callable[[Path], object], parts: list[str], folder: Path, command: Command
) -> None:
    damage(folder)
    with pytest.raises(UserError) as error:
        Translator.load(folder)
    message = command("translate", "model", "I love apples", "--device", "cpu").error
    for part in ["model", *parts]:
        assert part in str(error.value)
        assert part in message


def test_scores_file_is_optional(folder: Path) -> None:
    (folder / "scores.json").unlink()
    assert Translator.load(folder)("I love apples") == "我喜欢苹果"


# Translating and scoring


def translate(*words: str) -> tuple[str, ...]:
    return ("translate", "model", *words)


def evaluate(source: str, reference: str, *words: str) -> tuple[str, ...]:
    return ("evaluate", "model", "--src", source, "--ref", reference, *words)


INVALID_USE = {
    "no such run": (("translate", "nowhere", "I"), ["nowhere", "no such model folder"]),
    "not a run": (("translate", "full", "I"), ["full", "neither a model folder"]),
    "a file, not a run": (("translate", "plain.txt", "I"), ["plain.txt", "neither a model folder"]),
    "beam 0": (translate("I", "--beam", "0"), ["beam", "found 0"]),
    "beam is a word": (translate("I", "--beam", "wide"), ["--beam"]),
    "unknown penalty": (translate("I", "--length-penalty", "long"), ["length_penalty", "'average'", "'long'"]),
    "negative alpha": (translate("I", "--alpha", "-1"), ["alpha", "found -1"]),
    "unknown device": (translate("I", "--device", "gpu"), ["'gpu'", "auto or cpu"]),
    "evaluate: missing source": (evaluate("no.en", "good.zh"), ["no.en", "does not exist"]),
    "evaluate: missing reference": (evaluate("good.en", "no.zh"), ["no.zh", "does not exist"]),
    "evaluate: different lengths": (evaluate("good.en", "short.zh"), ["good.en has 500", "short.zh has 3"]),
    "evaluate: empty": (evaluate("empty.en", "empty.zh"), ["empty.en", "contains no pairs"]),
    "evaluate: invalid utf-8": (evaluate("latin.en", "good.zh"), ["latin.en, line 7", "UTF-8"]),
    "evaluate: unknown tokenizer": (evaluate("few.en", "short.zh", "--tokenize", "moses"), ["--tokenize", "'moses'"]),
    "evaluate: beam 0": (evaluate("few.en", "short.zh", "--beam", "0"), ["beam", "found 0"]),
    "evaluate: no folder for out": (evaluate("few.en", "short.zh", "--out", "no/such/file"), ["no/such/file"]),
    "evaluate: out is a folder": (evaluate("few.en", "short.zh", "--out", "full"), ["full"]),
    "evaluate: no source": (("evaluate", "model", "--ref", "good.zh"), ["--src"]),
}


@pytest.mark.parametrize(("words", "parts"), INVALID_USE.values(), ids=INVALID_USE)
def test_invalid_use_is_rejected_without_output(
    words: tuple[str, ...], parts: list[str], folder: Path, here: Path, command: Command
) -> None:
    before = read_all(here)
    answer = command(*words)
    for part in parts:
        assert part in answer.error
    assert answer.out == ""
    assert read_all(here) == before


def test_invalid_utf8_in_standard_input_is_rejected_with_its_line(folder: Path, command: Command) -> None:
    answer = command(*translate(), stdin=b"I love apples\nbon caf\xe9\n")
    assert "standard input, line 2" in answer.error
    assert answer.out == ""


def test_invalid_utf8_argument_is_rejected(folder: Path, command: Command) -> None:
    assert "surrogate" in command(*translate("caf\udce9")).error


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"beam": 2, "n_best": 3}, "n_best 3"),
        ({"beam": 0}, "beam"),
        ({"length_penalty": "long"}, "length_penalty"),
        ({"bean": 4}, "did you mean beam?"),
        ({"max_ratio": -1}, "max_ratio"),
        ({"alpha": "much"}, "alpha"),
    ],
)
def test_invalid_search_options_are_rejected(search: dict[str, object], message: str, trained_run: Path) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        Translator.load(trained_run)("I love apples", **search)


# Sentences longer than the training data


def test_very_long_sentence_is_translated(folder: Path, command: Command) -> None:
    sentence = "I love apples and books " * 160
    assert len(Translator.load(folder).vocabularies.source.encode(sentence)) > 600
    answer = command(*translate(sentence, "I love apples", "--beam", "1"))
    assert answer.code == 0
    assert "but the longest training source has" in answer.err
    assert len(answer.out.splitlines()) == 2
    assert answer.out.splitlines()[1] == "我喜欢苹果"


def untrained_translator(positions: str, max_length: int) -> Translator:
    tokenizer = Tokenizer.train(["a b c d"] * 3, 270)
    size = {"width": 16, "heads": 2, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1}
    torch.manual_seed(0)
    config = TransformerConfig.base(len(tokenizer), positions=positions, max_length=max_length, **size)
    return Translator(Transformer(config), Vocabularies(tokenizer, tokenizer))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_last_word_of_a_long_sentence_affects_the_output(positions: str) -> None:
    translator = untrained_translator(positions, 20)
    ids = translator.vocabularies.source.encode("a b c d " * 200)
    assert len(ids) > 600
    one, other = translator.log_probs([ids, [*ids[:-1], ids[0]]], [[], []])
    assert not torch.equal(one, other)
    assert len(translator.hypotheses(["a b c d " * 200], SearchSettings(beam=2, max_ratio=0, max_extra=5))) == 1


def test_sentence_beyond_the_learned_positions_is_rejected_with_its_number(here: Path, command: Command) -> None:
    translator = untrained_translator("learned", 200)
    (here / "learned").mkdir()
    translator.save(here / "learned")
    long = "a b c d " * 60
    tokens = len(translator.vocabularies.source.encode(long))
    message = f"sentence 2 has {tokens} tokens, but this model's positions end at 199"
    with pytest.raises(UserError, match=message):
        translator(["a", long], split=False)
    answer = command("translate", "learned", "a", long, "--no-split")
    assert message in answer.error
    assert answer.out == ""


def test_diagonal_positions_end_at_the_width() -> None:
    translator = untrained_translator("diagonal", 200)
    assert isinstance(translator("a b c"), str)
    with pytest.raises(UserError, match="tokens, but this model's positions end at 15"):
        translator("a b c d " * 10, split=False)


def test_longest_sentence_for_learned_positions_is_accepted() -> None:
    translator = untrained_translator("learned", 20)
    fits = "~" * 18  # one token each, plus a leading space and END
    assert len(translator.vocabularies.source.encode(fits)) == 19
    settings = SearchSettings(beam=1, max_ratio=0, max_extra=5)
    assert len(translator.hypotheses([fits], settings)) == 1
    with pytest.raises(UserError, match="sentence 1 has 20 tokens"):
        translator.hypotheses([fits + "~"], settings, split=False)


# Interruptions


def test_ctrl_c_during_training_saves_a_checkpoint(
    here: Path, fork: Callable[..., Forked], small_settings: list[str]
) -> None:
    endless = ("--set", "training.steps=1000000", "--set", "training.validate_every=1000000")
    process = fork(*train(*FILES), *small_settings, *endless, "--set", "training.log_every=1")
    for line in process.stdout:
        if line.startswith("step "):
            break
    run = here / "new/parent/run"
    assert (run / "recipe.yaml").exists()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err == "regard: interrupted\n"
    assert "the same command resumes from there" in out
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
    assert not (run / "last").exists()


def test_ctrl_c_before_the_first_step_leaves_no_output(
    here: Path, make_recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        assert (here / "out").exists()
        signal.raise_signal(signal.SIGINT)

    before = read_all(here)
    monkeypatch.setattr("regard.training.tasks.translation.task.TranslationTask.open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(make_recipe(), here / "out")
    assert read_all(here) == before


def test_closed_pipe_ends_the_command_silently(folder: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn(*translate("--beam", "1"))
    assert process.stdout is not None
    process.stdout.close()  # as `head` does
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write("I love apples\n" * 20)
    process.stdin.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=300) != 0
    process.stderr.close()
