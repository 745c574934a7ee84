"""Makes the pictures of pages in docs/images, in the system's Chromium.

python docs/screenshots.py runs/demo
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from regard.inspection.output import save_scene
from regard.looking import look_at
from tests.browser import Visit, launched

IMAGES = Path(__file__).parent / "images"
SENTENCE = "Yesterday my older brother bought three books at the market."
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


if __name__ == "__main__":
    main()
