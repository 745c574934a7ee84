"""What a run writes down about itself while it goes: log.jsonl, a JSON object a line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from regard.training.checkpoint import reporting_write_errors

CHECKPOINTS, LOG = "checkpoints", "log.jsonl"


class Journal:
    """Writes entries into the log of a run; each line is complete when `write` returns."""

    def __init__(self, out: Path) -> None:
        self.path, self.checkpoints = out / LOG, out / CHECKPOINTS

    def write(self, step: int, seconds: float, entry: dict[str, Any]) -> None:
        """Adds an entry.

        Raises:
            UserError: it cannot be written.
        """
        line = json.dumps({"step": step, "seconds": round(seconds, 3)} | _plain(entry), ensure_ascii=False)
        with reporting_write_errors(self.path, self.checkpoints), self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _plain(value: Any) -> Any:
    """The same with null for numbers that JSON cannot say: NaN and infinity."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
