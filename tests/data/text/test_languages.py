"""Languages: codes, scripts, detection, and texts in another language."""

import pytest

from regard.data.text.languages import (
    ExpectedLanguage,
    LanguageDetector,
    SourceLanguageCheck,
    detect_language,
    find_language,
    warn_of_other_language,
)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("en", "en"),
        (" ZH ", "zh"),
        ("zh-CN", "zh-CN"),
        ("pt_BR", "pt_BR"),
        ("German", "de"),
        ("translation.fr", "fr"),
        ("source", ""),
        ("xx", ""),
        ("english text", ""),
        ("", ""),
    ],
)
def test_language_of_a_column_name(name: str, code: str) -> None:
    assert find_language(name) == code


@pytest.mark.parametrize(
    ("texts", "code"),
    [
        (["我喜欢苹果。", "你好"], "zh"),
        (["我用 Python 和 PyTorch 训练模型，效果很好，大家都喜欢。"], "zh"),
        (["私はりんごが好きです。"], "ja"),
        (["東京タワー"], "ja"),
        (["나는 사과를 좋아한다."], "ko"),
        (["ฉันชอบแอปเปิ้ล"], "th"),
        (["Αγαπώ τα μήλα"], "el"),
        (["I love apples", "the word 苹果 means apple"], ""),
        (["Я люблю яблоки"], ""),  # several languages use this script
        (["1, 2, 3!", ""], ""),
        ([], ""),
    ],
)
def test_language_of_a_script(texts: list[str], code: str) -> None:
    assert detect_language(texts) == code


def test_single_language_is_certain() -> None:
    assert LanguageDetector().rank("Das Haus", ["en"]) == [("en", 100.0)]


def test_languages_unknown_to_the_identifier_are_equally_likely() -> None:
    pytest.importorskip("py3langid")
    assert LanguageDetector().rank("Das Haus", ["x1", "x2", "x3"]) == [("x1", 33.3), ("x2", 33.3), ("x3", 33.3)]


def test_known_languages_are_ranked_and_others_have_probability_zero() -> None:
    pytest.importorskip("py3langid")
    detector = LanguageDetector()
    for text, first in (("Das Haus ist alt und groß.", "de"), ("The house is old and large.", "en")):
        ranked = detector.rank(text, ["x1", "en", "de"])
        assert ranked[0][0] == first and ranked[0][1] > 50
        assert ranked[-1] == ("x1", 0.0)
        assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.3)
    ((best, _), _) = detector.rank("Das Haus ist alt und groß.", ["en", "fr"])
    assert best in ("en", "fr")


def test_the_script_of_chinese_is_found_by_its_characters() -> None:
    detector = LanguageDetector()
    for text, codes in (
        ("這些孩子喜歡蘋果", ["zt", "zh"]),
        ("这些孩子喜欢苹果", ["zh", "zt"]),
        ("一二三", ["zh", "zt"]),
    ):
        for candidates in (["en", "zh", "zt"], ["zt", "zh", "en"]):
            ranked = detector.rank(text, candidates)
            assert ranked[0][0] == codes[0] and ranked[0][1] > 99
            assert dict(ranked)[codes[1]] == 0.0
        assert detector.rank(text, ["en", "zt"])[0][0] == "zt"
        assert detector.rank(text, ["en", "zh-Hans"])[0][0] == "zh-Hans"


def test_expected_language_is_probable_only_in_its_own_texts() -> None:
    pytest.importorskip("py3langid")
    german = ExpectedLanguage("de")
    assert german.known
    probability, best = german.probability("Das Haus ist alt und groß.")
    assert probability > 0.5 and best == "de"
    probability, best = german.probability("The house is old and large.")
    assert probability < 0.02 and best == "en"


def test_codes_with_regions_and_both_kinds_of_chinese_are_known() -> None:
    pytest.importorskip("py3langid")
    assert [ExpectedLanguage(code).code for code in ("pt-BR", "zh-CN", "zt", "zh-Hant")] == ["pt", "zh", "zh", "zh"]
    assert not ExpectedLanguage("x1").known


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


def test_without_the_identifier_only_scripts_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.text.languages.find_spec", lambda name: None)
    assert SourceLanguageCheck("de").find_other(ENGLISH) == ""
    assert SourceLanguageCheck("zh").find_other(ENGLISH) == "und"
    assert SourceLanguageCheck("en").find_other("我喜欢苹果") == "zh"


def test_texts_in_another_language_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["我", "Dies", "我喜欢用它", "Dies", "那么"]
    with caplog.at_level("WARNING", "regard"):
        assert list(warn_of_other_language(texts, "zh", "line")) == texts
    (message,) = caplog.messages
    assert message == "line 2 is not Chinese, from which the model translates: 'Dies'"
