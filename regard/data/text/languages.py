"""English names of languages, and languages without spaces between words."""

import re

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

_UNSPACED = frozenset(("bo", "ja", "km", "lo", "my", "th", "wuu", "yue", "zh", "zt"))


def language_name(code: str) -> str:
    """Return the name of a language, or its code if the name is not known."""
    return LANGUAGE_NAMES.get(code, code)


def has_spaces(code: str) -> bool:
    """Return whether a language, such as "en" or "zh-CN", is written with spaces between words."""
    return re.split("[-_]", code.lower())[0] not in _UNSPACED
