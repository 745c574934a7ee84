"""Access to the page with the keyboard, with a screen reader and on a touch screen."""

from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.serving.page import Page, open_page


def test_page_has_landmarks_and_the_panel_names_its_tab(page: Page) -> None:
    for role in ("banner", "navigation", "main"):
        assert page.page.get_by_role(role).count() == 1, role
    assert page.page.locator("nav [role=tablist] [role=tab]").count() == page.page.locator("[role=tab]").count()
    page.open("beam")
    assert page.page.get_by_role("tabpanel", name="Beam search").count() == 1


def test_tabs_have_one_tab_stop_and_move_with_arrow_home_and_end_keys(page: Page) -> None:
    assert page.page.locator("[role=tab][tabindex='0']").count() == 1
    tabs = page.page.locator("[role=tab]")
    page.page.locator("[data-section=translate]").focus()
    for key, number in (("End", tabs.count() - 1), ("ArrowRight", 0), ("ArrowLeft", tabs.count() - 1), ("Home", 0)):
        page.page.keyboard.press(key)
        page.wait_until(lambda number=number: tabs.nth(number).get_attribute("aria-selected") == "true")
        assert tabs.nth(number).evaluate("tab => tab === document.activeElement")


def test_tabs_of_unsupported_sections_say_why(page: Page) -> None:
    image = page.page.locator("[data-section=image]")
    assert "toy is a text model" in (image.get_attribute("aria-description") or "")
    assert page.page.locator("[data-section=beam]").get_attribute("aria-description") is None
    page.select_model("paint", "image")
    assert image.get_attribute("aria-description") is None
    assert "image classifier" in (page.page.locator("[data-section=beam]").get_attribute("title") or "")


def test_translate_tries_again_after_an_error(page: Page) -> None:
    page.page.route("**/api/inspect/translation", lambda route: route.abort())
    page.page.locator("#text").fill("You buy tea")
    page.click("Translate", exact=True)
    page.wait_until(lambda: "cannot be reached" in page.text("#error"))
    page.page.unroute("**/api/inspect/translation")
    page.click("Translate", exact=True)
    page.page.wait_for_selector(".translation:not(:empty)")
    assert page.text(".translation") == "你买茶"
    assert page.page.locator("#error").is_hidden()
    page.forgive_failed_requests()


def test_panel_is_busy_while_a_request_runs_and_long_work_is_announced(page: Page) -> None:
    held: list[Any] = []
    page.page.route("**/api/inspect/beam", lambda route: held.append(route))
    page.page.locator("[data-section=beam]").click()
    page.page.wait_for_selector("#panel[aria-busy=true]")
    page.page.wait_for_selector("#progress:visible")
    assert page.text("#progress") == "Computing…"
    held[0].continue_()
    page.wait_until_ready("beam")
    assert page.page.locator("#panel[aria-busy=false]").count() == 1
    assert page.page.locator("#progress").is_hidden()


# Maps


def test_cells_are_reached_with_arrow_keys_and_the_readout_follows(page: Page) -> None:
    page.open("attention")
    matrix = page.page.locator("canvas.matrix")
    assert matrix.get_attribute("aria-label") == "Attention matrix; move with the arrow keys"
    readout = page.page.locator(f"#{matrix.get_attribute('aria-describedby')}")
    assert readout.get_attribute("aria-live") == "polite"
    matrix.focus()
    page.page.keyboard.press("ArrowDown")
    page.wait_until(lambda: (readout.text_content() or "").startswith("我 → I: "))
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowRight")
    page.wait_until(lambda: (readout.text_content() or "").startswith("喜欢 → love: "))
    page.page.keyboard.press("Escape")
    page.wait_until(lambda: "arrow keys" in (readout.text_content() or ""))
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "lines"
    for key, start in (("ArrowDown", "我 attends to"), ("ArrowRight", "I is attended to by"), ("ArrowDown", "love is")):
        page.page.keyboard.press(key)
        page.wait_until(lambda start=start: (readout.text_content() or "").startswith(start))


def test_tapped_cell_stays_pinned_until_it_is_tapped_again(browser: Any, page_url: str) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "locale": "en-GB", "has_touch": True, "is_mobile": True}
    with open_page(browser, page_url, **phone) as page:
        page.open("attention")
        matrix = page.page.locator("canvas.matrix")
        size = matrix.bounding_box()
        position = {"x": size["width"] * 0.4, "y": size["height"] * 0.7}
        matrix.tap(position=position)
        page.wait_until(lambda: " → " in page.text(".head-panel .readout"))
        page.page.locator(".head-title").tap()
        page.page.wait_for_timeout(100)
        assert " → " in page.text(".head-panel .readout")
        matrix.tap(position=position)
        page.wait_until(lambda: "arrow keys" in page.text(".head-panel .readout"))


