"""Check of the language of source texts: by script, and by the language identifier where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from regard.data.text.languages import (
    LANGUAGE_NAMES,
    detect_language,
    language_name,
    language_of,
    script_languages,
    script_share,
)

if TYPE_CHECKING:
    from regard.data.text.language_detection import ExpectedLanguage

UNDETERMINED = "und"
"""Code of a language that could not be identified, as in ISO 639."""
MIN_LETTERS, MIN_SCRIPT_LETTERS = 20, 4
"""Letters of the shortest text that is identified, and of the shortest text whose script is examined."""
MIN_PROBABILITY, MAX_EXPECTED = 0.95, 0.01
"""Probability of another language from which, and of the expected one up to which, a text is reported."""
CHECKED = 200
"""Number of texts at the beginning of a file that are checked before they are translated."""
Text = TypeVar("Text", bound=str)


def warn_of_other_language(texts: Iterable[Text], code: str, noun: str) -> Iterator[Text]:
    """Yield texts; warn once if one of the first is not in the language of the model.

    Args:
        texts: The texts.
        code: Code of the language.
        noun: What a text is called in the warning, such as "line".
    """
    check, warned = SourceLanguageCheck(code), False
    for number, text in enumerate(texts, 1):
        if number <= CHECKED and not warned and (other := check.find_other(text)):
            found = "not" if other == UNDETERMINED else f"{language_name(other)}, not"
            about = f"{noun} {number} is {found} {language_name(check.code)}, from which the model translates"
            logging.getLogger("regard").warning(f"{about}: {text[:60]!r}")
            warned = True
        yield text


MIN_OWN_SHARE = 0.03
"""Share of the letters in the script of the language from which the others may be names, code and markup."""


class SourceLanguageCheck:
    """Finds texts that are clearly not in the language of a model; short texts and close cases are accepted.

    Simplified and traditional Chinese are one language here.

    Args:
        code: Code of the language, such as "en"; texts in an unknown language are all accepted.

    Examples:
        >>> SourceLanguageCheck("en").find_other("我喜欢苹果")
        'zh'
    """

    def __init__(self, code: str) -> None:
        self.code = _spoken(code)
        self.known = self.code in LANGUAGE_NAMES
        self._identifier: ExpectedLanguage | None = None  # loaded when the first text needs it
        self._identifies = find_spec("py3langid") is not None

    def find_other(self, text: str) -> str:
        """Return the code of the language of a text if it is another one; "" if the text may be in the language."""
        letters = sum(map(str.isalpha, text))
        if not self.known or letters < MIN_SCRIPT_LETTERS:
            return ""
        by_script = _spoken(detect_language([text]))
        if by_script and by_script != self.code:
            is_kanji = self.code == "ja" and by_script == "zh" and letters < MIN_LETTERS
            return "" if is_kanji else by_script
        other_script = not by_script and self.code in script_languages()
        if other_script and script_share(text, self.code) >= MIN_OWN_SHARE:
            return ""
        if by_script or letters < MIN_LETTERS:
            return UNDETERMINED if other_script else ""
        return self._identify(text) or (UNDETERMINED if other_script else "")

    def _identify(self, text: str) -> str:
        if not self._identifies:
            return ""
        if self._identifier is None:
            from regard.data.text.language_detection import ExpectedLanguage

            self._identifier = ExpectedLanguage(self.code)
        if not self._identifier.known:
            return ""
        ranked = self._identifier.rank(text)
        best, probability = ranked[0]
        is_other = probability >= MIN_PROBABILITY and dict(ranked)[self.code] <= MAX_EXPECTED
        return best if best != self.code and is_other else ""


def _spoken(code: str) -> str:
    language = language_of(code) if code else ""
    return "zh" if language == "zt" else language
