"""The picture of the whole model on the page."""

from pathlib import Path

import pytest

from regard import Translator
from tests.serving.page import Page

LAYERS = 2
"""Layers of each stack of the models that the tests train."""


def test_overview_is_played_token_by_token_with_the_numbers_of_the_model(page: Page, trained_run: Path) -> None:
    page.open("overview")
    tokens = page.page.locator(".flow .tokens.target .token")
    assert tokens.all_text_contents() == ["我", "喜欢", "苹果", "END"]
    page.click("First step")
    assert tokens.all_text_contents() == ["我"]
    bars = page.page.locator(".flow-output .class span:first-child")
    assert bars.first.text_content() == "我"
    page.click("Next step")
    assert bars.first.text_content() == "喜欢"
    translator = Translator.load(trained_run)
    best = translator.hypotheses(["I love apples"])[0][0]
    probability = float(page.text(".flow-output .number").split("→ ")[1].rstrip("%")) / 100
    assert probability == pytest.approx(2.718281828 ** best.token_log_probs[1], abs=0.002)
    assert "step=1" in page.page.url
    page.click("Play")
    page.wait_until(lambda: tokens.count() == 4)


def test_every_block_of_the_overview_opens_its_section(page: Page) -> None:
    page.open("overview")
    blocks = page.page.locator(".flow-block")
    titles = [title.text_content() for title in page.page.locator(".flow-block strong").all()]
    assert titles.count("Self-attention") == titles.count("Cross-attention") == LAYERS
    for title, section in (
        ("Embedding", "translate"),
        ("+ Position", "positions"),
        ("Cross-attention", "attention"),
        ("Feed-forward", "arithmetic"),
        ("Linear + softmax", "beam"),
    ):
        blocks.nth(titles.index(title)).click()
        page.wait_until_ready(section)
        page.page.go_back()
        page.wait_until_ready("overview")


@pytest.mark.parametrize(("model", "stacks"), [("nat", 2), ("paint", 1), ("windows", 1), ("views", 3)])
def test_overview_of_every_kind_of_model(page: Page, model: str, stacks: int) -> None:
    page.open("overview")
    page.page.locator("#model").select_option(model)
    if model != "nat":
        page.page.locator(".example").first.click()
    page.wait_until(lambda: page.page.locator(".flow h3").count() == stacks)
    later = page.page.locator(".flow-block.later")
    assert later.count() == 0
    page.click("First step")
    assert later.count() == page.page.locator(".flow-block canvas").count() - 1
    width, visible = page.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width <= visible