def test_weights_can_be_read_as_a_table(page: Page) -> None:
    page.open("attention")
    page.page.locator(".weights-table summary").first.click()
    rows = page.page.locator(".weights-table tbody tr")
    rows.last.wait_for()
    assert rows.locator("th").all_text_contents() == ["我", "喜欢", "苹果", "END"]
    largest = [float(text.split(",")[0].split()[-1]) for text in rows.locator("td").all_text_contents()]
    assert all(0.2 < weight <= 1 for weight in largest)


COUNT_CURVES = """() => {
  window.curves = 0;
  const draw = CanvasRenderingContext2D.prototype.bezierCurveTo;
  CanvasRenderingContext2D.prototype.bezierCurveTo = function (...points) {
    window.curves++;
    draw.apply(this, points);
  };
}"""


def test_long_maps_are_neither_cut_off_nor_ribbons_and_draw_only_strong_lines(page: Page) -> None:
    page.enter("I love apples " + "and books " * 60, "translate")
    page.open("attention")
    page.page.evaluate(COUNT_CURVES)
    page.click("encoder.0.attention, head 0")
    page.wait_until(lambda: "encoder.0" in page.text(".head-title"))
    page.page.wait_for_timeout(100)
    assert (
        0 < page.page.evaluate("window.curves") < 10_000
    )  # 15,000 weights, drawn when shown and when the point is reset
    for name in ("matrix", "lines"):
        box = page.page.locator(f"canvas.{name}").bounding_box()
        assert 0.4 < box["width"] / box["height"] < 2.5, name
        assert box["height"] < 900, name


# Words, colours and differences


def test_pieces_of_words_are_joined(page: Page) -> None:
    page.enter("I love teadogs", "translate")
    pieces = page.page.locator(".tokens.source .token.piece")
    assert pieces.count() >= 1
    page.open("attention")
    page.page.locator(".weights-table summary").first.click()
    columns = page.page.locator(".weights-table tbody td")
    page.click("encoder.0.attention, head 0")
    page.wait_until(lambda: "encoder.0" in page.text(".head-title"))
    words = page.page.locator(".weights-table tbody th")
    assert words.all_text_contents() == ["I", "love", "teadogs", "END"]
    assert "teadogs" in columns.first.text_content()
    page.page.get_by_label("Join pieces of words").uncheck()
    page.wait_until(lambda: words.count() > 4)


def test_heads_are_overlaid_in_colour(page: Page) -> None:
    page.open("attention")
    single = page.page.locator("canvas.matrix").screenshot()
    page.click("all", exact=True)
    page.wait_until(lambda: page.text(".head-title").endswith("Heads 0, 1"))
    assert page.page.locator(".swatch[aria-pressed=true]").count() == 2
    assert page.page.locator("canvas.matrix").screenshot() != single
    page.page.locator("canvas.matrix").focus()
    page.page.keyboard.press("ArrowDown")
    page.wait_until(lambda: "我 → I: head 0 " in page.text(".head-panel .readout"))
    assert "head 1 " in page.text(".head-panel .readout")
    page.page.locator(".swatch").first.click()
    page.wait_until(lambda: page.text(".head-title").endswith("Heads 1"))
    page.click("none", exact=True)
    page.wait_until(lambda: page.text(".head-title").endswith("head 0"))


def test_comparison_is_beside_the_selected_head_and_shows_the_difference(page: Page) -> None:
    page.page.set_viewport_size({"width": 1100, "height": 900})
    page.open("attention")
    page.page.locator(".compare").click()
    page.page.wait_for_selector(".comparisons .head-title:not(:empty)")
    first, second = (page.page.locator(".head-panel").nth(number).bounding_box() for number in (0, 1))
    assert second["x"] >= first["x"] + first["width"]
    assert abs(second["y"] - first["y"]) < 150
    page.page.locator(".comparisons").get_by_label("Model").select_option("toy")
    page.page.locator(".comparisons").get_by_label("Show").select_option("difference")
    title = page.page.locator(".comparisons .head-title")
    page.wait_until(lambda: title.text_content() == "toy · decoder.1.cross · head 0 − toy · decoder.1.cross · head 0")
    assert page.page.locator(".comparisons .legend span").first.text_content() == "0"  # no difference from itself
    page.page.locator(".comparisons").locator("select").nth(2).select_option("1")
    page.wait_until(lambda: "head 1 −" in title.text_content())
    assert page.page.locator(".comparisons .legend span").first.text_content().startswith("−")
    page.page.locator(".comparisons").get_by_label("Model").select_option("narrow")  # reads the same translation
    page.wait_until(lambda: (title.text_content() or "").startswith("narrow") and "−" in (title.text_content() or ""))
    assert "blue" in page.text(".comparisons .head-panel .hint")
