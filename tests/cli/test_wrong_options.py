"""Wrong files and values of every option: one sentence that names them, exit code 2, no output."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.contracts.test_errors import read_all

INPUTS = ("missing", "folder", "empty", "binary", "n" * 300)
OUTPUTS = ("folder", "missing/file", "n" * 300)
"""Paths that cannot be read or written as a file."""

# For each command: words, and the options of which PATH is the value.
READING = {
    "plot": "plot PATH",
    "average": "average run PATH --out new",
    "average a run": "average PATH --out new",
    "distill": "distill PATH --src few.en --out new.tsv",
    "distill --src": "distill run --src PATH --tgt few.zh --out new.tsv",
    "distill --tgt": "distill run --src few.en --tgt PATH --out new.tsv",
    "distill --recipe": "distill run --recipe PATH --out new.tsv",
    "distill --with": "distill run --src few.en --with PATH --out new.tsv",
    "translate": "translate PATH I",
    "translate --with": "translate run I --with PATH",
    "translate --input": "translate run --input PATH.tsv",
    "classify": "classify PATH image.png",
    "embed": "embed PATH --out new.npy --input few.en",
    "evaluate": "evaluate PATH --src few.en --ref few.zh",
    "evaluate --src": "evaluate run --src PATH --ref few.zh",
    "evaluate --ref": "evaluate run --src few.en --ref PATH",
    "evaluate --data": "evaluate images --data PATH",
    "evaluate --against": "evaluate run --src few.en --ref few.zh --against PATH",
    "evaluate --against scores": "evaluate run --src few.en --ref few.zh --against PATH.json",
    "look": "look PATH I",
    "look at an image": "look images PATH",
    "bench": "bench PATH --src few.en",
    "bench --src": "bench run --src PATH",
    "bench --ref": "bench run --src few.en --ref PATH",
    "export": "export PATH new --to torch",
    "import": "import PATH new",
    "serve": "serve PATH",
    "serve --keys": "serve run --keys PATH",
    "train": "train PATH --out new",
    "train --src": "train --src PATH --tgt few.zh --out new",
    "train --data": "train --data PATH --out new",
    "train --init-from": "train --src few.en --tgt few.zh --init-from PATH --out new",
}
WRITING = {
    "plot": "plot run --out PATH.png",
    "translate": "translate run I --output PATH",
    "classify": "classify images image.png --out PATH.csv",
    "embed": "embed run --input few.en --out PATH.npy",
    "evaluate": "evaluate run --src few.en --ref few.zh --out PATH",
    "look": "look run I --out PATH.html",
    "bench": "bench run --src few.en --seconds 0 --batch 1 --out PATH",
    "distill": "distill run --src few.en --out PATH.tsv",
    "key": "key ada --file PATH",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained_run: Path, image_run: Path, painted: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, run in (("run", trained_run), ("images", image_run)):
        shutil.copytree(run, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "few.en").write_text("I love apples\nYou buy tea\n", encoding="utf-8")
    (tmp_path / "few.zh").write_text("我喜欢苹果\n你买茶\n", encoding="utf-8")
    shutil.copy(min(painted.rglob("*.png")), tmp_path / "image.png")
    for suffix in ("", ".tsv", ".json", ".png", ".csv", ".npy", ".html"):
        (tmp_path / f"folder{suffix}").mkdir()
        (tmp_path / f"empty{suffix}").touch()
        (tmp_path / f"binary{suffix}").write_bytes(bytes(range(256)))
    return tmp_path


@pytest.mark.parametrize("case", READING)
def test_files_that_cannot_be_read_are_named(case: str, here: Path, command: Command) -> None:
    before = read_all(here)
    for path in INPUTS:
        if (path, case) in (("empty", "translate --input"), ("folder", "serve")):
            continue  # there is nothing to translate; the workers of a server check the content of a folder
        answer = command(*READING[case].replace("PATH", path).split())
        assert path in answer.error or path[:200] in answer.error, (path, answer.error)
        assert answer.out == "", path
    assert read_all(here) == before


@pytest.mark.parametrize("case", WRITING)
def test_files_that_cannot_be_written_are_named(case: str, here: Path, command: Command) -> None:
    before = read_all(here)
    for path in OUTPUTS:
        answer = command(*WRITING[case].replace("PATH", path).split())
        assert path in answer.error or path[:200] in answer.error, (path, answer.error)
    assert read_all(here) == before


HELPFUL = {
    "no references": (
        "evaluate run --src few.en",
        "evaluate needs --ref, the references of few.en, one per line; only .tsv, .jsonl, .parquet, .tmx, .xlf",
    ),
    "no other system": (
        "evaluate run --src few.en --ref few.zh --against nofile",
        "--against nofile: no such file or folder; give a model, a run, or a file of translations",
    ),
    "column": (
        "translate run --input two.tsv --key 7",
        "two.tsv, line 1: has 2 columns separated by tabs, but column 7 is needed; columns are counted from 0",
    ),
    "one column": ("translate run --input one.tsv --key 1", "one.tsv, line 1: has 1 column separated by tabs"),
    "word for a column": ("translate run --input two.tsv --key text", "--key text is not a column of a .tsv file"),
    "key": (
        "translate run --input two.jsonl --key 7",
        'two.jsonl, line 1: the key "7" is missing; the keys of this line are "source", "target".',
    ),
    "key of text": ("translate run --input few.en --key 7", "few.en: only .jsonl and .parquet files have keys"),
    "key without a file": ("translate run --key 7", "--key needs --input, a .jsonl or .tsv file"),
    "references of images": ("evaluate images --data x --ref few.zh", "--ref: has no effect with --data; omit it"),
    "split of text": ("evaluate run --src few.en --split test", "--split: has no effect with --src; omit it"),
    "endless benchmark": ("bench run --src few.en --seconds inf", "--seconds"),
    "endless YAML": (
        "train demo --out new --set optim.lr=&a[*a]",
        "--set optim.lr=&a[*a]: the value is not valid",
    ),
    "seed": (
        "train demo --out new --set training.seed=-1",
        "training.seed: input should be greater than or",
    ),
    "date": ("train demo --out new --set training.steps=2024-01-01", "found '2024-01-01'"),
    "recipe and references": ("distill run --recipe demo --tgt few.zh --out new.tsv", "--tgt belongs to --src"),
    "nothing to train": ("train --out new", "train needs a recipe (a YAML file or one of"),
    "no folder for the run": ("train demo", "train needs --out, the folder for the run"),
    "column of lines": ("translate run --input few.en --column a", "--column belongs to a .csv document; give --key"),
    "import with bad YAML": ("import image.png new --set heads=[", "--set heads=[: the value is not valid YAML"),
}


@pytest.mark.parametrize("case", HELPFUL)
def test_messages_say_what_to_do(case: str, here: Path, command: Command) -> None:
    (here / "two.tsv").write_text("I love apples\t我喜欢苹果\n", encoding="utf-8")
    (here / "one.tsv").write_text("I love apples\n", encoding="utf-8")
    (here / "two.jsonl").write_text('{"source": "I", "target": "我"}\n', encoding="utf-8")
    before = read_all(here)
    words, message = HELPFUL[case]
    assert message in command(*words.split()).error
    assert read_all(here) == before


def test_long_line_is_rejected_before_it_is_translated(here: Path, command: Command) -> None:
    advice = "but at most 4,096 tokens are processed at once; split it into sentences"
    answer = command("translate", "run", "--beam", "1", stdin=b"I love apples\n" + b"apples " * 300_000 + b"\n")
    assert answer.error == f"sentence 2 has 2,099,999 characters, {advice}"  # without the space at the end
    answer = command("translate", "run", "--beam", "1", stdin=b"I love apples " * 3000)
    assert f"tokens, {advice}" in answer.error
    answer = command("embed", "run", "--out", "new.npy", stdin=b"apples " * 300_000)
    assert answer.error == f"sentence 1 has 2,100,000 characters, {advice}"


def test_long_line_of_standard_input_is_rejected(here: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.files.MAX_LINE_BYTES", 20)
    answer = command("translate", "run", "--beam", "1", stdin=b"I love apples\n" + b"x" * 30)
    assert "standard input, line 2: longer than" in answer.error


def test_names_of_images_are_read_from_standard_input_in_any_encoding(here: Path, command: Command) -> None:
    assert command("classify", "images", stdin=b"image.png\r\n\n").out.startswith("image.png  ")
    assert "could not be read" in command("classify", "images", stdin=b"caf\xe9.png\n").err
    shutil.copy("image.png", os.fsdecode(b"caf\xe9.png"))
    # In a process of its own, because pytest cannot capture bytes that are not UTF-8.
    words = [sys.executable, "-m", "regard", "classify", "images"]
    answer = subprocess.run(words, input=b"caf\xe9.png\n", capture_output=True, timeout=300)
    assert (answer.returncode, answer.stdout[:9]) == (0, b"caf\xe9.png ")
