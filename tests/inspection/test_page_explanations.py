"""Explanations of words in the HTML page of a scene."""

from pathlib import Path
from typing import Any

import regard
from tests.browser import Visit
from tests.conftest import Command
from tests.inspection.test_page_in_browser import DESKTOP, PHONE

SENTENCE = "I love apples"


def test_command_prints_and_draws_explanations(
    command: Command, browser: Any, trained_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "look.html"
    options = ("--why", "喜欢", "--not", "买", "--against", "I buy apples", "--out", out)
    answer = command("look", trained_run, SENTENCE, *options)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[0] == "我喜欢苹果"
    assert lines[1].startswith("why 喜欢, not 买: log p(喜欢) − log p(买) = ")
    assert any(line.startswith("  next tokens       喜欢 ") for line in lines)
    assert any(line.startswith("喜欢 rather than 买: ") for line in lines)
    assert lines[-1] == str(out)
    for view in (DESKTOP, PHONE):
        with Visit(browser, **view) as visit:
            page = visit.open(out)
            for summary in page.locator("details summary").all():
                summary.click()
            question = {"en-GB": "Why 喜欢, not 买?", "zh-CN": "为什么是“喜欢”，而不是“买”？"}[view["locale"]]
            assert page.locator(".why-question").text_content() == question
            assert page.locator(".why-side").first.locator("tbody th").all_text_contents() == ["I", "love", "apples"]
            assert page.locator(".next-token").first.text_content() == "喜欢"
            assert page.locator("th", has_text="love / buy").count() == 1
            width, visible = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert width <= visible
            assert visit.console == []


def test_all_words_are_explained(command: Command, trained_run: Path, tmp_path: Path) -> None:
    answer = command("look", trained_run, SENTENCE, "--why", "all", "--out", tmp_path / "look.html")
    questions = [line.partition(":")[0] for line in answer.out.splitlines() if line.startswith("why ")]
    assert questions == ["why 我", "why 喜欢", "why 苹果", "why END"]


def test_options_of_explanations_are_checked(
    command: Command, trained_run: Path, image_run: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "look.html")
    assert "name it with --why" in command("look", trained_run, SENTENCE, "--not", "买", *out).error
    assert "instead of all" in command("look", trained_run, SENTENCE, "--why", "all", "--not", "买", *out).error
    assert "is not in the translation" in command("look", trained_run, SENTENCE, "--why", "狗", *out).error
    assert "for translators" in command("look", image_run, "x.png", "--why", "1").error
    assert list(tmp_path.iterdir()) == []


def test_page_without_explanations_does_not_show_the_section(browser: Any, trained_run: Path, tmp_path: Path) -> None:
    from regard.inspection.translation import translation_scene

    translation_scene(regard.Translator.load(trained_run), SENTENCE).save(tmp_path / "look.html")
    with Visit(browser, **DESKTOP) as visit:
        assert visit.open(tmp_path / "look.html").locator("#why").is_hidden()
