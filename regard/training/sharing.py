"""Data that several runs share: made by the first of them, while the others wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.errors import UserError
from regard.models.folder import recover_folder, replace_folder
from regard.training.fingerprints import FINGERPRINTS
from regard.training.locks import locked
from regard.training.progress import Progress


def make_shared(store: Path, make: Callable[[Path], None], what: str, progress: Progress) -> None:
    """Has the store made into an empty folder, which takes its place, unless it is there.

    Raises:
        UserError: something else is there, that is no store of `what`.
    """
    store.parent.mkdir(parents=True, exist_ok=True)
    with locked(store.parent, lambda: progress.print(f"waiting for another run that makes {store}")):
        recover_folder(store)
        if not store.exists():
            with replace_folder(store) as fresh:
                make(fresh)
    if not (store / FINGERPRINTS).is_file():
        raise UserError(f"{store}: exists and is no store of {what}; name another folder in data.store")
