"""Inline elements of XLIFF and TMX, which both write them alike."""

from collections.abc import Callable

from regard.data.documents.marked_text import Code, MarkedText, MarkedTextBuilder
from regard.data.documents.xml import Node, text_of

PAIRED = {"g", "pc", "mrk", "hi"}
STARTS = {"bpt": ("i", "rid", "id"), "bx": ("rid", "id"), "sc": ("id",)}
"""Elements that start a pair, and the attributes that identify it."""
ENDS = {"ept": ("i", "rid", "id"), "ex": ("rid", "id"), "ec": ("startRef", "id")}


def parse_content(text: str, node: Node, preserve: bool) -> MarkedText:
    """Return the text of a segment and the elements in it.

    Args:
        text: Text of the file.
        node: The element that contains the segment.
        preserve: Whether line breaks are part of the text (xml:space).
    """
    builder = MarkedTextBuilder()
    pairs = _find_pairs(node)
    _append(builder, text, node, pairs, (lambda text: text) if preserve else join_lines)
    return builder.finish()


def join_lines(text: str) -> str:
    """Replace line breaks and the indentation after them with a space."""
    return (
        " ".join(line.strip(" \t") if i else line.rstrip(" \t") for i, line in enumerate(text.splitlines()))
        if ("\n" in text or "\r" in text)
        else text
    )


def _find_pairs(node: Node) -> dict[int, str]:
    """Return a name for every element that starts or ends a pair, if both are in the segment, by its position."""
    starts: dict[str, int] = {}
    names: dict[int, str] = {}
    for one in node.walk():
        if one.name in STARTS:
            starts[_identity(one, STARTS[one.name])] = one.start
        elif one.name in ENDS and (key := _identity(one, ENDS[one.name])) in starts:
            names[starts[key]] = names[one.start] = f"pair {key}"
            del starts[key]
    return names


def _identity(node: Node, attributes: tuple[str, ...]) -> str:
    return next((value for name in attributes if (value := node.get(name)) is not None), "")


def _append(
    builder: MarkedTextBuilder, text: str, parent: Node, pairs: dict[int, str], normalise: Callable[[str], str]
) -> None:
    for node in parent.children:
        code: Code = (range(node.start, node.stop),)
        if not node.name:
            builder.text(normalise(text_of(text, node)))
        elif node.start in pairs:
            (builder.open if node.name in STARTS else builder.close)(pairs[node.start], code)
        elif node.name in PAIRED and node.has_end and not _is_protected(node):
            key = f"{node.name} {node.start}"
            builder.open(key, (node.opening,))
            _append(builder, text, node, pairs, normalise)
            builder.close(key, (node.closing,))
        else:
            builder.single(code, ordered=True)


def _is_protected(node: Node) -> bool:
    return node.get("translate") == "no" or node.get("mtype") == "protected"
