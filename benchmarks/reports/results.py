"""What the benchmarks found, read for those who write about it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "results"
NOTHING = "No results yet."
Result = dict[str, Any]
Writer = Callable[[], str]


def of(name: str, write: Callable[[Result], str], otherwise: str = NOTHING) -> Writer:
    """Writes about one result, or says otherwise where it is not there or has nothing about this."""
    return of_all([name], lambda found: write(found[name]), otherwise)


def of_all(patterns: list[str], write: Callable[[dict[str, Result]], str], otherwise: str = NOTHING) -> Writer:
    """Writes about those of several results that are there, by their names, in the order of the patterns."""

    def written() -> str:
        paths = [path for pattern in patterns for path in sorted(FOLDER.glob(f"{pattern}.json"))]
        found = {path.stem: json.loads(path.read_text("utf-8")) for path in paths}
        return (write(found) if found else "") or otherwise

    return written
