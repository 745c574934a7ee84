"""A server that the tests share, which serves three models, and a stand-in for a worker."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard import Translator
from regard.data.text.tokenizer import Tokenizer
from regard.serving.messages import ModelInfo, Options, Translation
from tests.serving.running import Running


def with_languages(run: Path, folder: Path, source: str, target: str) -> Path:
    """A copy of a run's model that says it translates between other languages."""
    shutil.copytree(run / "best", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["languages"] = [source, target]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks the shared server does so from one process, where tests are spread over several."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("server"))


@pytest.fixture(scope="session")
def server(trained_run: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with the trained model, en to zh, one that is called zh to en, and a classifier."""
    other = with_languages(trained_run, tmp_path_factory.mktemp("served") / "back", "zh", "en")
    limits = ("body_seconds=2", "drain=0", "sentence_tokens=64")  # so that tests of these limits take less time
    words = [word for limit in limits for word in ("--limit", limit)]
    running = Running(trained_run, other, image_run, *words).until_ready()
    yield running
    assert running.end() == 0


@pytest.fixture(scope="session")
def offline(trained_run: Path) -> Translator:
    """The same model without a server."""
    return Translator.load(trained_run)


class Echo:
    """A worker without a model: translations are the sentences in capitals."""

    def __init__(self, tokenizer: Tokenizer, languages: tuple[str, str] = ("en", "zh")) -> None:
        self.about = ModelInfo("echo", "transformer", ("translate", "embed"), 0, "cpu", languages, tokenizer)
        self.batches: list[list[Any]] = []
        self.before: Callable[[Sequence[Any]], Any] = lambda items: None
        self.ended = False

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        waiting = self.before(items)
        if waiting is not None:
            await waiting
        if operation == "embed":
            return [[float(len(item))] for item in items]
        return [[Translation(item.upper(), -1.0, len(item))] * dict(options)["n_best"] for item in items]

    def kill(self) -> None:
        self.ended = True

    async def stop(self) -> None:
        self.ended = True


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one two three four", "one two three four"], 300)
