"""The log and the checkpoints of a training run, read while the training may still write them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOG, CHECKPOINTS = "log.jsonl", "checkpoints"
MAX_BYTES = 1_000_000
"""Bytes of the log that are read at once."""

MAX_NESTED = 200
"""Maximum number of lists and objects in an entry; responses with deeper ones cannot be written."""


@dataclass(frozen=True)
class LogPart:
    """Entries of a log, and the position at which the next part begins."""

    entries: list[dict[str, Any]]
    next: int


def has_log(run: Path) -> bool:
    """Whether a folder is a training run."""
    return (run / LOG).is_file()


def has_model(run: Path) -> bool:
    """Whether a folder is a model, or a run that has saved one."""
    return any((run / name / "config.json").is_file() for name in ("", "best", "last"))


def read_log(run: Path, start: int) -> LogPart:
    """Return the complete lines of a run's log from a position in bytes; from 0 if the log has been shortened since."""
    if not has_log(run):  # opening a pipe would wait for its other end
        return LogPart([], 0)
    try:
        with (run / LOG).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(start if start <= size else 0)
            position = file.tell()
            data = file.read(MAX_BYTES)
    except OSError:
        return LogPart([], 0)
    end = data.rfind(b"\n") + 1  # a line that is being written is read next time
    return LogPart([entry for line in data[:end].splitlines() if (entry := _parse(line))], position + end)


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of the checkpoints of a run, first step first."""
    folder = run / CHECKPOINTS
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-\d{8,}", name))


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint of a step."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the entry of a line; None if it is damaged or cannot be sent."""
    if line.count(b"[") + line.count(b"{") > MAX_NESTED:
        return None
    try:
        entry = json.loads(line)
        json.dumps(entry, ensure_ascii=False).encode()  # fails for a lone surrogate
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("step"), int) else None
