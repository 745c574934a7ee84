"""Headless Chromium for tests of web pages, controlled by Playwright."""

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
MISSING = "Chromium is not installed; install it with `apt-get install chromium` to run the tests of web pages"


@contextmanager
def launch_chromium() -> Iterator[Any]:
    """Run the system's Chromium.

    Raises:
        ImportError: Playwright is not installed.
        FileNotFoundError: Chromium is not installed.
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
    """Chromium. Tests that use it are skipped if it is not installed."""
    pytest.importorskip("playwright", reason="Playwright is not installed; run pip install playwright")
    try:
        with launch_chromium() as chromium:
            yield chromium
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


class Visit:
    """A page in a browser context of its own.

    Attributes:
        console: messages of the console, and uncaught errors.
        requests: URLs that the page requested.
    """

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.console: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: Path, fragment: str = "") -> Any:
        """Open a file and wait until the page sets `data-ready`."""
        self.page.goto(f"{path.resolve().as_uri()}{fragment}")
        self.page.wait_for_function("document.documentElement.dataset.ready || document.readyState === 'complete'")
        self.page.wait_for_timeout(0)
        assert not self.console, self.console
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
        return self.page

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()
