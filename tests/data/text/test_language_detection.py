"""Detection of the language of a text."""

import pytest

pytest.importorskip("py3langid")

from regard.data.text.language_detection import ExpectedLanguage, LanguageDetector


def test_single_language_is_certain() -> None:
    assert LanguageDetector().rank("Das Haus", ["en"]) == [("en", 100.0)]


def test_languages_unknown_to_the_identifier_are_equally_likely() -> None:
    assert LanguageDetector().rank("Das Haus", ["x1", "x2", "x3"]) == [("x1", 33.3), ("x2", 33.3), ("x3", 33.3)]


def test_known_languages_are_ranked_and_others_have_probability_zero() -> None:
    detector = LanguageDetector()
    for text, first in (("Das Haus ist alt und groß.", "de"), ("The house is old and large.", "en")):
        ranked = detector.rank(text, ["x1", "en", "de"])
        assert ranked[0][0] == first and ranked[0][1] > 50
        assert ranked[-1] == ("x1", 0.0)
        assert sum(share for _, share in ranked) == pytest.approx(100, abs=0.3)
    ((best, _), _) = detector.rank("Das Haus ist alt und groß.", ["en", "fr"])
    assert best in ("en", "fr")


def test_expected_language_is_probable_only_in_its_own_texts() -> None:
    german = ExpectedLanguage("de")
    assert german.known
    probability, best = german.probability("Das Haus ist alt und groß.")
    assert probability > 0.5 and best == "de"
    probability, best = german.probability("The house is old and large.")
    assert probability < 0.02 and best == "en"


def test_codes_with_regions_and_both_kinds_of_chinese_are_known() -> None:
    assert [ExpectedLanguage(code).code for code in ("pt-BR", "zh-CN", "zt", "zh-Hant")] == ["pt", "zh", "zh", "zh"]
    assert not ExpectedLanguage("x1").known
