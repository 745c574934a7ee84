"""Markdown tables and citations of results."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .results import Result


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraphs(*parts: str) -> str:
    """Join non-empty parts by blank lines."""
    return "\n\n".join(part for part in parts if part)


def cite(result: Result, *libraries: str, with_command: bool = True) -> str:
    """Machine, versions, date and command of a result."""
    versions = (f"{name} {result['versions'][name]}" for name in ("torch", *libraries))
    machine = [result["machine"]] if "machine" in result else []
    where = ", ".join((*machine, *versions, result["date"]))
    return f"{where}; `{without_folders(result['command'])}`" if with_command and "command" in result else where


def dates_of(result: Result) -> str:
    """The date, or range of dates, on which the rows were measured."""
    dates = sorted({row.get("date", result["date"]) for row in result["rows"]})
    return str(dates[0]) if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def without_folders(command: str) -> str:
    """The command without the folders of absolute paths."""
    return re.sub(r"(?<!\S)/\S*/", "", command)


def begin_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def show(value: Any) -> str:
    """Format integers in full, floats with one decimal, and None as an empty string."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
