"""Visit every section of the web page of a running server in Chromium and report what is wrong.

    npm install --prefix /tmp/axe axe-core
    python -m tools.visit_page http://127.0.0.1:5000 --axe /tmp/axe/node_modules/axe-core/axe.min.js --out /tmp/visits

Each section is visited at three widths, in both languages and both themes. Content that is wider than the window,
messages of the console, and serious violations that axe-core finds are printed; any of them makes the exit status 1.
`--out` saves a screenshot of every view.
"""

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

from tests.browser import Visit, launch_chromium

WIDTHS = (1440, 820, 390)
LANGUAGES = {"en": "en-GB", "zh": "zh-CN"}
THEMES = ("light", "dark")
SERIOUS = ("serious", "critical")
STATES = {"arithmetic": "&step=8"}
"""States in which sections show most; the last step of the arithmetic shows all results."""
OVERFLOW = "document.documentElement.scrollWidth - innerWidth"
AXE = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(
  ({id, impact, nodes}) => [id, impact, nodes.map((node) => `${node.target} ${node.any[0]?.message ?? ""}`)])"""


def main() -> None:
    """Visit the page and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    parser.add_argument("--out", type=Path, help="folder for screenshots")
    parser.add_argument("--models", nargs="*", help="names of the models to visit; by default all")
    options = parser.parse_args()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with launch_chromium() as browser:
        for width, language, theme in product(WIDTHS, LANGUAGES, THEMES):
            window = {"viewport": {"width": width, "height": 900}, "locale": LANGUAGES[language], "color_scheme": theme}
            with Visit(browser, **window, bypass_csp=True) as visit:
                problems += visit_sections(visit, options, f"{width}-{language}-{theme}")
    print("\n".join(problems) or "no problems")
    sys.exit(bool(problems))


def visit_sections(visit: Visit, options: argparse.Namespace, name: str) -> list[str]:
    """Return the problems of all sections in one window."""
    page, problems = visit.page, []
    page.goto(options.url)
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    models = page.evaluate("fetch('api/models').then((response) => response.json())")["models"]
    sections = page.locator("#tabs [role=tab]").evaluate_all("(tabs) => tabs.map((tab) => tab.dataset.section)")
    for model in models:
        if options.models and model["name"] not in options.models:
            continue
        for section in sections:
            if not is_supported(section, model["sections"]):
                continue
            view = f"{model['name']}-{section}-{name}"
            page.evaluate("document.documentElement.removeAttribute('data-ready')")
            address = f"#{section}?model={model['name']}&image=apple{STATES.get(section, '')}"
            page.evaluate("(hash) => { location.hash = hash; }", address)
            page.wait_for_selector(f"html[data-ready={section}]", state="attached", timeout=60_000)
            page.wait_for_timeout(200)
            problems += [f"{view}: {problem}" for problem in check(page, options.axe)]
            if options.out:
                page.screenshot(path=options.out / f"{view}.png", full_page=True)
    return problems + [f"{name}: {message}" for message in visit.console]


def is_supported(section: str, supported: list[str]) -> bool:
    """Return whether a model with these sections supports a section of the page."""
    return section in supported or f"image_{section}" in supported or (section == "image" and "views" in supported)


def check(page: Any, axe: Path | None) -> list[str]:
    """Return the problems of the shown view."""
    problems = []
    if (excess := page.evaluate(OVERFLOW)) > 0:
        problems.append(f"the content is {excess} pixels wider than the window")
    if error := page.locator("#error").text_content():
        problems.append(f"error: {error}")
    if axe:
        page.evaluate(axe.read_text("utf-8"))
        for rule, impact, nodes in page.evaluate(AXE):
            if impact in SERIOUS:
                problems.append(f"{rule} ({impact}): {'; '.join(nodes[:3])}")
    return problems


if __name__ == "__main__":
    main()
