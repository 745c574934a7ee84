"""Small views of the page: changes of a translation, language of the text, kinds of position encodings, phones."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.inspection.test_page_in_browser import is_drawn
from tests.serving.page import Page, open_page


def test_what_if_marks_removed_and_added_tokens(page: Page) -> None:
    page.open("change")
    page.page.locator(".section textarea").fill("I love tea and apples")
    page.page.wait_for_selector("ins.changed")
    assert page.page.locator("ins.changed").all_text_contents() == ["茶", "和"]
    assert page.page.locator("del.changed").count() == 0
    assert "removed: 0; added: 2" in page.text(".section .readout")
    page.page.locator(".section textarea").fill("I buy apples")
    page.page.wait_for_selector("del.changed")
    assert page.page.locator("del.changed").all_text_contents() == ["喜欢"]
    assert page.page.locator("ins.changed").all_text_contents() == ["买"]


def test_text_in_another_language_is_reported(page: Page) -> None:
    assert page.page.locator(".warning.language").count() == 0
    page.enter("Ich liebe Äpfel und Birnen", "translate")
    assert "does not look like English" in page.text(".warning.language")
    page.page.locator("#language").click()
    page.wait_until(lambda: "英语" in page.text(".warning.language"))
    page.enter("You buy tea", "translate")
    assert page.page.locator(".warning.language").count() == 0


def test_encodings_of_each_kind_are_compared_and_have_axes(page: Page) -> None:
    page.open("positions")
    assert page.page.locator(".compared canvas").count() == 0
    page.page.locator(".compared summary").click()
    page.page.wait_for_selector(".compared .encoding")
    titles = page.page.locator(".compared h2").all_text_contents()
    assert titles == ["sinusoidal", "learned", "rotary", "diagonal", "diagonal, counting"]
    scaled = page.page.locator(".compared .encoding").last
    assert scaled.locator(".legend").first.text_content() == "063.00"
    picture = scaled.locator("canvas").first
    picture.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.page.keyboard.press(key)
    assert scaled.locator(".readout").first.text_content() == "position 1, feature 1: 1.000"


def test_matches_of_two_views_are_shown_in_both_directions(page: Page, painted: Path) -> None:
    page.select_model("views", "image")
    for number, colour in enumerate(("red", "blue")):
        page.page.locator(".drop-zone input").nth(number).set_input_files(painted / "test" / colour / "004.png")
    page.page.wait_for_selector(".second canvas")
    assert page.text(".section .readout").startswith("First view (6, 6) → Second view (")
    page.page.locator(".second canvas").click(position={"x": 40, "y": 10})
    page.wait_until(lambda: page.text(".section .readout").startswith("Second view (0, 1) → First view ("))
    page.page.locator(".second canvas").focus()
    page.page.keyboard.press("ArrowDown")
    page.wait_until(lambda: page.text(".section .readout").startswith("Second view (1, 1)"))
    assert page.page.evaluate("document.activeElement.parentElement.classList.contains('second')")
    assert is_drawn(page.page, ".first canvas")


def test_phone_has_large_targets_and_scrolls_to_the_current_step(browser: Any, page_url: str) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "locale": "en-GB", "has_touch": True, "is_mobile": True}
    with open_page(browser, page_url, **phone) as page:
        for section in ("translate", "attention", "arithmetic", "beam", "change", "positions"):
            page.open(section)
            small = page.page.evaluate(
                """() => [...document.querySelectorAll("button, select, textarea, summary")]
                  .filter((target) => target.offsetParent && Math.min(target.offsetHeight, target.offsetWidth) < 44)
                  .map((target) => target.outerHTML)"""
            )
            assert small == [], section
        page.open("arithmetic")
        page.page.locator(".steps button").nth(3).click()
        column = page.page.locator("table.arithmetic th[data-step='3']").bounding_box()
        assert column["x"] >= 0
        assert column["x"] + column["width"] <= 390


# Image models


def test_heads_arithmetic_and_changes_of_an_image_model(page: Page, painted: Path) -> None:
    page.select_model("paint", "image")
    page.open("attention")
    page.page.locator(".drop-zone input").set_input_files(painted / "test" / "red" / "004.png")
    page.page.wait_for_selector(".head-title:not(:empty)")
    assert is_drawn(page.page, "canvas.matrix")
    page.page.locator("canvas.matrix").focus()
    page.page.keyboard.press("ArrowDown")
    page.wait_until(lambda: page.text(".head-panel .readout").startswith("0,0 → 0,0: "))
    page.open("arithmetic")
    page.page.wait_for_selector("table.arithmetic")
    page.page.get_by_role("button", name="softmax").click()
    weights = page.page.locator("table.arithmetic tbody tr:not(.query) td span").all_text_contents()
    assert sum(map(float, weights)) == pytest.approx(1, abs=5e-3)
    page.open("change")
    page.page.wait_for_selector("table.classes")
    assert page.text("table.classes tbody th") == "red"
    before = page.page.locator("table.classes").inner_text()
    for button in page.page.locator(".head").all():
        button.click()
    page.wait_until(lambda: page.page.locator("table.classes").inner_text() != before)


def test_window_of_a_patch_is_shown_for_a_model_with_windows(page: Page, painted: Path) -> None:
    page.select_model("windows", "image")
    page.open("attention")
    page.page.locator(".drop-zone input").set_input_files(painted / "test" / "blue" / "004.png")
    page.page.wait_for_selector(".head-title:not(:empty)")
    page.click("stages.0.blocks.0.attention, head 0")
    page.wait_until(lambda: "stages.0" in page.text(".head-title"))
    page.page.get_by_label("Show the window of patch number").fill("7")
    page.page.keyboard.press("Tab")
    page.page.locator(".weights-table summary").click()
    queries = page.page.locator(".weights-table tbody th")
    page.wait_until(lambda: queries.all_text_contents() == ["0,6", "0,7", "1,6", "1,7"])


def test_example_sentence_is_entered_with_a_click(page: Page) -> None:
    page.page.evaluate("document.documentElement.removeAttribute('data-ready')")
    page.click("I am human", exact=True)
    page.wait_until_ready("translate")
    assert page.page.locator("#text").input_value() == "I am human"
    assert "text=I+am+human" in page.page.url
    page.open("positions")  # reads no text
    assert page.page.locator(".example-sentences button").count() == 0
