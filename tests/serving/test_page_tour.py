"""The guided tour of the page, and the explanations of its sections."""

import math
from typing import Any

import pytest

from tests.serving.page import DESKTOP, Page, open_page
from tests.serving.test_page import TEXT_SECTIONS


def test_tour_visits_every_stop_on_the_served_models(page: Page) -> None:
    page.click("Guided tour")
    stops = int(page.text("#tour h2").split(" / ")[1].split(" ")[0])
    assert stops >= 22
    sections, models, titles = set(), set(), set()
    for number in range(1, stops + 1):
        page.wait_until(lambda number=number: page.text("#tour h2").startswith(f"{number} / "))
        page.page.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
        assert page.page.locator("#error").is_hidden()
        assert page.page.locator(".unavailable, #tour .warning").count() == 0, number
        assert page.page.locator("#panel .card").first.is_visible()
        titles.add(page.text("#tour h2").split("· ", 1)[1])
        sections.add(page.page.evaluate("document.documentElement.dataset.ready"))
        models.add(page.page.locator("#model").input_value())
        if number < stops:
            page.click("Next", exact=True)
    assert len(titles) == stops
    assert sections >= {
        "overview",
        "translate",
        "attention",
        "why",
        "arithmetic",
        "beam",
        "change",
        "positions",
        "image",
    }
    assert models >= {"toy", "nat", "paint", "windows", "views"}
    page.page.locator("#tour .primary").click()
    assert page.page.locator("#tour").is_hidden()


def test_stop_of_the_tour_is_part_of_the_link(page: Page, browser: Any) -> None:
    page.click("Guided tour")
    page.click("Next", exact=True)
    page.wait_until_ready("arithmetic")
    page.page.locator("#language").click()
    page.wait_until_ready("arithmetic")
    assert "查找" in page.text("#tour h2")
    assert "tour=2" in page.page.url
    with open_page(browser, page.page.url, **DESKTOP) as other:
        assert other.text("#tour h2") == "2 / 25 · Attention is a lookup"
        other.click("Back")
        other.wait_until_ready("overview")


def test_stop_without_its_model_shows_how_to_train_one(page: Page) -> None:
    def drop_other_kinds(route: Any) -> None:
        models = [model for model in route.fetch().json()["models"] if model["name"] == "toy"]
        route.fulfill(json={"models": models})

    page.page.route("**/api/models", drop_other_kinds)
    page.page.goto(f"{page.url}/#overview?model=toy&tour=13")
    page.page.reload()
    page.wait_until_ready("overview")
    page.click("Next", exact=True)
    page.wait_until(lambda: "has no non-autoregressive translator" in page.text("#tour"))
    page.wait_until_ready("beam")
    assert page.page.locator("#panel .card").count() == 0  # neither the previous section nor a beam search
    assert "model.kind=nat" in page.text("#tour pre")
    page.open("beam")
    assert page.page.locator("#panel .tree").is_visible()
    page.page.locator("#tour .primary").click()
    page.wait_until(lambda: page.text("#tour h2").startswith("15 / "))


def test_stop_starts_with_its_settings_and_can_be_shown_again(page: Page) -> None:
    page.open("arithmetic")
    page.click("2 q·k")
    page.click("Guided tour")
    page.wait_until_ready("overview")
    page.page.locator(".flow-block").first.click()
    page.wait_until_ready("translate")
    assert page.text("#tour h2").startswith("1 / ")
    assert "You have opened something else" in page.text("#tour")
    page.click("Show this stop again")
    page.wait_until_ready("overview")
    page.wait_until(lambda: "You have opened something else" not in page.text("#tour"))
    page.click("Next", exact=True)
    page.wait_until(lambda: page.page.locator(".steps [aria-pressed=true]").count())
    assert page.text(".steps [aria-pressed=true]").startswith("5 ")
    page.page.get_by_label("÷ √4").uncheck()
    page.click("Next", exact=True)
    page.wait_until(lambda: page.text(".steps [aria-pressed=true]").startswith("3 "))
    assert page.page.get_by_label("÷ √4").is_checked()
    rows = page.page.locator("table.arithmetic tbody tr").all_text_contents()
    assert rows[0].startswith("q (predicts ")
    cells = page.page.locator("tbody td[data-step='1']").all_text_contents()
    products = [float(cell.replace("−", "-")) for cell in cells]
    unscaled = 1 / sum(math.exp(product - max(products)) for product in products)
    assert float(page.text(".formula").split("without the factor ")[1]) == pytest.approx(unscaled, abs=2e-3)
    page.click("Back")
    page.wait_until(lambda: page.text("#tour h2").startswith("2 / "))
    page.open("overview")
    page.page.locator("#tour").get_by_label("End the tour").click()
    page.open("arithmetic")
    assert page.text(".steps [aria-pressed=true]").startswith("2 ")  # as before the tour


@pytest.mark.parametrize("section", [*TEXT_SECTIONS, "training"])
def test_every_section_explains_itself_in_both_languages(page: Page, section: str) -> None:
    page.open(section)
    english = page.text(f".section-{section} .prose")
    assert english.count(". ") + english.endswith(".") >= 2
    page.page.locator("#language").click()
    page.wait_until(lambda: "。" in page.text(f".section-{section} .prose"))
