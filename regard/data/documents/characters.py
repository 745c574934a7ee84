"""Encodings: UTF-8 and UTF-16 with and without byte order mark, and encodings that a file declares."""

import codecs
import re
from dataclasses import dataclass
from typing import Literal

from regard.errors import UserError

SUPPORTED = re.compile(
    r"(us-)?ascii|utf-?8|utf-?16(-?[lb]e)?|iso-?8859-?\d+|latin-?1|(windows-?|cp)125\d|koi8-[ru]|gb2312|gbk|gb18030|"
    r"big5(-?hkscs)?|shift[_-]?jis|euc[_-](jp|kr)|tis-620"
)
"""Encodings that a file may declare. Others, such as punycode and UTF-7, are no encodings of documents."""
Errors = Literal["strict", "xmlcharrefreplace"]


@dataclass(frozen=True)
class Characters:
    """The text of a file, and how it is encoded. A byte order mark is the first character.

    Attributes:
        text: The text, with its line ends unchanged.
        encoding: Name of the codec.
        errors: How characters are written that the encoding does not contain.
        name: Name of the file, for errors.
    """

    text: str
    encoding: str = "utf-8"
    errors: Errors = "strict"
    name: str = "the document"

    @classmethod
    def decode(cls, data: bytes, name: str, declared: str | None = None, errors: Errors = "strict") -> "Characters":
        """Decode a file.

        Args:
            data: The file.
            name: Name of the file, for errors.
            declared: Encoding that the file declares; a byte order mark has precedence.
            errors: How characters are written that the encoding does not contain.

        Raises:
            UserError: The encoding is unknown, or the file is not in this encoding.
        """
        encoding = detect_encoding(data) or (declared or "utf-8").strip().lower()
        if not SUPPORTED.fullmatch(encoding):
            raise UserError(f"{name}: the encoding {encoding[:40]!r} is not supported; save the file as UTF-8")
        try:
            codec = codecs.lookup(encoding).name
            text = data.decode(codec)
            if text.encode(codec) != data:
                raise UserError(f"{name}: the {encoding} text has several spellings of a character; save it as UTF-8")
        except (LookupError, UnicodeError) as error:
            at = f" (byte {error.start + 1})" if isinstance(error, UnicodeDecodeError) else ""
            raise UserError(f"{name}: damaged or not {encoding.upper()} text{at}; save the file as UTF-8") from None
        if "\0" in text:
            raise UserError(f"{name}: has a null character (character {text.index(chr(0)) + 1}), so it is no text")
        return cls(text, codec, errors, name)

    def encode(self, text: str) -> bytes:
        """Encode a text as the file was encoded."""
        try:
            return text.encode(self.encoding, self.errors)
        except UnicodeEncodeError as error:
            character = text[error.start]
            raise UserError(
                f"{self.name}: its encoding {self.encoding} has no character {character!r}; save the file as UTF-8"
            ) from None


def detect_encoding(data: bytes) -> str | None:
    """Return the encoding by the byte order mark, or UTF-16 by its zero bytes; None if there are neither."""
    if data.startswith(codecs.BOM_UTF8):
        return "utf-8"
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if data.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if data.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    start = data[:200]
    if len(data) >= 4 and len(data) % 2 == 0 and 0 in start:
        # In UTF-16, one byte of each Latin character is zero: the second in little-endian order, else the first.
        first_zeros, second_zeros = start[::2].count(0), start[1::2].count(0)
        if second_zeros > len(start) // 4 and not first_zeros:
            return "utf-16-le"
        if first_zeros > len(start) // 4 and not second_zeros:
            return "utf-16-be"
    return None
