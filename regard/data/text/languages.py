"""Languages: English names, codes in tags and column names, detection by script, languages without spaces."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

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

_TOKENISERS = {"zh": "zh", "ja": "ja-mecab", "ko": "char", "th": "char"}
_UNSPACED = frozenset(("bo", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh", "zt"))


def language_name(code: str) -> str:
    """Return the name of a language, or its code if the name is not known."""
    return LANGUAGE_NAMES.get(code, code)


def tokenisation_for(language: str) -> str:
    """Return the sacreBLEU tokeniser for a language code, such as "zh" or "zh-CN"."""
    return _TOKENISERS.get(language.split("-")[0].split("_")[0].lower(), "13a")


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
    convert: Callable[[str], str] = import_optional("opencc", "chinese").OpenCC(conversion).convert
    return convert


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
