"""The page in Chromium, with helpers to operate it."""

from collections.abc import Callable
from typing import Any

from regard.serving.keys import make_key
from tests.browser import Visit

DESKTOP = {"viewport": {"width": 1400, "height": 900}, "locale": "en-GB"}
MARKUP = '<script>alert(1)</script><b>I</b> love <img src=x onerror=alert(2)> apples & "tea"'
KEY, KEY_LINE = make_key("ann", 1_000_000)
TEXT_SECTIONS = ["translate", "attention", "arithmetic", "beam", "change", "positions"]


class Page:
    """The opened page, with helpers to operate it."""

    def __init__(self, visit: Visit, url: str, key: str | None = KEY) -> None:
        self.visit, self.page, self.url = visit, visit.page, url.partition("/#")[0]
        self.alerts: list[str] = []
        if key is not None:
            self.page.add_init_script(f"sessionStorage.setItem('regard.key', '{key}')")
        self.page.on("dialog", lambda dialog: (self.alerts.append(dialog.message), dialog.dismiss()))
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", state="attached", timeout=10_000)

    def wait_until_ready(self, section: str) -> None:
        self.page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=10_000)

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
        assert self.alerts == []
        assert all(request.startswith(self.url) for request in self.visit.requests)
