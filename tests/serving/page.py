"""The page in a real browser: a server with one model of each kind, and helpers to operate the page."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from regard import Translator
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import save_model
from regard.models.nat import NATransformer, NATransformerConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.serving.keys import make_key
from regard.training.run import run_recipe
from tests.browser import Visit
from tests.conftest import small_recipe
from tests.serving.server_process import ServerProcess

DESKTOP = {"viewport": {"width": 1400, "height": 900}, "locale": "en-GB"}
KEY, KEY_LINE = make_key("ann", 1_000_000)
WITH_KEY = f"sessionStorage.setItem('regard.key', '{KEY}')"


@pytest.fixture(scope="session")
def nat_run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of a non-autoregressive model that has learned part of the toy corpus."""
    out = tmp_path_factory.mktemp("runs") / "nat"
    short = {"training__steps": 120, "training__validate_every": 120}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", model__kind="nat", **short), out)
    return out


@pytest.fixture(scope="session")
def page_url(
    trained_run: Path,
    nat_run: Path,
    image_run: Path,
    swin_run: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("pages")
    without_tokenizer = shutil.ignore_patterns("*tokenizer.json")
    shutil.copytree(trained_run / "best", folder / "no-tokenizer", ignore=without_tokenizer)
    torch.manual_seed(0)
    (folder / "views").mkdir()
    save_model(folder / "views", CroCo(CroCoConfig.micro()), {})
    narrow = TransformerConfig.tiny(vocab=len(Translator.load(trained_run).vocabularies.source), width=16, heads=1)
    shutil.copytree(trained_run / "best", folder / "narrow")
    save_model(folder / "narrow", Transformer(narrow), {"languages": ["en", "zh"]})
    graph = NATransformerConfig.tiny(narrow.target_vocab, length="dag", upsample_ratio=2)
    shutil.copytree(trained_run / "best", folder / "graph")
    save_model(folder / "graph", NATransformer(graph), {"languages": ["en", "zh"]})
    runs = {"toy": trained_run, "paint": image_run, "windows": swin_run, "narrow": folder / "narrow"}
    runs |= {"views": folder / "views", "no-tokenizer": folder / "no-tokenizer", "nat": nat_run}
    runs["graph"] = folder / "graph"
    (folder / "keys").write_text(KEY_LINE)
    (folder / "keys").chmod(0o600)
    arguments = [f"{name}={run}" for name, run in runs.items()]
    server = ServerProcess(*arguments, "--keys", folder / "keys", "--limit", "drain=0")
    yield server.wait_until_ready().url
    assert server.stop() == 0


def to_number(text: str) -> float:
    """Return the number that a text of the page shows; it has a minus sign instead of a hyphen."""
    return float(text.replace("−", "-"))


class Page:
    """The opened page, with helpers to operate it."""

    def __init__(self, visit: Visit, url: str) -> None:
        self.visit, self.page, self.url = visit, visit.page, url.partition("/#")[0]
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)

    def wait_until_ready(self, section: str) -> None:
        self.page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=120_000)

    def open(self, section: str) -> None:
        self.page.locator(f"[data-section={section}]").click()
        self.wait_until_ready(section)

    def select_model(self, name: str, section: str) -> None:
        self.page.locator("#model").select_option(name)
        self.wait_until(lambda: self.page.locator(f"html[data-ready={section}]").count())

    def enter(self, text: str, section: str) -> None:
        self.page.locator("#text").fill(text)
        self.page.evaluate("document.documentElement.removeAttribute('data-ready')")
        self.page.keyboard.press("Enter")
        self.wait_until_ready(section)

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Poll in Python, because the content security policy forbids `wait_for_function`."""
        for _ in range(400):
            if condition():
                return
            self.page.wait_for_timeout(25)
        raise AssertionError("the condition was not fulfilled within 10 seconds")

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.text_content())

    def click(self, name: str, **options: Any) -> None:
        self.page.get_by_role("button", name=name, **options).click()

    def forgive_failed_requests(self) -> None:
        """Ignore the messages of the console about responses with an error status."""
        self.visit.console = [message for message in self.visit.console if "Failed to load resource" not in message]

    def check(self) -> None:
        """Check that there were no errors, and no requests to other hosts."""
        assert self.visit.console == []
        assert self.visit.alerts == []
        assert all(request.removeprefix("blob:").startswith(self.url) for request in self.visit.requests)


@contextmanager
def open_page(browser: Any, url: str, script: str = WITH_KEY, **options: Any) -> Iterator[Page]:
    """Open the page in a context of its own, and check it in the end."""
    with Visit(browser, script, **options) as visit:
        page = Page(visit, url)
        yield page
        page.check()


@pytest.fixture
def page(browser: Any, page_url: str) -> Iterator[Page]:
    with open_page(browser, page_url, **DESKTOP) as opened:
        yield opened
