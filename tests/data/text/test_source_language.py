"""Check of the language of source texts."""

import pytest

from regard.data.text.source_language import SourceLanguageCheck

ENGLISH = "The children were playing in the garden behind the old house."


@pytest.mark.parametrize(
    ("code", "text", "found"),
    [
        ("en", "我喜欢苹果", "zh"),
        ("zh", "これは日本語の文です", "ja"),
        ("zh", "Dies", "und"),
        ("en", "Die Kinder spielten im Garten hinter dem alten Haus.", "de"),
        ("zh", ENGLISH, "en"),
        ("de-AT", ENGLISH, "en"),
    ],
)
def test_other_languages_are_found(code: str, text: str, found: str) -> None:
    pytest.importorskip("py3langid")
    assert SourceLanguageCheck(code).find_other(text) == found


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("en", ENGLISH),
        ("en", "Der Hund."),  # too short to tell
        ("en", "12345 !?"),
        ("zh", "我喜欢用 Python"),
        ("zh", "在 :mod:`importlib.metadata` 里新增了 :func:`packages_distributions`。"),
        ("zh-Hant", "這是一個句子"),
        ("zh", "這是一個句子"),
        ("ja", "東京都"),
        ("source", "我喜欢苹果"),  # the language of the model is unknown
        ("", "我喜欢苹果"),
    ],
)
def test_texts_that_may_be_in_the_language_are_accepted(code: str, text: str) -> None:
    assert SourceLanguageCheck(code).find_other(text) == ""
