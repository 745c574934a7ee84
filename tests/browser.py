"""A real browser for tests of pages: the system's Chromium, headless, by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MISSING = "no Chromium: install it with `apt-get install chromium` to run the tests of pages"


@contextmanager
def launched() -> Iterator[Any]:
    """Chromium, until the block ends.

    Raises:
        ImportError: Playwright is missing.
        FileNotFoundError: Chromium is.
    """
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        raise FileNotFoundError(MISSING)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium; tests that need it are skipped where there is none, and say what to install."""
    pytest.importorskip("playwright", reason="no Playwright: pip install playwright")
    try:
        with launched() as chromium:
            yield chromium
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


class Visit:
    """A page opened in a browser, with all that went wrong on it and all that it asked for."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path, fragment: str = "") -> Any:
        """Opens a file from disk and waits until the page says that it is ready."""
        self.page.goto(f"{path.resolve().as_uri()}{fragment}")
        self.page.wait_for_function("document.documentElement.dataset.ready || document.readyState === 'complete'")
        self.page.wait_for_timeout(0)
        assert not self.complaints, self.complaints
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
        return self.page

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
