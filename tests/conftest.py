"""Shared fixtures: small corpora, trained models, and the command line."""

import atexit
import gc
import io
import lzma
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from regard.data.builtin import corpus
from regard.data.text.readers import Pair
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.task import Task
from regard.training.tasks.registry import load_recipe, task_of
from tests.browser import browser as browser
from tests.forks import Forked
from tests.images import WINDOWED, image_recipe, paint


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep imported modules and collected tests, which stay until the end, out of every garbage collection."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # Python releases them at its end


# The time of an example depends on the load of the machine.
settings.register_profile("regard", deadline=None)
settings.load_profile("regard")

# A shell starts background jobs with SIGINT ignored. Tests and the processes they start need Python's default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Child processes import the same packages as the tests, also if regard is not installed.
ROOT = str(Path(__file__).parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([ROOT, *os.environ.get("PYTHONPATH", ROOT).split(os.pathsep)]))

SUBJECTS = {"I": "我", "You": "你", "They": "他们", "We": "我们", "Children": "孩子"}
VERBS = {"love": "喜欢", "buy": "买", "see": "看见", "want": "要"}
OBJECTS = {"apples": "苹果", "books": "书", "tea": "茶", "dogs": "狗", "cats": "猫"}

# A small Transformer that trains at about a hundred steps per second.
SMALL = {
    "data.hold_out": 30,
    "tokenizer.size": 340,
    "model.preset": "tiny",
    "model.width": 32,
    "model.heads": 2,
    "model.hidden": 64,
    "model.encoder_layers": 2,
    "model.decoder_layers": 2,
    "model.dropout": 0.0,
    "optim.lr": 1e-2,
    "optim.schedule": "cosine",
    "optim.warmup": 20,
    "batch.tokens": 256,
    "training.steps": 300,
    "training.validate_every": 150,
    "training.log_every": 50,
    "training.valid_sentences": 20,
    "training.device": "cpu",
    "search.beam": 1,
}


def toy_pairs() -> list[Pair]:
    """Return sentences of a subject, a verb and one or two objects; "I love apples" is the first."""
    simple = [
        Pair(" ".join(english), "".join(part[word] for part, word in zip(PARTS, english, strict=True)))
        for english in product(*PARTS)
    ]
    double = [Pair(f"{s} and {e}", f"{t}和{OBJECTS[e]}") for s, t in simple for e in OBJECTS if not s.endswith(e)]
    return simple + double


PARTS = (SUBJECTS, VERBS, OBJECTS)


def build_task(recipe: Recipe, device: torch.device, progress: Progress) -> Task[Any]:
    """Prepare data in a temporary folder and build a new model, without a run folder."""
    task_type = task_of(recipe)
    with tempfile.TemporaryDirectory() as folder:  # memory-mapped files outlive their names
        task_type.prepare_data(Path(folder), recipe, progress, None)
        return task_type.open(Path(folder), recipe, device, progress)


def small_recipe(source: Path, target: Path | None = None, **changes: object) -> Recipe:
    """Return the recipe of the small model; changes are written group__key=value."""
    files = {"data.source": str(source)} | ({} if target is None else {"data.target": str(target)})
    return load_recipe(None, [], SMALL | files | {key.replace("__", "."): value for key, value in changes.items()})


def settings_of(recipe: dict[str, object]) -> list[str]:
    """Return settings as command-line arguments: --set key=value."""
    return [word for key, value in recipe.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only folder with a small parallel corpus, train.en and train.zh."""
    folder = tmp_path_factory.mktemp("toy")
    pairs = toy_pairs()
    (folder / "train.en").write_text("".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8")
    (folder / "train.zh").write_text("".join(f"{pair.target}\n" for pair in pairs), encoding="utf-8")
    return folder


@pytest.fixture
def short_builtin_corpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces the built-in corpus by its first 300 training, 20 validation and 20 test sentences."""
    with lzma.open(corpus.PATH, "rt", encoding="utf-8") as file:
        lines = file.readlines()
    short = tmp_path_factory.mktemp("builtin") / "en-zh.tsv.xz"
    with lzma.open(short, "wt", encoding="utf-8") as file:
        for split, size in (("train", 300), ("valid", 20), ("test", 20)):
            file.writelines([line for line in lines if line.startswith(f"{split}\t")][:size])
    monkeypatch.setattr(corpus, "PATH", short)


@pytest.fixture(scope="session")
def trained_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only training run whose best model translates the toy corpus."""
    out = tmp_path_factory.mktemp("runs") / "toy"
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", training__steps=450), out)
    return out


@pytest.fixture(scope="session")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only folder of images in train/ and test/, in three classes."""
    folder = tmp_path_factory.mktemp("painted")
    paint(folder / "train", 20, 1)
    paint(folder / "test", 10, 2)
    return folder


@pytest.fixture(scope="session")
def image_run(painted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only training run whose best model, a ViT, classifies the painted images."""
    out = tmp_path_factory.mktemp("runs") / "images"
    run_recipe(image_recipe(painted), out)
    return out


@pytest.fixture(scope="session")
def swin_run(painted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A read-only training run of a Swin Transformer on the painted images."""
    out = tmp_path_factory.mktemp("runs") / "windows"
    run_recipe(image_recipe(painted, WINDOWED), out)
    return out


@pytest.fixture
def make_recipe(toy: Path) -> Callable[..., Recipe]:
    """A function that returns the small recipe on the toy corpus; changes are written group__key=value."""
    return lambda **changes: small_recipe(toy / "train.en", toy / "train.zh", **changes)


@pytest.fixture
def small_settings() -> list[str]:
    """Settings of the small model as arguments of `regard train`."""
    return settings_of(SMALL)


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error message. Checks that it is a single line and the exit code is 2."""
        assert self.code == 2, (self.code, self.err)
        assert self.err.startswith("regard: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n")
        return self.err.removeprefix("regard: ").strip()


Command = Callable[..., CommandResult]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `regard ...` in this process, through the entry point of the console script."""
    from regard.cli import main

    def run(*words: object, stdin: bytes = b"") -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        code = stopped.value.code
        return CommandResult(0 if code is None else int(code), out, err)

    return run


SHELL = [sys.executable, "-m", "regard"]
ENVIRONMENT = os.environ | {"PYTHONUTF8": "1"}


@pytest.fixture
def shell(tmp_path: Path) -> Command:
    """Run `regard ...` in a new process, in the folder of the test."""

    def run(*words: object, stdin: bytes = b"") -> CommandResult:
        done = subprocess.run(
            [*SHELL, *map(str, words)], input=stdin, capture_output=True, cwd=tmp_path, env=ENVIRONMENT, timeout=300
        )
        return CommandResult(done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))

    return run


@pytest.fixture
def spawn(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start `regard ...` in a new process without waiting for it."""

    def start(*words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*SHELL, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        )

    return start


@pytest.fixture
def fork(tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Start `regard ...` in a forked process, which is faster but has no standard input."""
    started: list[Forked] = []

    def start(*words: object, prepare: Callable[[], object] | None = None) -> Forked:
        started.append(Forked([*map(str, words)], tmp_path, {"PYTHONUTF8": "1"}, prepare))
        return started[-1]

    yield start
    for process in started:
        process.end()
