"""One script from the ES modules of the page, so that the browser loads all of them with one request.

Each module becomes a function that returns its exports; names of different modules do not collide. Modules are written
for this: imports and exports are statements of their own line, and exports are functions, classes or constants.
"""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*?|class|const) (\w+))", re.M)
# Line comments and `/** */` comments that fill lines; `compact` removes the line comments that follow code.
_COMMENTS = re.compile(r"^[ \t]*(?://.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.M)
# Alternatives are tried in this order: `regex` and `comment` include the spaces before them, so they precede `space`.
# A `/` starts a regular expression only after the listed characters, `=>` and `return`; otherwise it divides. Only the
# first backquote of a template is matched; `_end_of_template` finds its end.
_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"|(?P<regex>(?:(?<=[(,=:\[!&|?{};\n])|(?<==>)|(?<=return))[ ]*"
    r"/(?![/*])(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*)"
    r"|(?P<comment>[ ]*//[^\n]*)"
    r"|(?P<template>`)"
    r"|(?P<space>[ \t\n]+)"
)
_WORD = re.compile(r"[\w$]")
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.M)


def bundle_modules(files: Mapping[str, bytes], entry: str) -> bytes:
    """Return a module and everything that it imports as one script, dependencies first, each once.

    Comments and spaces are removed; see `compact`.

    Args:
        files: contents of the modules by name, such as `page.js`.
        entry: name of the module that is run last.

    Raises:
        ValueError: A module has an import or export that cannot be converted, or imports itself through another one.
    """
    parts: list[str] = []
    done: set[str] = set()

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise ValueError(f"{name} imports itself through {' and '.join(importers[importers.index(name) :])}")
        if name in done:
            return
        done.add(name)
        text = files[f"{name}.js"].decode("utf-8")
        for _, dependency in _IMPORT.findall(text):
            add(dependency, (*importers, name))
        parts.append(_convert(name, text))

    add(entry.removesuffix(".js"), ())
    return "\n".join(parts).encode("utf-8")


def _convert(name: str, text: str) -> str:
    exports = ", ".join(_EXPORT.findall(text))
    text = _IMPORT.sub(lambda match: f"const {{{match[1].replace(' as ', ': ')}}} = $${match[2]};", text)
    text = _COMMENTS.sub("", _EXPORT.sub("", text))
    if other := _OTHER.search(text):
        raise ValueError(f"{name}.js: {other[0]} cannot be bundled; write it as import {{...}} or export const")
    return f"const $${name} = (() => {{\n{compact(text)}return {{ {exports} }};\n}})();"


def compact(text: str) -> str:
    """Return JavaScript without line comments, and without the spaces that its meaning does not depend on.

    Line breaks are kept, because statements may end there. The text of strings, templates and regular expressions is
    unchanged. Block comments are not removed here, but by `_convert`, and only where they fill lines.
    """
    parts: list[str] = []
    position = 0
    while match := _TOKEN.search(text, position):
        parts.append(text[position : match.start()])
        position = match.end()
        if match["template"]:
            position = _end_of_template(text, position)
            parts.append(text[match.start() : position])
        elif match["space"]:
            before, after = text[match.start() - 1 : match.start()], text[position : position + 1]
            parts.append(_space(before, after, has_break="\n" in match[0]))
        elif not match["comment"]:
            parts.append(match[0])
    return "".join([*parts, text[position:]])


def _space(before: str, after: str, has_break: bool) -> str:
    """Return what replaces white space between two characters, which are empty at the edges of the text."""
    if has_break:
        return "\n"
    separates_words = _WORD.match(before) and _WORD.match(after)
    separates_signs = before in ("+", "-") and after in ("+", "-")  # `a - -b` is not `a--b`
    return " " if separates_words or separates_signs else ""


def _end_of_template(text: str, position: int) -> int:
    """Return the position after a template whose content begins at a position; it may contain other templates.

    Braces in strings, comments or regular expressions inside `${...}` are counted as braces of the code, so they are
    supported only in pairs.
    """
    brace_depth = 0  # open braces of the expression in ${...}; 0 in the text of the template
    while brace_depth or text[position : position + 1] != "`":
        if position >= len(text):
            raise ValueError("a module with an unfinished template cannot be bundled")
        character = text[position]
        if character == "\\":
            position += 1
        elif not brace_depth and text.startswith("${", position):
            brace_depth, position = 1, position + 1
        elif brace_depth and character in "{}":
            brace_depth += 1 if character == "{" else -1
        elif brace_depth and character == "`":
            # The content of the inner template begins after its first backquote; the last line of the loop steps over
            # its second one.
            position = _end_of_template(text, position + 1) - 1
        position += 1
    return position + 1
