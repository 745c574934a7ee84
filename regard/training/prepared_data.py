"""Prepared data in run folders and shared stores: fingerprints of its sources, locks, and sharing between runs."""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

from regard.data.array_store import DamagedStoreError
from regard.errors import UserError
from regard.files import open_regular, read_json
from regard.models.folder import recover_folder, replace_folder
from regard.training.progress import Progress

FINGERPRINTS = "fingerprints.json"
Fingerprints = dict[str, Any]
T = TypeVar("T")


def require_paths(paths: Mapping[str, Path | None]) -> None:
    """Check that the data of a new run exists; `paths` contains it by the option that gives it."""
    for option, path in paths.items():
        if path is not None and not path.exists():
            raise UserError(f"{path}: no such file or folder; give the data with {option}")


def read_fingerprints(folder: Path, **further: type) -> Fingerprints:
    """Read the fingerprints of the data in a folder, which must contain `further` keys with values of these types."""
    path = folder / FINGERPRINTS
    try:
        found: Fingerprints = read_json(path)
        for key, kind in {"files": dict, "settings": dict, "skipped": dict, **further}.items():
            if not isinstance(found[key], kind):
                raise TypeError(f"{key} is {found[key]!r}")
    except UserError as error:
        raise UserError(f"{error}, so the run cannot be resumed; start a new one") from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error}), so the run cannot be resumed; start a new one") from None
    return found


def write_fingerprints(folder: Path, fingerprints: Fingerprints) -> None:
    """Write the fingerprints of the data in a folder."""
    text = json.dumps(fingerprints, indent=2, ensure_ascii=False) + "\n"
    (folder / FINGERPRINTS).write_text(text, encoding="utf-8")


def check_files(files: Mapping[str, Path], before: Fingerprints, owner: str) -> None:
    """Check that files are unchanged since `owner` was created; their location does not matter."""
    for key in before.keys() - files.keys():
        raise UserError(f"{key}: was removed since {owner} was created; restore it or choose another --out")
    for key, path in files.items():
        if key not in before:
            raise UserError(f"{path}: was added since {owner} was created; remove it or choose another --out")
        now = fingerprint_file(path, before[key])
        if now["sha256"] != before[key]["sha256"]:
            raise UserError(
                f"{path}: has changed since {owner} was created ({before[key]['bytes']} bytes then, {now['bytes']} "
                f"now); restore it or choose another --out"
            )


def fingerprint_files(files: Mapping[str, Path]) -> dict[str, Fingerprints]:
    """Return size, modification time and checksum of each file."""
    return {key: fingerprint_file(path) for key, path in files.items()}


def fingerprint_file(path: Path, before: Fingerprints | None = None) -> Fingerprints:
    """Return size, modification time and checksum of a file, or `before` if size and time are unchanged."""
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        if before and (before["bytes"], before["time"]) == (state.st_size, state.st_mtime_ns):
            return before
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": state.st_size, "time": state.st_mtime_ns, "sha256": digest}


def make_shared_store(
    store: Path, make: Callable[[Path], None], what: str, settings: Mapping[str, Any], progress: Progress
) -> None:
    """Create a shared store of `what`, unless one with the same settings exists; other runs wait.

    `make` writes the store into an empty folder.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    with lock_folder(store.parent, lambda: progress.print(f"waiting for another run to create {store}")):
        recover_folder(store)
        if not store.exists():
            with replace_folder(store) as fresh:
                make(fresh)
    if not (store / FINGERPRINTS).is_file():
        raise UserError(f"{store}: exists and is not a store of {what}; set data.store to another folder")
    before = read_fingerprints(store)["settings"]
    for key, now in settings.items():
        if before.get(key) != now:
            raise UserError(
                f"{store}: was made with {key}={json.dumps(before.get(key))}, not {json.dumps(now)}; set the old "
                f"value or another data.store"
            )


def open_or_recreate(folder: Path, read: Callable[[Path], T], write: Callable[[Path], object], progress: Progress) -> T:
    """Open a store with `read`; if it is damaged, create it again with `write`."""
    recover_folder(folder)
    try:
        return read(folder)
    except DamagedStoreError as damage:
        progress.print(f"{folder}: damaged ({damage}); creating it again")
    with replace_folder(folder) as fresh:
        write(fresh)
    return read(folder)


_locked_folders: dict[int, int] = {}
"""File descriptors of the folders that this process locks, with the thread of each."""


@contextmanager
def lock_folder(folder: Path, on_locked: Callable[[], None]) -> Iterator[None]:
    """Lock a folder against other processes; if one holds the lock, call `on_locked`, then wait.

    A lock that this thread holds already, such as that of a run with a store in its folder, is not taken again.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{folder}: cannot be opened ({error.strerror}); restore it or start a new run") from None
    held = [locked for locked, thread in _locked_folders.copy().items() if thread == get_ident()]
    if any(os.path.samestat(os.fstat(locked), os.fstat(descriptor)) for locked in held):
        os.close(descriptor)
        yield
        return
    _locked_folders[descriptor] = get_ident()
    try:
        with suppress(OSError):  # some file systems do not support locks; training works without
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_locked()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        del _locked_folders[descriptor]
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was just forked may not have closed its copy yet
        os.close(descriptor)


def _release_in_child() -> None:
    """Release the locks in a forked process, which may outlive its parent for a moment."""
    for descriptor in _locked_folders:
        os.close(descriptor)
    _locked_folders.clear()


os.register_at_fork(after_in_child=_release_in_child)
