"""Headless Chromium for tests of web pages, controlled by Playwright."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

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
CLEAR_STORAGE = """() => {
  for (const area of ["localStorage", "sessionStorage"]) try { window[area].clear(); } catch {}  // may be forbidden
}"""
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
        Visit._idle.clear()
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
    """A page in a browser context with empty storage and its own history.

    Chromium needs 0.3 seconds for a new context, so a visit that ends without an error leaves its emptied context to
    the next one with the same script and options.

    Args:
        script: JavaScript that runs in every document before its own scripts.

    Attributes:
        console: messages of the console, and uncaught errors.
        requests: URLs that the page requested.
        alerts: texts of the dialogs that the page opened, which are dismissed.
    """

    _idle: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self, browser: Any, script: str = "", **options: Any) -> None:
        self._key, self._viewport = repr((id(browser), script, options)), options.get("viewport")
        if idle := self._idle.get(self._key):
            self.page = idle.pop()
        else:
            self.page = browser.new_context(**options).new_page()
            self.page.add_init_script(script)
        self.context = self.page.context
        self.console: list[str] = []
        self.requests: list[str] = []
        self.alerts: list[str] = []
        self._listeners: dict[str, Callable[[Any], object]] = {
            "console": lambda message: self.console.append(f"{message.type}: {message.text}"),
            "pageerror": lambda error: self.console.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
            "dialog": lambda dialog: (self.alerts.append(dialog.message), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            self.page.on(event, listener)

    def open(self, path: Path, fragment: str = "") -> Any:
        """Open a file and wait until the page sets `data-ready`."""
        self.page.goto(f"{path.resolve().as_uri()}{fragment}")
        self.page.wait_for_function("document.documentElement.dataset.ready || document.readyState === 'complete'")
        self.page.wait_for_timeout(0)
        assert not self.console, self.console
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
        return self.page

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        try:
            self._empty()
        except Exception:  # such as a closed tab
            error = error or True
        if error:
            self.context.close()
        else:
            self._idle.setdefault(self._key, []).append(self.page)

    def _empty(self) -> None:
        """Restore the state of a new context."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.unroute_all(behavior="ignoreErrors")
        self.page.evaluate(CLEAR_STORAGE)
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self.context.clear_cookies()
        self.context.clear_permissions()
        if self._viewport != self.page.viewport_size and self._viewport is not None:
            self.page.set_viewport_size(self._viewport)
