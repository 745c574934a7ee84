"""Checkpoints on disk: whole or not there at all, checked before they are used, and no pickle.

`checkpoints/step-00001234` holds state.safetensors (or, where each process has a part of every weight, a file of each),
state.json, and manifest.json with the checksums of all; the file `checkpoints/last` names the newest. A checkpoint is
written beside its place, synced and renamed; then `last` moves; then older ones go. Whatever is killed in between
leaves the one before it in order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from regard.errors import UserError
from regard.models.folder import sync
from regard.training.distributed import Processes

TENSORS, FACTS, MANIFEST, LAST = "state.safetensors", "state.json", "manifest.json", "last"
FORMAT = 3


class DamagedError(Exception):
    """A checkpoint that does not hold what its manifest says."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checksums are right."""

    path: Path
    facts: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.facts["step"])

    @property
    def processes(self) -> int:
        """How many processes saved it together."""
        return int(self.facts.get("processes", 1))

    def tensors(self, like: Callable[[str], Tensor | None] | None = None) -> dict[str, Tensor]:
        """The tensors, read anew each time, so that nobody holds them longer than needed.

        Those for which `like` gives a tensor that is divided among processes are divided likewise.
        """
        if like is None and (self.path / TENSORS).exists():
            return safetensors.torch.load_file(self.path / TENSORS)
        from regard.training.shards import load_shards

        return load_shards(self.path, like or (lambda name: None))


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], keep: int) -> None:
    """Writes a checkpoint into the folder of checkpoints, then prunes all but the newest `keep`.

    Raises:
        UserError: it cannot be written; the checkpoints already there stay as they are.
    """
    place, room = _places(folder, step)
    with reporting_write_errors(place, folder), _clearing(room):
        _make_room(room)
        safetensors.torch.save_file(tensors, room / TENSORS)
        _finish(room, place, facts)
        _announce(place, step, keep)


def save_divided_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], keep: int, processes: Processes
) -> None:
    """The same for tensors of which each process holds a part: all write into one folder, which the main one finishes.

    Raises:
        UserError: in all processes, where one cannot write.
    """
    from regard.training.shards import save_shards

    place, room = _places(folder, step)

    def finish() -> None:
        with reporting_write_errors(place, folder):
            _finish(room, place, facts)
            _announce(place, step, keep)

    with _clearing(room):
        with processes.agreeing(), reporting_write_errors(place, folder):
            if processes.main:
                _make_room(room)
        with processes.agreeing(), reporting_write_errors(place, folder):
            save_shards(room, tensors, processes.group)
        processes.on_main(finish)


def load_checkpoint(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest good checkpoint of a folder, or None where none has ever been finished; damaged ones are named.

    Raises:
        UserError: there are checkpoints, and all of them are damaged.
    """
    places = _finished(folder)
    named = last_name(folder)
    if named in [place.name for place in places]:  # what is newer was never announced
        places = [place for place in places if _step_of(place) <= _step_of(folder / named)]
    for place in reversed(places):
        try:
            return Checkpoint(place, _verify(place))
        except DamagedError as damage:
            say(f"{place}: damaged ({damage}), so the checkpoint before it is used")
    if places:
        raise UserError(f"{folder}: none of its {len(places)} checkpoints is whole; remove the run and begin it again")
    return None


def load_checkpoints(folder: Path) -> list[Checkpoint]:
    """All checkpoints of a folder, oldest first.

    Raises:
        UserError: one is damaged; it is named.
    """
    found = []
    for place in _finished(folder):
        try:
            found.append(Checkpoint(place, _verify(place)))
        except DamagedError as damage:
            raise UserError(f"{place}: damaged ({damage}); remove it to do without") from None
    return found


def last_name(folder: Path) -> str:
    """The name of the checkpoint that was saved last; empty where none has been."""
    pointer = folder / LAST
    return pointer.read_text(encoding="utf-8", errors="replace").strip() if pointer.is_file() else ""


def replace_text(path: Path, text: str) -> None:
    """Writes a small file in one stroke: whoever reads it finds the old text or the new."""
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


@contextmanager
def reporting_write_errors(path: Path, checkpoints: Path) -> Iterator[None]:
    """Turns what a full disk or a read-only folder raises into one sentence, which names the last good checkpoint.

    Raises:
        UserError: something within the block could not be written.
    """
    try:
        yield
    except (OSError, safetensors.SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        last = last_name(checkpoints)
        outlook = f"the same command goes on from {last}" if last else "no checkpoint has been saved before"
        raise UserError(f"{path}: could not be written ({reason}); {outlook}") from error


def _places(folder: Path, step: int) -> tuple[Path, Path]:
    """Where a checkpoint belongs, and where it is written until it is whole."""
    return folder / f"step-{step:08d}", folder / f".step-{step:08d}"


def _make_room(room: Path) -> None:
    room.parent.mkdir(exist_ok=True)
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()


@contextmanager
def _clearing(room: Path) -> Iterator[None]:
    """Leaves nothing half-written behind."""
    try:
        yield
    except BaseException:
        shutil.rmtree(room, ignore_errors=True)
        raise


def _finish(room: Path, place: Path, facts: dict[str, Any]) -> None:
    """Adds facts and checksums to the tensors in `room` and puts it in its place."""
    (room / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    files = {path.name: _describe(path) for path in sorted(room.iterdir())}
    for name in files:
        sync(room / name)
    manifest = {"format": FORMAT, "files": files}
    (room / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    sync(room / MANIFEST)
    sync(room)
    if place.exists():  # damaged, or of a run that was killed before `last` named it
        shutil.rmtree(place)
    room.rename(place)
    sync(place.parent)


def _announce(place: Path, step: int, keep: int) -> None:
    """Lets `last` name a finished checkpoint; then older ones go."""
    replace_text(place.parent / LAST, place.name + "\n")
    _prune(place.parent, step, keep)


def _verify(place: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DamagedError(f"{MANIFEST} is of format {manifest['format']}, not {FORMAT}")
        for name, described in manifest["files"].items():
            if _describe(place / name) != described:
                raise DamagedError(f"{name} is not what was saved")
        facts = json.loads((place / FACTS).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedError(f"{Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{MANIFEST} or a file it lists cannot be read: {error}") from None
    assert isinstance(facts, dict)
    return facts


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _finished(folder: Path) -> list[Path]:
    """The folders of checkpoints that were finished, damaged since or not, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if re.fullmatch(r"step-\d{8,}", path.name)), key=_step_of)


def _step_of(place: Path) -> int:
    return int(place.name.removeprefix("step-"))


def _prune(folder: Path, step: int, keep: int) -> None:
    """Removes all but the newest, what a killed process left unfinished, and what lies beyond the present step."""
    places = _finished(folder)
    kept = [place for place in places if _step_of(place) <= step][-keep:]
    unfinished = [path for path in folder.iterdir() if path.name.startswith(".step-")]
    for place in [*(place for place in places if place not in kept), *unfinished]:
        shutil.rmtree(place, ignore_errors=True)  # what stays for now goes the next time
