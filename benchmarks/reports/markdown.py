"""The pieces that all tables are made of."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .results import Result


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraphs(*parts: str) -> str:
    """Those that say something, with an empty line between them."""
    return "\n\n".join(part for part in parts if part)


def cite(result: Result, *libraries: str, with_command: bool = True) -> str:
    """On which machine, with which versions, when and by which command something was measured."""
    versions = (f"{name} {result['versions'][name]}" for name in ("torch", *libraries))
    machine = [result["machine"]] if "machine" in result else []
    where = ", ".join((*machine, *versions, result["date"]))
    return f"{where}; `{without_folders(result['command'])}`" if with_command and "command" in result else where


def dates_of(result: Result) -> str:
    """When the rows of a result were measured, which may have been on several days."""
    dates = sorted({row.get("date", result["date"]) for row in result["rows"]})
    return str(dates[0]) if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def without_folders(command: str) -> str:
    """The command, with the bare names of files that lay elsewhere on the machine that ran it."""
    return re.sub(r"(?<!\S)/\S*/", "", command)


def begin_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def show(value: Any) -> str:
    """A number in full if it is whole, else with one decimal; words as they are; nothing where there is nothing."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
