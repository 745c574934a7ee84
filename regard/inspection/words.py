"""Which tokens of a tokenizer continue the word of the token before them."""

import unicodedata
from collections.abc import Sequence

SPACE_MARK = "▁"
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""First words of the names of characters of scripts without spaces between words."""


def continues_word(tokens: Sequence[str]) -> list[bool]:
    """Return for each token whether it continues the word of the token before it.

    Punctuation and characters of scripts without spaces between words are words of their own.

    Args:
        tokens: Tokens of a tokenizer, in which a word starts with "▁".

    Examples:
        >>> continues_word(["▁un", "seen", "▁words", "."])
        [False, True, False, False]
    """
    return [number > 0 and _is_one_word(tokens[number - 1], token) for number, token in enumerate(tokens)]


def _is_one_word(before: str, token: str) -> bool:
    if before == SPACE_MARK:  # a space of its own, before a word that is not in the vocabulary
        return not token.startswith(SPACE_MARK)
    return _is_inside(before[-1:]) and _is_inside(token[:1])


def _is_inside(character: str) -> bool:
    """Whether a character can be inside of a word: a letter or digit of a script with spaces, or a mark on a letter."""
    if not character or character == SPACE_MARK:
        return False
    is_unspaced = unicodedata.name(character, "").startswith(_UNSPACED)
    return unicodedata.category(character)[0] in "LNM" and not is_unspaced
