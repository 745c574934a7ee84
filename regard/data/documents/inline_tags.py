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
    code_pattern: re.Pattern[str] | None = None,
) -> MarkedText:
    """Return a text without its tags.

    Args:
        text: The text.
        unescape: Converts the text between tags.
        quote: Converts a tag to the notation of the file.
        code_pattern: Further markup without content.
    """
    builder, position, start = MarkedTextBuilder(), 0, 0
    quoted = find_placeholders(text)  # such as `<b>`, which is code
    while (match := TAG.search(text, start)) is not None:
        if any(first < match.start() < stop for first, stop in quoted):
            start = match.start() + 1
            continue
        _append_text_with_codes(builder, text[position : match.start()], unescape, code_pattern)
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
    _append_text_with_codes(builder, text[position:], unescape, code_pattern)
    return builder.finish()


def _append_text_with_codes(
    builder: MarkedTextBuilder, text: str, unescape: Callable[[str], str], code_pattern: re.Pattern[str] | None
) -> None:
    """Append text; each match of `code_pattern` becomes a tag without content that keeps its order."""
    if code_pattern is None:
        builder.text(unescape(text))
        return
    position = 0
    for match in code_pattern.finditer(text):
        builder.text(unescape(text[position : match.start()]))
        builder.single((match[0],), ordered=True)
        position = match.end()
    builder.text(unescape(text[position:]))


def escape(text: str) -> str:
    """Write a text between the tags of HTML or XML."""
    return html.escape(text, quote=False)
