"""Tags within strings of formats that have no markup of their own: `<b>` in a message or a subtitle."""

import html
import re
from collections.abc import Callable

from regard.data.documents.marked_text import MarkedText, MarkedTextBuilder
from regard.data.documents.placeholders import find_placeholders

TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[a-zA-Z][\w-]{0,40}(?::[\w-]{1,40})?)(?P<rest>(?:[\s/.][^<>\n]{0,1000})?)>|<[\d:.]{5,20}>"
)
KEPT = frozenset({"code", "kbd", "samp", "var", "tt"})
"""Elements whose content is not translated."""


def parse_tags(
    text: str,
    unescape: Callable[[str], str] = lambda text: text,
    quote: Callable[[str], str] = lambda text: text,
    codes: re.Pattern[str] | None = None,
) -> MarkedText:
    """Return a text without its tags.

    Args:
        text: The text.
        unescape: Converts the text between tags.
        quote: Converts a tag to the notation of the file.
        codes: Further markup without content.
    """
    builder, position, start = MarkedTextBuilder(), 0, 0
    quoted = find_placeholders(text)  # such as `<b>`, which is code
    while (match := TAG.search(text, start)) is not None:
        if any(a < match.start() < b for a, b in quoted):
            start = match.start() + 1
            continue
        _append(builder, text[position : match.start()], unescape, codes)
        position, name = match.end(), match["name"]
        if name and name.lower() in KEPT and not match["close"] and not match["rest"].endswith("/"):
            end = text.find(f"</{name}>", position)
            position = position if end < 0 else end + len(name) + 3
        code = (quote(text[match.start() : position]),)
        if not name or match["rest"].endswith("/") or position > match.end():
            builder.single(code)
        elif match["close"]:
            builder.close(name.lower(), code)
        else:
            builder.open(name.lower(), code)
        start = position
    _append(builder, text[position:], unescape, codes)
    return builder.finish()


def _append(
    builder: MarkedTextBuilder, text: str, unescape: Callable[[str], str], codes: re.Pattern[str] | None
) -> None:
    position = 0
    for match in codes.finditer(text) if codes else ():
        builder.text(unescape(text[position : match.start()]))
        builder.single((match[0],), ordered=True)
        position = match.end()
    builder.text(unescape(text[position:]))


def escape(text: str) -> str:
    """Write a text between the tags of HTML or XML."""
    return html.escape(text, quote=False)
