"""Access to the page with the keyboard, with a screen reader and on a touch screen."""

from typing import Any

import pytest

pytest.importorskip("fastapi")

from tests.serving.page import Page


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
