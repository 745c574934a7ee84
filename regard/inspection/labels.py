"""Readable labels of tokens."""

import re
from collections.abc import Sequence

_PRINTABLE_BYTE = re.compile("^<0x(2[1-9A-F]|[3-6][0-9A-F]|7[0-9A-E])>$")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def readable_labels(tokens: Sequence[str]) -> list[str]:
    """Convert tokens of a tokenizer to labels: without the leading space mark and without unprintable characters.

    Byte tokens of printable ASCII characters become these characters.
    """
    decoded = [_PRINTABLE_BYTE.sub(lambda byte: chr(int(byte[1], 16)), token) for token in tokens]
    return [replace_unprintable(token.removeprefix("▁") or "␣") for token in decoded]


def replace_unprintable(text: str) -> str:
    """Replace characters that cannot be displayed, such as control characters, by U+FFFD."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)
