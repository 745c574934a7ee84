"""Result files of the benchmarks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "results"
NOTHING = "No results yet."
Result = dict[str, Any]
Writer = Callable[[], str]


def of(name: str, write: Callable[[Result], str], otherwise: str = NOTHING) -> Writer:
    """A writer for one result; returns `otherwise` if there is none."""
    return of_all([name], lambda found: write(*found.values()), otherwise)


def of_all(patterns: list[str], write: Callable[[dict[str, Result]], str], otherwise: str = NOTHING) -> Writer:
    """A writer for all existing results that match the patterns, by name, in the order of the patterns."""

    def written() -> str:
        paths = [path for pattern in patterns for path in sorted(FOLDER.glob(f"{pattern}.json"))]
        found = {path.stem: json.loads(path.read_text("utf-8")) for path in paths}
        return (write(found) if found else "") or otherwise

    return written
