"""A server with three models that the tests share, and a fake worker."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from regard import Translator
from regard.data.text.tokenizer import Tokenizer
from regard.serving.messages import ModelInfo, Options, Translation
from tests.serving.page import nat_run, page, page_url  # noqa: F401 (fixtures)
from tests.serving.server_process import ServerProcess


def copy_with_languages(run: Path, folder: Path, source: str, target: str) -> Path:
    """Copy the model of a run and change its language pair."""
    shutil.copytree(run / "best", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["languages"] = [source, target]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of a shared server in one process of pytest-xdist."""
    for item in items:
        for fixture, group in (("server", "server"), ("page_url", "page")):
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def server(trained_run: Path, image_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the model "toy" (en to zh), a copy of it for zh to en, and a classifier."""
    reverse = copy_with_languages(trained_run, tmp_path_factory.mktemp("served") / "reverse", "zh", "en")
    # Low, so that tests of these limits are fast.
    limits = ["body_seconds=2", "write_seconds=2", "drain=0", "sentence_tokens=64"]
    limits.append("deadline=100")  # requests wait for a worker that is restarted, even on a slow machine
    options = [word for limit in limits for word in ("--limit", limit)]
    process = ServerProcess(trained_run, reverse, image_run, *options).wait_until_ready()
    yield process
    assert process.stop() == 0


@pytest.fixture(scope="session")
def translator(trained_run: Path) -> Translator:
    """The model "toy" of the server, in this process."""
    return Translator.load(trained_run)


class FakeWorker:
    """A worker without a model. Its translations are the sentences in capital letters.

    `batches` and `options` are those of all calls. `before` is called with the items of each batch; it may raise
    an error, or return an awaitable to wait for.
    """

    def __init__(self, tokenizer: Tokenizer, languages: tuple[str, str] = ("en", "zh")) -> None:
        name, operations = "-".join(languages), ("translate", "embed")
        self.info = ModelInfo(name, "transformer", operations, 0, "cpu", languages, tokenizer, longest_source=12)
        self.batches: list[list[Any]] = []
        self.options: list[dict[str, Any]] = []
        self.before: Callable[[Sequence[Any]], Any] = lambda items: None
        self.alive, self.stopped = True, False

    async def run(self, operation: str, options: Options, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        self.options.append(dict(options))
        waiting = self.before(items)
        if waiting is not None:
            await waiting
        if operation == "embed":
            return [f"[{float(len(item))}]" for item in items]
        return [[Translation(item.upper(), -1.0)] * dict(options)["n_best"] for item in items]

    def kill(self) -> None:
        self.alive, self.stopped = False, True

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one two three four", "one two three four"], 300)
