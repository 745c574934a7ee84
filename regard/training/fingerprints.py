"""What data was made from: the files, by size and checksum, and the settings, so that a change is noticed and named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import UserError

FINGERPRINTS = "fingerprints.json"
Known = dict[str, Any]


def read_fingerprints(folder: Path, **further: type) -> Known:
    """What is known of the data in a folder: the files, the settings, what was left out, and what else is to be there.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = folder / FINGERPRINTS
    try:
        known: Known = json.loads(path.read_text(encoding="utf-8"))
        for key, kind in {"files": dict, "settings": dict, "left_out": dict, **further}.items():
            if not isinstance(known[key], kind):
                raise TypeError(f"{key} is {known[key]!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error}), so the run cannot go on; begin a new one") from None
    return known


def write_fingerprints(folder: Path, known: Known) -> None:
    """Keeps what is known of the data in a folder."""
    (folder / FINGERPRINTS).write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_files(files: Mapping[str, Path], before: Known, owner: str) -> None:
    """Refuses files that are not what they were; where they lie does not matter.

    Raises:
        UserError: a file has changed, come or gone; it is named.
    """
    for key in before.keys() - files.keys():
        raise UserError(f"{key}: is no longer there, but was when {owner} began; put it back or choose another --out")
    for key, path in files.items():
        if key not in before:
            raise UserError(f"{path}: was not there when {owner} began; take it away or choose another --out")
        now = describe_file(path, before[key])
        if now["sha256"] != before[key]["sha256"]:
            raise UserError(
                f"{path}: has changed since {owner} began ({before[key]['bytes']} bytes then, {now['bytes']} now); "
                f"put the old file back or choose another --out"
            )


def check_settings_of_data(settings: Known, before: Known, folder: Path) -> None:
    """Refuses data that was made with other settings.

    Raises:
        UserError: a setting differs; it is named with both values.
    """
    for key, now in settings.items():
        if before.get(key) != now:
            raise UserError(
                f"{folder}: was made with {key}={json.dumps(before.get(key))}, not {json.dumps(now)}; set the old "
                f"value or another data.store"
            )


def describe_files(files: Mapping[str, Path]) -> dict[str, Known]:
    """Size, time and checksum of each file, by its name."""
    return {key: describe_file(path) for key, path in files.items()}


def describe_file(path: Path, before: Known | None = None) -> Known:
    """Size, time and checksum of a file; one whose size and time are as before is not read.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        state = path.stat()
        if before and (before["bytes"], before["time"]) == (state.st_size, state.st_mtime_ns):
            return before
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    return {"bytes": state.st_size, "time": state.st_mtime_ns, "sha256": digest}
