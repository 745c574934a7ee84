"""Makes the pictures of pages in docs/images, in the system's Chromium.

    python docs/screenshots.py runs/demo --images runs/shapes --image a.png --views runs/scenes --pair one.png two.png

Further runs give further pictures: `--windows` a Swin, which is shown the same image, `--parallel` a translator that
writes all tokens at once.
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
from regard.inspection.translation import translation_scene
from regard.pipelines.translator import Translator
from tests.browser import Visit, launch_chromium

IMAGES = Path(__file__).parent / "images"
SENTENCE = "Yesterday my older brother bought three books at the market."
PAGES: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": {"width": 1300, "height": 860}, "color_scheme": "light", "locale": "en-GB"},
    "page-dark-zh": {"viewport": {"width": 1300, "height": 860}, "color_scheme": "dark", "locale": "zh-CN"},
    "page-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "locale": "en-GB"},
}
PAGES_OF_DOCS = [Path(__file__).parents[1] / "README.md", *Path(__file__).parent.glob("*.md")]
SHOWN = {name for page in PAGES_OF_DOCS for name in re.findall(r"images/([\w-]+)\.png", page.read_text("utf-8"))}
"""What the docs show; the rest is drawn with --all, to be looked at."""
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
    parser.add_argument("--all", action="store_true", help="also what docs do not show: every section in every way")
    parser.add_argument("--images", type=Path, help="a run of images, for the section of images")
    parser.add_argument("--windows", type=Path, help="a run of images that looks within windows")
    parser.add_argument("--image", type=Path, nargs=1, help="an image for both")
    parser.add_argument("--views", type=Path, help="a run of two views")
    parser.add_argument("--pair", type=Path, nargs=2, help="two views for it")
    parser.add_argument("--parallel", type=Path, help="a run that writes all tokens at once, for its rounds")
    parser.add_argument("--sentence", default=SENTENCE, help="for that run")
    options = parser.parse_args()
    for run, given in (("images", "image"), ("windows", "image"), ("views", "pair")):
        if getattr(options, run) and not getattr(options, given):
            parser.error(f"--{run} needs --{given}")
    translator = Translator.load(options.run)
    about = f"{options.run} · {' → '.join(translator.languages)}"
    scene = translation_scene(translator, SENTENCE, about=about)
    save_scene(translation_scene(translator, "I love apples", about=about), options.out / "look-apples.png")
    with tempfile.TemporaryDirectory() as folder, launch_chromium() as browser:
        page_file = Path(folder, "look.html")
        save_scene(scene, page_file)
        for name, screen in SCREENS.items():
            if not options.all and name not in SHOWN:
                continue
            with Visit(browser, **screen) as visit:
                page = visit.open(page_file)
                page.locator(".tokens.target .token").nth(3).focus()
                page.wait_for_timeout(500)  # until the maps in sight are drawn
                page.screenshot(path=options.out / f"{name}.png")
                assert not visit.console, visit.console
        runs = {name: getattr(options, name) for name in ("images", "windows", "views", "parallel")}
        with served({"demo": options.run} | {name: run for name, run in runs.items() if run}) as url:
            for name, screen in PAGES.items():
                with Visit(browser, **screen) as visit:
                    draw_sections(visit.page, url, options.out, name, options)
                    assert not visit.console, visit.console


def draw_sections(page: Any, url: str, out: Path, name: str, options: argparse.Namespace) -> None:
    """Every section at work: something pointed at, a head switched off, an image dropped."""

    def ready(section: str) -> None:
        page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=60_000)
        page.wait_for_timeout(400)

    def type_in(sentence: str) -> None:
        page.locator("#text").fill(sentence)
        page.evaluate("document.documentElement.removeAttribute('data-ready')")
        page.keyboard.press("Enter")
        ready("translate")

    def shoot(what: str) -> None:
        if options.all or f"{name}-{what}" in SHOWN:
            page.screenshot(path=out / f"{name}-{what}.png", full_page="phone" in name)

    page.goto(url)
    ready("translate")
    type_in(SENTENCE)
    for section in SECTIONS:
        page.locator(f"[data-section={section}]").click()
        ready(section)
        touch(page, section)
        shoot(section)
    if options.parallel:
        page.locator("#model").select_option("parallel")
        page.locator("[data-section=translate]").click()
        ready("translate")
        type_in(options.sentence)
        page.locator("[data-section=beam]").click()
        ready("beam")
        page.locator(".token.repeated").first.focus()
        shoot("rounds")
    for model, images in (("images", options.image), ("windows", options.image), ("views", options.pair)):
        if getattr(options, model):
            page.locator("#model").select_option(model)
            page.locator("[data-section=image]").click()
            ready("image")
            for number, image in enumerate(images):
                page.locator(".drop-zone input").nth(number).set_input_files(image)
            page.locator("figure canvas").first.wait_for()
            page.wait_for_timeout(400)
            shoot(model)
            if model == "windows":
                page.locator(".windows canvas").click(position={"x": 120, "y": 150})
                page.locator(".bar .tool").wait_for()
                shoot("window")


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
def served(runs: dict[str, Path]) -> Iterator[str]:
    """The address of a server with these runs."""
    words = [f"{name}={path}" for name, path in runs.items()]
    command = [sys.executable, "-m", "regard", "serve", *words, "--port", "0", "--workers", "1"]
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
