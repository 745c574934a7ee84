"""The rules that need only the pair: empty texts, damage, markup, lengths and copies, for many pairs at once.

Damage and markup are searched for in the few texts that have characters of both.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from regard.data.text.cleaning.characters import (
    CONTINUATION,
    DAMAGE,
    INVISIBLE,
    LEAD,
    LETTER,
    SPACE,
    WINDOWS_1252_CONTINUATION,
    mix,
)
from regard.data.text.cleaning.settings import MAX_CHARACTERS, CleaningSettings
from regard.data.text.cleaning.texts import Mask, Pairs, Texts, either

MIN_COPIED_WORDS = 4
"""Words of both sides from which a share of common words counts."""
_CONTINUATION = f"[{re.escape(WINDOWS_1252_CONTINUATION)}]"
MOJIBAKE = re.compile(f"[\xc2-\xdf]{_CONTINUATION}|[\xe0-\xef]{_CONTINUATION}{{2}}|[\xf0-\xf4]{_CONTINUATION}{{3}}")
"""The bytes of one character beyond ASCII in UTF-8, read as Windows-1252 or Latin-1."""
LAST_LATIN = "\u017f"
"""One sequence for a letter up to here, or for punctuation, is enough."""
MIN_SEQUENCES = 2
"""Sequences that are needed for other scripts; a single one can be an É or ß before a quotation mark."""
RARE = re.compile("[\u0180-\u036f\u0530-\u05cf\u0700-\u08ff]")
"""Characters that occur in no text of a frequent language; an É or ß before quotation marks would give them."""
_ELEMENTS = (
    "a|abbr|b|blockquote|body|br|button|center|cite|code|dd|div|dl|dt|em|font|form|h[1-6]|head|hr|html|i|iframe|img|input|label|"
    "li|link|meta|nobr|ol|option|p|pre|s|script|select|small|span|strike|strong|style|sub|sup|table|tbody|td|textarea|th|"
    "thead|title|tr|tt|u|ul"
)
MARKUP = re.compile(
    rf"<(?:{_ELEMENTS})>|</[a-z][a-z0-9:-]{{0,30}}>|<[a-z][a-z0-9:-]{{0,30}}\s?/>"
    r"|<[a-z][a-z0-9:-]{0,30}\s[^<>=]{0,60}=[^<>]{0,500}>|<!--|<!\[CDATA\[|<!DOCTYPE"
    r"|&(?:[a-z][a-z0-9]{1,30}|\#[0-9]{1,7}|\#x[0-9a-f]{1,6});",
    re.IGNORECASE,
)
"""Tags and character references. A name in angle brackets, such as <file>, is a tag if it is an element of HTML."""
_ESCAPE = r"&(?:amp|apos|quot|lt|gt|\#91|\#93|\#124);"
ESCAPES_OF_MOSES = re.compile(rf"(?<!\S){_ESCAPE}|{_ESCAPE}(?!\S)", re.IGNORECASE)
"""Tokenised text of Moses has these at the start or the end of tokens, on purpose."""


def check_pairs(pairs: Pairs, settings: CleaningSettings) -> Iterator[tuple[str, Mask]]:
    """Apply the rules that need only the pair; yield their names, each with which pairs break it."""
    visible = [np.diff(texts.bounds) - texts.count_class(SPACE | INVISIBLE) for texts in pairs.texts]
    yield "empty", either([numbers == 0 for numbers in visible])
    if settings.encoding:
        yield "encoding", either([damaged(*side) for side in zip(pairs.texts, pairs.strings, strict=True)])
    if settings.markup:
        yield "markup", either([has_markup(*side) for side in zip(pairs.texts, pairs.strings, strict=True)])
    if settings.letters is not None:
        letters = [texts.count_class(LETTER) for texts in pairs.texts]
        yield "letters", either([a < settings.letters * b for a, b in zip(letters, visible, strict=True)])
    yield "length", either([too_long(texts, settings) for texts in pairs.texts])
    if settings.copies is not None:
        yield "copy", copied(*pairs.texts, settings.copies)


def too_long(texts: Texts, settings: CleaningSettings) -> Mask:
    """Return which texts have too many characters or words."""
    result = texts.lengths > settings.max_characters
    return result if settings.max_words is None else result | (texts.words.counts > settings.max_words)


def copied(source: Texts, target: Texts, share: float) -> Mask:
    """Return which pairs have equal sides, or sides of which most words are common."""
    keys = [mix(words.hashes ^ mix(words.owners.astype(np.uint64))) for words in (source.words, target.words)]
    common = np.bincount(target.words.owners[np.isin(keys[1], keys[0])], minlength=len(target))
    longer = np.maximum(source.words.counts, target.words.counts)
    alike = (longer >= MIN_COPIED_WORDS) & (common >= share * longer)
    result: Mask = alike | (source.folded_hashes == target.folded_hashes)
    return result


# Damage and markup


def damaged(texts: Texts, strings: Sequence[str]) -> Mask:
    """Return which texts have damaged characters."""
    result = texts.has(DAMAGE)
    for index in np.flatnonzero(texts.has(LEAD, CONTINUATION) & ~result).tolist():
        result[index] = is_mojibake(strings[index][:MAX_CHARACTERS])
    return result


def is_mojibake(text: str) -> bool:
    """Return whether text contains UTF-8 that was decoded with another encoding, such as "Ã¤" for "ä"."""
    several = 0
    for match in MOJIBAKE.finditer(text):
        decoded = _decode(match[0])
        if decoded is None:
            continue
        if decoded <= LAST_LATIN or unicodedata.category(decoded)[0] in "PS":
            return True
        several += RARE.match(decoded) is None
    return several >= MIN_SEQUENCES


def _decode(sequence: str) -> str | None:
    octets = bytearray()
    for character in sequence:
        try:
            octets += character.encode("cp1252")
        except UnicodeEncodeError:
            octets.append(ord(character) & 0xFF)
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError:
        return None


def has_markup(texts: Texts, strings: Sequence[str]) -> Mask:
    """Return which texts have tags or character references."""
    result = texts.has_code(ord("<")) | texts.has_code(ord("&"))
    for index in np.flatnonzero(result).tolist():
        result[index] = find_markup(strings[index][:MAX_CHARACTERS]) is not None
    return result


def find_markup(text: str) -> str | None:
    """Return the first tag or character reference of a text."""
    return next((m[0] for m in MARKUP.finditer(text) if not ESCAPES_OF_MOSES.match(text, m.start())), None)


def describe_damage(text: str) -> str:
    """Say what is damaged in a text; "" if nothing is."""
    for character in text:
        if character == "\ufffd":
            return "replacement character U+FFFD"
        category = unicodedata.category(character)
        if category == "Co" or (category == "Cc" and character not in "\t\n\r"):
            return f"{'private' if category == 'Co' else 'control'} character U+{ord(character):04X}"
    return "text decoded with a wrong encoding" if is_mojibake(text) else ""
