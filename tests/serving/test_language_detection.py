"""Detection of languages among those that a server can translate from."""

import pytest

pytest.importorskip("py3langid")

from regard.serving.language_detection import LanguageDetector


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
