"""One script from the ES modules of the page, so that the browser loads all of them with one request.

Each module becomes a function that returns its exports; names of different modules do not collide. Modules are written
for this: imports and exports are statements of their own line, and exports are functions, classes or constants.
"""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.M)
_EXPORT = re.compile(r"^export (?=(?:(?:async )?function\*?|class|const) (\w+))", re.M)
_COMMENTS = re.compile(r"^[ \t]*(?://.*|/\*\*(?:[^*]|\*(?!/))*\*/)\n", re.M)
_INDENTATION = re.compile(r"^[ \t]+", re.M)
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.M)


def bundle_modules(files: Mapping[str, bytes], entry: str) -> bytes:
    """Return a module and everything that it imports as one script, dependencies first, each once.

    Comments on lines of their own and indentation are removed.

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
    if any(line.count("`") % 2 for line in text.splitlines()):
        raise ValueError(f"{name}.js: a template of several lines cannot be bundled; write it as several strings")
    text = _INDENTATION.sub("", text)
    if other := _OTHER.search(text):
        raise ValueError(f"{name}.js: {other[0]} cannot be bundled; write it as import {{...}} or export const")
    return f"const $${name} = (() => {{\n{text}return {{ {exports} }};\n}})();"
