"""Create the screenshots in docs/images with the system's Chromium.

    python tools/screenshots.py runs/demo --vit runs/shapes --image a.png --croco runs/scenes --pair one.png two.png

Further runs add further screenshots: --swin an image classifier with windows, --nat a non-autoregressive translator.
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

from regard.inspection.translation import translation_scene
from regard.pipelines.translator import Translator
from tests.browser import Visit, launch_chromium

DOCS = Path(__file__).parents[1] / "docs"
SENTENCE = "Yesterday my older brother bought three books at the market."
SERVED_PAGES: dict[str, dict[str, Any]] = {
    "page-light": {"viewport": {"width": 1300, "height": 860}, "color_scheme": "light", "locale": "en-GB"},
    "page-dark-zh": {"viewport": {"width": 1300, "height": 860}, "color_scheme": "dark", "locale": "zh-CN"},
    "page-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "locale": "en-GB"},
}
MARKDOWN = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
USED = {name for page in MARKDOWN for name in re.findall(r"images/([\w-]+)\.png", page.read_text("utf-8"))}
"""Names of the images that the documentation uses; the others are created with --all."""
SECTIONS = ("translate", "attention", "why", "arithmetic", "beam", "change", "positions")
LOOK_PAGES: dict[str, dict[str, Any]] = {
    "look-light": {"viewport": {"width": 1400, "height": 940}, "color_scheme": "light"},
    "look-dark": {"viewport": {"width": 1400, "height": 940}, "color_scheme": "dark"},
    "look-phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "locale": "zh-CN"},
}


def main() -> None:
    """Create all screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=DOCS / "images")
    parser.add_argument("--all", action="store_true", help="also create images that the documentation does not use")
    parser.add_argument("--vit", type=Path, help="a run of an image classifier")
    parser.add_argument("--swin", type=Path, help="a run of an image classifier with windows")
    parser.add_argument("--image", type=Path, nargs=1, help="an image for --vit and --swin")
    parser.add_argument("--croco", type=Path, help="a run of a two-view model")
    parser.add_argument("--pair", type=Path, nargs=2, help="two views for --croco")
    parser.add_argument("--nat", type=Path, help="a run of a non-autoregressive translator")
    parser.add_argument("--sentence", default=SENTENCE, help="a sentence for --nat")
    options = parser.parse_args()
    for run, inputs in (("vit", "image"), ("swin", "image"), ("croco", "pair")):
        if getattr(options, run) and not getattr(options, inputs):
            parser.error(f"--{run} requires --{inputs}")
    translator = Translator.load(options.run)
    about = f"{options.run} · {' → '.join(translator.languages)}"
    scene = translation_scene(translator, SENTENCE, about=about)
    translation_scene(translator, "I love apples", about=about).save(options.out / "look-apples.png")
    with tempfile.TemporaryDirectory() as folder, launch_chromium() as browser:
        page_file = Path(folder, "look.html")
        scene.save(page_file)
        for name, screen in LOOK_PAGES.items():
            if not options.all and name not in USED:
                continue
            with Visit(browser, **screen) as visit:
                page = visit.open(page_file)
                page.locator(".tokens.target .token").nth(3).focus()
                page.wait_for_timeout(500)  # until the visible maps are drawn
                page.screenshot(path=options.out / f"{name}.png")
                assert not visit.console, visit.console
        runs = {name: getattr(options, name) for name in ("vit", "swin", "croco", "nat")}
        with serve({"demo": options.run} | {name: run for name, run in runs.items() if run}) as url:
            for name, screen in SERVED_PAGES.items():
                with Visit(browser, **screen) as visit:
                    capture_sections(visit.page, url, options.out, name, options)
                    assert not visit.console, visit.console


def capture_sections(page: Any, url: str, out: Path, name: str, options: argparse.Namespace) -> None:
    """Create a screenshot of every section, after an interaction with it."""

    def wait_for(section: str) -> None:
        page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=60_000)
        page.wait_for_timeout(400)

    def translate(sentence: str) -> None:
        page.locator("#text").fill(sentence)
        page.evaluate("document.documentElement.removeAttribute('data-ready')")
        page.keyboard.press("Enter")
        wait_for("translate")

    def capture(suffix: str) -> None:
        if options.all or f"{name}-{suffix}" in USED:
            page.screenshot(path=out / f"{name}-{suffix}.png", full_page="phone" in name)

    page.goto(url)
    wait_for("translate")
    translate(SENTENCE)
    for section in SECTIONS:
        page.locator(f"[data-section={section}]").click()
        wait_for(section)
        interact(page, section)
        capture(section)
    if options.nat:
        page.locator("#model").select_option("nat")
        page.locator("[data-section=translate]").click()
        wait_for("translate")
        translate(options.sentence)
        page.locator("[data-section=beam]").click()
        wait_for("beam")
        page.locator(".token.repeated").first.focus()
        capture("iterations")
    for model, suffix, images in (
        ("vit", "images", options.image), ("swin", "windows", options.image), ("croco", "views", options.pair)
    ):  # fmt: skip
        if getattr(options, model):
            page.locator("#model").select_option(model)
            page.locator("[data-section=image]").click()
            wait_for("image")
            for index, image in enumerate(images):
                page.locator(".drop-zone input").nth(index).set_input_files(image)
            page.locator("figure canvas").first.wait_for()
            page.wait_for_timeout(400)
            capture(suffix)
            if model == "swin":
                page.locator(".windows canvas").click(position={"x": 120, "y": 150})
                page.locator(".bar .tool").wait_for()
                capture("window")


def interact(page: Any, section: str) -> None:
    """Focus or click the main element of a section."""
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
def serve(runs: dict[str, Path]) -> Iterator[str]:
    """Run a server with these runs, and yield its URL."""
    models = [f"{name}={path}" for name, path in runs.items()]
    command = [sys.executable, "-m", "regard", "serve", *models, "--port", "0", "--workers", "1"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    try:
        lines = list(takewhile(lambda line: '"event": "ready"' not in line, server.stderr))
        yield next(match[1] for line in lines if (match := re.search(r'"url": "([^"]+)"', line)))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
