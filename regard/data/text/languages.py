"""Language codes: their English names, and the codes that regional tags such as `zh-CN` stand for."""

from collections.abc import Iterable

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


def language_name(code: str) -> str:
    """Return the name of a language, or its code if the name is not known."""
    return LANGUAGE_NAMES.get(code, code)


def match_language(tag: str, codes: Iterable[str]) -> str | None:
    """Return the code that a language tag stands for, or None.

    This is the tag itself if it is one of the codes, otherwise the shortest code of the same language in any region.
    Simplified and traditional Chinese are different languages.
    """
    codes = list(codes)
    if tag in codes:
        return tag
    language = _language_of(tag)
    return min((code for code in codes if _language_of(code) == language), key=len, default=None)


def _language_of(tag: str) -> str:
    """Return the language of a tag such as `pt-BR` or `zh_Hant_TW`, without its region."""
    parts = tag.lower().replace("_", "-").split("-")
    prefixes = ("-".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((CODES[prefix] for prefix in prefixes if prefix in CODES), parts[0])
