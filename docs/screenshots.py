"""Makes the pictures of pages in docs/images, in the system's Chromium.

python docs/screenshots.py runs/demo --images runs/shapes --image shape.png --views runs/scenes --pair one.png two.png
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from regard.inspection.output import save_scene
from regard.looking import look_at
from tests.browser import Visit, launched

IMAGES = Path(__file__).parent / "images"
SENTENCE = "Yesterday my older brother bought three books at the market."
PAGES: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": {"width": 1300, "height": 860}, "color_scheme": "light", "locale": "en-GB"},
    "page-dark-zh": {"viewport": {"width": 1300, "height": 860}, "color_scheme": "dark", "locale": "zh-CN"},
    "page-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "locale": "en-GB"},
}
SECTIONS = ("translate", "attention", "arithmetic", "beam", "change", "positions")
SCREENS: dict[str, dict[str, Any]] = {
    "look-light": {"viewport": {"width": 1400, "height": 940}, "color_scheme": "light"},
    "look-dark": {"viewport": {"width": 1400, "height": 940}, "color_scheme": "dark"},
    "look-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "locale": "zh-CN"},
}


def main() -> None:
    """Draws all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=IMAGES)
    parser.add_argument("--images", type=Path, help="a run of images, for the section of images")
    parser.add_argument("--image", type=Path, nargs=1, help="an image for it")
    parser.add_argument("--views", type=Path, help="a run of two views")
    parser.add_argument("--pair", type=Path, nargs=2, help="two views for it")
    options = parser.parse_args()
    scene = look_at(options.run, SENTENCE, device="cpu")
    save_scene(look_at(options.run, "I love apples", device="cpu"), options.out / "look-apples.png")
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        page_file = Path(folder, "look.html")
        save_scene(scene, page_file)
        for name, screen in SCREENS.items():
            with Visit(browser, **screen) as visit:
                page = visit.open(page_file)
                page.locator(".tokens.target .token").nth(3).focus()
                page.wait_for_timeout(500)  # until the maps in sight are drawn
                page.screenshot(path=options.out / f"{name}.png")
                assert not visit.complaints, visit.complaints
        with served(options.run, options.images, options.views) as url:
            for name, screen in PAGES.items():
                with Visit(browser, **screen) as visit:
                    draw_sections(visit.page, url, options.out, name, options)
                    assert not visit.complaints, visit.complaints


def draw_sections(page: Any, url: str, out: Path, name: str, options: argparse.Namespace) -> None:
    """Every section at work: something pointed at, a head switched off, an image dropped."""

    def ready(section: str) -> None:
        page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=60_000)
        page.wait_for_timeout(400)

    page.goto(url)
    ready("translate")
    page.locator("#text").fill(SENTENCE)
    page.evaluate("document.documentElement.removeAttribute('data-ready')")
    page.keyboard.press("Enter")
    ready("translate")
    for section in SECTIONS:
        page.locator(f"[data-section={section}]").click()
        ready(section)
        touch(page, section)
        page.screenshot(path=out / f"{name}-{section}.png", full_page="phone" in name)
    for model, images in (("images", options.image), ("views", options.pair)):
        if not images:
            continue
        page.locator("#model").select_option(model)
        page.locator("[data-section=image]").click()
        ready("image")
        for number, image in enumerate(images):
            page.locator(".drop input").nth(number).set_input_files(image)
        page.locator("figure canvas").first.wait_for()
        page.wait_for_timeout(400)
        page.screenshot(path=out / f"{name}-{model}.png", full_page="phone" in name)


def touch(page: Any, section: str) -> None:
    """Points at what the section is about."""
    if section == "translate":
        page.locator(".tokens.target .token").nth(3).focus()
    elif section == "arithmetic":
        page.locator(".steps button").last.click()
    elif section == "beam":
        page.locator(".tree .dropped").nth(8).focus()
    elif section == "change":
        for button in page.locator(".heads .row:last-child button").all():
            button.click()
        page.locator(".token.changed").first.wait_for()


@contextmanager
def served(run: Path, images: Path | None, views: Path | None) -> Iterator[str]:
    """The address of a server with these runs."""
    runs = {"demo": run} | ({"images": images} if images else {}) | ({"views": views} if views else {})
    words = [f"{name}={path}" for name, path in runs.items()]
    command = [sys.executable, "-m", "regard.cli", "serve", *words, "--port", "0", "--workers", "1"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = list(takewhile(lambda line: '"event": "ready"' not in line, server.stderr))
        yield next(found[1] for line in lines if (found := re.search(r'"url": "([^"]+)"', line)))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
