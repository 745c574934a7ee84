"""Languages: codes, names and scripts, detection, and the check that texts are in the language of a model."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import cache
from importlib.util import find_spec
from threading import Lock
from typing import Any, TypeVar

from regard.errors import import_optional

# fmt: off
LANGUAGE_NAMES = {
    "af": "Afrikaans", "ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian", "bn": "Bengali",
    "ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish",
    "fr": "French", "ga": "Irish", "gl": "Galician", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian",
    "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian", "ja": "Japanese",
    "ka": "Georgian", "kk": "Kazakh", "ko": "Korean", "la": "Latin", "lt": "Lithuanian", "lv": "Latvian",
    "mk": "Macedonian", "mn": "Mongolian", "ms": "Malay", "mt": "Maltese", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian",
    "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil", "th": "Thai", "tl": "Tagalog",
    "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese",
    "zt": "Chinese (traditional)",
}
# fmt: on
CODES = {
    **dict.fromkeys(("zh-hans", "zh-cn", "zh-sg", "zh-my", "cmn"), "zh"),
    **dict.fromkeys(("zh-hant", "zh-tw", "zh-hk", "zh-mo"), "zt"),
    **{"nb": "no", "iw": "he", "in": "id", "fil": "tl"},
}
"""Codes of tags that do not follow from their first part."""
_CODES_BY_NAME = {name.lower(): code for code, name in LANGUAGE_NAMES.items()}
_SCRIPTS = {
    "CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "THAI": "th", "GREEK": "el", "HEBREW": "he",
    "GEORGIAN": "ka", "ARMENIAN": "hy", "BENGALI": "bn", "TAMIL": "ta",
}  # fmt: skip
"""Languages of the scripts that hardly any other language uses, by the first word of the names of their characters."""
MIN_SHARE = 0.25
"""Share of the letters of a text in the script of its language; the rest may be foreign names and terms."""
MIN_KANA = 0.05
"""Share of kana among the characters of Japanese text; Chinese has none."""

_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "char", "th": "char"}
_UNSPACED = frozenset(("bo", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh", "zt"))


def language_name(code: str) -> str:
    """Return the name of a language, or its code if the name is not known."""
    return LANGUAGE_NAMES.get(code, code)


def tokenisation_for(language: str) -> str:
    """Return the sacreBLEU tokenizer for a language code, such as "zh" or "zh-CN"."""
    return _TOKENIZERS.get(language.split("-")[0].split("_")[0].lower(), "13a")


def match_language(tag: str, codes: Iterable[str]) -> str | None:
    """Return the code that a language tag stands for, or None.

    This is the tag itself if it is one of the codes, otherwise the shortest code of the same language in any region.
    Simplified and traditional Chinese are different languages.
    """
    codes = list(codes)
    if tag in codes:
        return tag
    language = language_of(tag)
    return min((code for code in codes if language_of(code) == language), key=len, default=None)


def language_of(tag: str) -> str:
    """Return the language of a tag such as `pt-BR` or `zh_Hant_TW`, without its region."""
    parts = tag.lower().replace("_", "-").split("-")
    prefixes = ("-".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((CODES[prefix] for prefix in prefixes if prefix in CODES), parts[0])


def is_same_language(tag: str, other: str) -> bool:
    """Return whether two tags name the same language in any region; both scripts of Chinese are the same language."""
    languages = {language_of(tag), language_of(other)}
    return len(languages) == 1 or languages == {"zh", "zt"}


def script_conversion(source: str, target: str) -> str:
    """Return the name in OpenCC of the conversion between two codes of Chinese, such as "s2t"; "" if none is needed."""
    one, other = language_of(source), language_of(target)
    if {one, other} != {"zh", "zt"}:
        return ""
    traditional = (source if one == "zt" else target).lower()
    region = next((name for name in ("tw", "hk") if traditional.endswith(name)), "t")
    return f"{region}2s" if one == "zt" else f"s2{region}"


@cache
def script_converter(conversion: str) -> Callable[[str], str]:
    """Return a function that converts text between simplified and traditional Chinese."""
    purpose = "converting between simplified and traditional Chinese"
    convert: Callable[[str], str] = import_optional("opencc", "chinese", purpose).OpenCC(conversion).convert
    return convert


def convertible_languages(code: str) -> tuple[str, ...]:
    """Return a language, and the other script of Chinese if text can be converted: ("zh", "zt") for "zh"."""
    other = {"zh": "zt", "zt": "zh"}.get(language_of(code))
    return (code, other) if other is not None and can_convert_scripts() else (code,)


@cache
def can_convert_scripts() -> bool:
    """Return whether the package for `script_converter` is installed."""
    return find_spec("opencc") is not None


def script_code(tag: str) -> str:
    """Return the code of the script that a tag of Chinese names: zh, zt, or zh-TW and zh-HK, which have own forms."""
    regional = {"s2tw": "zh-TW", "s2hk": "zh-HK"}
    return regional.get(script_conversion("zh", tag), language_of(tag))


def script_languages() -> frozenset[str]:
    """Return the languages that `detect_language` recognises by their script."""
    return frozenset(_SCRIPTS.values())


def find_language(name: str) -> str:
    """Return the language code in the name of a column, such as en, zh-CN, German or text.de; "" if there is none."""
    name = name.strip().rpartition(".")[2]
    match = re.fullmatch(r"([A-Za-z]{2,3})([-_][A-Za-z]{2,8})?", name)
    if match and match[1].lower() in LANGUAGE_NAMES:
        return match[1].lower() + (match[2] or "")
    return _CODES_BY_NAME.get(name.lower(), "")


def detect_language(texts: Iterable[str]) -> str:
    """Return the language of texts in a script that hardly any other language uses; "" for other scripts."""
    characters = Counter(character for text in texts for character in text if character.isalpha())
    languages: Counter[str] = Counter()
    for character, number in characters.items():
        languages[_SCRIPTS.get(unicodedata.name(character, "").partition(" ")[0], "")] += number
    if languages["ja"] > MIN_KANA * (languages["ja"] + languages["zh"]):
        languages["ja"] += languages.pop("zh", 0)
    unknown, total = languages.pop("", 0), characters.total()
    language, number = max(languages.items(), key=lambda item: item[1], default=("", unknown))
    return language if number > MIN_SHARE * total else ""


def script_share(text: str, code: str) -> float:
    """Return the share of the letters of a text that are in a script that hardly any language but this one uses."""
    letters = [unicodedata.name(character, "").partition(" ")[0] for character in text if character.isalpha()]
    return sum(_SCRIPTS.get(script) == code for script in letters) / max(1, len(letters))


def has_spaces(code: str) -> bool:
    """Return whether a language, such as "en" or "zh-CN", is written with spaces between words."""
    return language_of(code) not in _UNSPACED


@cache
def _load_identifier() -> Any:
    """Load the language identifier, which takes about a second and 100 MB."""
    langid = import_optional("py3langid.langid", "data")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _find_label(code: str, labels: Sequence[str]) -> str | None:
    """Return the label of the identifier for a language code; it does not distinguish the scripts of Chinese."""
    return match_language(code, labels) or ("zh" if language_of(code) == "zt" else None)


def _is_traditional(text: str) -> bool:
    """Return whether a text contains more characters of traditional than of simplified Chinese."""
    from regard.data.text.cleaning.characters import SIMPLIFIED, TRADITIONAL, variants

    table = variants()
    found = [table[ord(character)] for character in text]
    return found.count(TRADITIONAL) > found.count(SIMPLIFIED)


class LanguageDetector:
    """Detects the language of a text among some candidates.

    Candidates that the identifier does not know have the probability 0, unless it knows none of the candidates.
    Simplified and traditional Chinese are distinguished by their characters.
    """

    def __init__(self) -> None:
        self._identifier: Any = None
        self._labels: Sequence[str] = ()
        self._selected: list[str] = []
        self._loading = Lock()

    def load(self) -> None:
        """Load the identifier once; concurrent calls wait for the first one."""
        with self._loading:
            if self._identifier is None:
                self._identifier = copy(_load_identifier())
                self._labels = list(self._identifier.labels)

    def rank(self, text: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
        """Return the candidates and their probabilities in per cent, the most likely first."""
        if len(candidates) < 2:
            return [(code, 100.0) for code in candidates]
        self.load()
        traditional = _is_traditional(text)
        candidates = sorted(candidates, key=lambda code: (language_of(code) == "zt") != traditional)
        # Of candidates with the same label, the first has its probability.
        codes = {label: code for code in reversed(candidates) if (label := _find_label(code, self._labels))}
        if not codes:
            return [(code, round(100 / len(candidates), 1)) for code in candidates]
        if sorted(codes) != self._selected:
            self._selected = sorted(codes)
            self._identifier.set_languages(self._selected)
        ranked = [(codes[label], round(100 * share, 1)) for label, share in self._identifier.rank(text)]
        return ranked + [(code, 0.0) for code in candidates if code not in codes.values()]


class ExpectedLanguage:
    """Compares texts with the language that they should have; `known` is False if the identifier does not know it.

    Simplified and traditional Chinese are one language here.

    Args:
        code: Language code, such as "de" or "zh-Hant".
    """

    def __init__(self, code: str) -> None:
        self._identifier = _load_identifier()
        self.code = _find_label(code, self._identifier.labels) or ""
        self.known = bool(self.code)

    def probability(self, text: str) -> tuple[float, str]:
        """Return the probability of the expected language among all known ones, and the most likely language."""
        ranked = self._identifier.rank(text)
        return dict(ranked)[self.code], ranked[0][0]

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Return all known languages and their probabilities, the most likely first."""
        return [(str(code), float(probability)) for code, probability in self._identifier.rank(text)]


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
