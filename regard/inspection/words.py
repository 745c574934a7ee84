"""Readable labels of tokens, and the words that tokens form.

A word consists of all its tokens in a language with spaces between words. Punctuation, and tokens of scripts without
spaces, are words of their own.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

END = "END"
SPACE_MARK = "▁"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""First words of the names of characters of scripts without spaces between words."""


class WordGroups(NamedTuple):
    """The words of a token sequence.

    Attributes:
        labels: Text of each word.
        tokens: Indices of the tokens of each word.
    """

    labels: list[str]
    tokens: list[list[int]]


def readable_labels(tokens: Sequence[str]) -> list[str]:
    """Convert tokens of a tokenizer to labels: without the leading space mark and without unprintable characters.

    Byte tokens of printable ASCII characters become these characters.
    """

    def character(byte: re.Match[str]) -> str:
        code = int(byte[1], 16)
        return chr(code) if 0x20 < code < 0x7F else byte[0]

    decoded = [_BYTE.sub(character, token) for token in tokens]
    return [replace_unprintable(token.removeprefix(SPACE_MARK) or "␣") for token in decoded]


def label_tokens(vocabulary: Any, tokens: Sequence[int], config: Any) -> list[str]:
    """Return the labels of token ids, and BOS, END and PAD for the special tokens of a model."""
    special = {config.pad: "PAD", config.bos: "BOS", config.eos: END}
    labels = readable_labels(vocabulary.tokens(tokens))
    return [special.get(token, label) for token, label in zip(tokens, labels, strict=True)]


def replace_unprintable(text: str) -> str:
    """Replace characters that cannot be displayed, such as control characters, by U+FFFD."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def display_width(text: str) -> int:
    """Return the width of a text in Latin characters; East Asian characters are twice as wide."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)


def continues_word(tokens: Sequence[str]) -> list[bool]:
    """Return for each token whether it continues the word of the token before it.

    Args:
        tokens: Tokens of a tokenizer, in which a word starts with "▁".

    Examples:
        >>> continues_word(["▁un", "seen", "▁words", "."])
        [False, True, False, False]
    """
    text, spans = _decode(tokens)
    is_letter = [_is_letter(character) for character in text]
    for i in range(1, len(text) - 1):
        if text[i] in "'’":
            is_letter[i] = is_letter[i - 1] and is_letter[i + 1]
    continues = [False] * len(tokens)
    for number, ((before, end), (start, _)) in enumerate(pairwise(spans), 1):
        is_inside = start > 0 and is_letter[start - 1] and is_letter[start]
        follows_space = text[before:end].isspace() and not text[start].isspace()
        continues[number] = is_inside or follows_space or start < end  # the last: another byte of a character
    return continues


def group_words(vocabulary: Any, tokens: Sequence[int]) -> WordGroups:
    """Join the tokens of words.

    Args:
        vocabulary: Tokenizer of the tokens.
        tokens: Token ids, without special tokens.
    """
    subwords = vocabulary.tokens(tokens)
    text, spans = _decode(subwords)
    groups: list[list[int]] = []
    for index, continues in enumerate(continues_word(subwords)):
        if continues:
            groups[-1].append(index)
        else:
            groups.append([index])
    labels = [text[spans[group[0]][0] : spans[group[-1]][1]].strip() for group in groups]
    return WordGroups([replace_unprintable(label) or "␣" for label in labels], groups)


def _decode(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of tokens, and the span of each; byte tokens have the span of their character."""
    parts = []
    for token in tokens:
        byte = _BYTE.fullmatch(token)
        text = replace_unprintable(token).replace(SPACE_MARK, " ") or "\N{REPLACEMENT CHARACTER}"
        parts.append(bytes([int(byte[1], 16)]) if byte else text.encode("utf-8"))
    text = b"".join(parts).decode("utf-8", errors="surrogateescape")
    character_of_byte = [i for i, c in enumerate(text) for _ in c.encode("utf-8", errors="surrogateescape")]
    ends = accumulate(map(len, parts), initial=0)
    return text, [(character_of_byte[start], character_of_byte[stop - 1] + 1) for start, stop in pairwise(ends)]


def _is_letter(character: str) -> bool:
    """Whether a character is a letter or digit of a script with spaces, or a mark on one."""
    is_unspaced = unicodedata.name(character, "").startswith(_UNSPACED)
    return unicodedata.category(character)[0] in "LNM" and not is_unspaced
