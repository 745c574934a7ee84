"""The HTML page of a scene in Chromium, opened from disk."""

from pathlib import Path
from typing import Any

import pytest

import regard
from regard.inspection.attention_scene import Scene
from regard.inspection.translation import translation_scene
from tests.browser import Visit
from tests.inspection.scenes import EVIL

DESKTOP = {"viewport": {"width": 1400, "height": 900}, "locale": "en-GB"}
PHONE = {"viewport": {"width": 390, "height": 844}, "locale": "zh-CN", "has_touch": True, "color_scheme": "dark"}


@pytest.fixture(scope="module")
def scene(trained_run: Path) -> Scene:
    return translation_scene(regard.Translator.load(trained_run), "I love apples and books", about="runs/toy")


@pytest.fixture(scope="module")
def file(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "look.html"
    scene.save(path)
    return path


def is_drawn(page: Any, selector: str) -> bool:
    """Return whether a canvas contains more than three colours."""
    return page.evaluate(
        """(selector) => {
          const canvas = document.querySelector(selector);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          return new Set(new Uint32Array(data.buffer)).size > 3;
        }""",
        selector,
    )


@pytest.mark.parametrize("options", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_page_opens_from_disk_without_requests(browser: Any, file: Path, options: dict) -> None:
    with Visit(browser, **options) as visit:
        page = visit.open(file)
        assert page.title().startswith("I love apples and books → 我喜欢苹果和书")
        assert is_drawn(page, ".matrix")
        assert is_drawn(page, ".lines")
        page.wait_for_timeout(200)
        assert is_drawn(page, ".cell canvas")
        width, visible = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= visible
        assert visit.console == []
        assert visit.requests == [file.resolve().as_uri()]


def test_head_is_selected_by_click_and_arrow_keys(browser: Any, file: Path) -> None:
    with Visit(browser, **DESKTOP) as visit:
        page = visit.open(file)
        before = page.locator(".matrix").screenshot()
        page.get_by_role("button", name="decoder.0.attention, head 1").click()
        page.wait_for_function("document.querySelector('.head-title').textContent === 'decoder.0.attention · head 1'")
        assert page.url.endswith("#decoder.0.attention/1")
        assert page.locator(".matrix").screenshot() != before
        assert "mean distance" in page.locator(".head-panel .hint").text_content()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
        page.wait_for_function("document.querySelector('.head-title').textContent === 'decoder.1.attention · head 0'")
        assert page.locator('[aria-pressed="true"]').count() == 1
        assert visit.console == []


def test_fragment_of_the_address_selects_a_head(browser: Any, file: Path) -> None:
    with Visit(browser, **DESKTOP) as visit:
        page = visit.open(file, "#encoder.1.attention/mean")
        assert page.locator(".head-title").text_content() == "encoder.1.attention · mean"


def test_pointing_at_a_cell_shows_its_weight(browser: Any, file: Path, scene: Scene) -> None:
    with Visit(browser, **DESKTOP) as visit:
        page = visit.open(file, "#decoder.1.cross/0")
        view = next(view for view in scene.views if view.name == "decoder.1.cross")
        row, column = 1, int(view.weights[0, 1].argmax())
        page.evaluate(
            """async ([row, column]) => {
              const canvas = document.querySelector(".matrix");
              const box = canvas.getBoundingClientRect();
              window.readouts = new Set();
              for (let x = 10; x < box.width; x += 20) for (let y = 10; y < box.height; y += 20) {
                canvas.dispatchEvent(new PointerEvent("pointermove",
                  {clientX: box.left + x, clientY: box.top + y, bubbles: true}));
                await new Promise(requestAnimationFrame);
                window.readouts.add(document.querySelector(".head-panel .readout").textContent);
              }
            }""",
            [row, column],
        )
        readouts = page.evaluate("[...window.readouts]")
        prefix = f"{scene.labels['decoder_output'][row]} → {scene.labels['source'][column]}: "
        numbers = [float(text.removeprefix(prefix)) for text in readouts if text.startswith(prefix)]
        assert any(number == pytest.approx(view.weights[0, row, column], abs=1e-3) for number in numbers)
        assert visit.console == []


def test_token_of_the_translation_shows_its_alignment(browser: Any, file: Path, scene: Scene) -> None:
    with Visit(browser, **DESKTOP) as visit:
        page = visit.open(file)
        row = next(i for i, label in enumerate(scene.labels["translation"]) if "书" in label)
        page.locator(".tokens.target .token").nth(row).focus()
        readout = page.locator("#aligned").text_content()
        strongest = scene.labels["source"][int(scene.alignment[row].argmax())]
        assert f"attends to {strongest} {scene.alignment[row].max():.3f}" in readout
        assert "probability" in readout


def test_language_and_theme_can_be_changed(browser: Any, file: Path) -> None:
    with Visit(browser, **DESKTOP, color_scheme="light") as visit:
        page = visit.open(file)
        assert page.locator("h2").first.text_content() == "Translation"
        page.locator("#language").click()
        assert page.locator("h2").first.text_content() == "翻译"
        assert "头" in page.locator(".head-title").text_content()
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.locator("#theme").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        assert is_drawn(page, ".matrix")
        assert visit.console == []


def test_markup_in_a_sentence_is_escaped(browser: Any, trained_run: Path, tmp_path: Path) -> None:
    translator = regard.Translator.load(trained_run)
    path = tmp_path / "evil.html"
    translation_scene(translator, EVIL, about=EVIL).save(path)
    with Visit(browser, **DESKTOP) as visit:
        page = visit.open(path)
        assert page.title().startswith(EVIL)
        assert page.locator("#about").text_content() == EVIL
        assert page.locator("script").count() == 2
        assert page.locator("b").count() == 0
        assert (visit.alerts, visit.console) == ([], [])
