"""The section of the page that explains a word of the translation."""

from pathlib import Path

import pytest

import regard
from regard.errors import UserError
from regard.inspection.explain.attribution import attribute_word
from regard.inspection.explain.explanation import explain
from regard.inspection.explain.lens import read_layers
from regard.serving.messages import LoadRequest
from regard.serving.model_runner import TranslationRunner
from regard.serving.page_data.text import MAX_POINTS
from regard.serving.page_schemas import LensResponse, WhyResponse
from tests.serving.page import Page, to_number

SENTENCE = "I love apples"


@pytest.fixture(scope="module")
def runner(trained_run: Path) -> TranslationRunner:
    return TranslationRunner(LoadRequest("toy", trained_run, "cpu"))


def ask(runner: TranslationRunner, operation: str, **fields: object) -> dict:
    (result,) = runner.run(operation, [{"text": SENTENCE, "target": None} | fields], {})
    return result


def test_views_return_the_explanation_of_the_model(runner: TranslationRunner, translator: regard.Translator) -> None:
    found = ask(runner, "why", word="喜欢", contrast="买", against="I buy apples")
    WhyResponse(**found)
    expected = explain(translator, SENTENCE, "喜欢", "买", "I buy apples", max_points=MAX_POINTS)
    assert found["attribution"]["source"]["labels"] == expected.attribution.source
    assert found["attribution"]["source"]["scores"] == pytest.approx(
        expected.attribution.source_scores.tolist(), abs=1e-3
    )
    assert len(found["heads"]) == 12
    assert found["patching"]["encoder"][0] == pytest.approx(expected.patching.encoder[0].tolist(), abs=1e-3)
    lens = ask(runner, "lens", top=3)
    LensResponse(**lens)
    assert lens["decoder"]["tokens"] == read_layers(translator, SENTENCE, top=3).decoder.tokens
    assert lens["encoder"]["labels"][-1] == "END"
    with pytest.raises(UserError, match="not in the translation"):
        ask(runner, "why", word="狗", contrast=None, against=None)


def test_chosen_word_is_explained(page: Page, trained_run: Path) -> None:
    page.open("why")
    page.wait_until(lambda: page.page.locator(".why-question").count())
    assert page.text(".why-question") == "Why 喜欢?"
    translator = regard.Translator.load(trained_run)
    expected = attribute_word(translator, SENTENCE, 3, occlusion=False)
    page.page.locator(".tokens.target .token").nth(2).click()
    page.wait_until(lambda: page.text(".why-question") == "Why 苹果?")
    sides = page.page.locator(".why-side")
    assert sides.nth(0).locator("tbody th").all_text_contents() == ["I", "love", "apples"]
    numbers = sides.nth(0).locator(".number").all_text_contents()[::2]
    assert [to_number(number) for number in numbers] == pytest.approx(expected.source_scores.tolist(), abs=0.02)
    assert sides.nth(1).locator("tbody th").all_text_contents() == ["我", "喜欢"]
    assert page.text(".next-token") == "苹果"
    assert page.page.locator(".chosen-position").first.text_content() == "苹果"
    assert page.page.locator("tbody tr", has_text="decoder.1.cross").count() == 2


def test_contrast_and_another_sentence_are_part_of_the_link(page: Page) -> None:
    page.open("why")
    page.page.get_by_label("Why not").fill("买")
    page.page.get_by_label("Another sentence").fill("I buy apples")
    page.click("Explain")
    page.wait_until(lambda: page.page.locator(".why-question").count() and "not 买" in page.text(".why-question"))
    assert page.page.locator(".lens-cell", has_text="100%").count() >= 2
    assert page.page.locator("th", has_text="love / buy").count() == 1
    page.page.reload()
    page.wait_until_ready("why")
    page.wait_until(lambda: page.page.locator(".why-question").count() and "not 买" in page.text(".why-question"))
    assert page.page.get_by_label("Another sentence").input_value() == "I buy apples"


def test_unknown_word_gives_an_error_and_the_next_one_removes_it(page: Page) -> None:
    page.open("why")
    page.page.get_by_label("Another sentence").fill("I buy apples and tea")
    page.click("Explain")
    page.wait_until(lambda: page.page.locator("#error").is_visible())
    assert "as many tokens" in page.text("#error")
    page.page.get_by_label("Another sentence").fill("")
    page.click("Explain")
    page.wait_until(lambda: not page.page.locator("#error").is_visible())
    page.forgive_failed_requests()


def test_non_autoregressive_model_is_refused_in_the_language_of_the_page(page: Page) -> None:
    page.open("why")
    page.select_model("nat", "why")
    page.wait_until(lambda: page.page.locator(".unavailable").count())
    assert page.text(".unavailable").startswith("A non-autoregressive model predicts all words in parallel")
    page.click("中文")
    page.wait_until(lambda: "非自回归模型" in page.text(".unavailable"))


def test_slider_changes_the_attention_to_a_source_token(page: Page) -> None:
    page.open("change")
    scores = page.page.locator(".line .bar .hint")
    page.wait_until(lambda: page.page.locator(".score-bias .token").count())
    assert scores.nth(1).text_content() == scores.nth(0).text_content()
    token = page.page.locator(".score-bias .token", has_text="love")
    token.click()
    slider = page.page.locator(".score-bias input[type=range]")
    slider.evaluate("(range) => { range.value = -10; range.dispatchEvent(new Event('input')); }")
    page.wait_until(lambda: scores.nth(1).text_content() != scores.nth(0).text_content())
    assert token.text_content() == "love −10"
    assert "bias=" in page.page.url
    page.page.reload()
    page.wait_until_ready("change")
    page.wait_until(lambda: scores.nth(1).text_content() != scores.nth(0).text_content())
    page.click("Reset")
    page.wait_until(lambda: page.page.locator(".score-bias .pointed").count() == 0)
    page.wait_until(lambda: scores.nth(1).text_content() == scores.nth(0).text_content() != "")
