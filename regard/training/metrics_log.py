"""What a run writes down about itself while it goes: log.jsonl, and TensorBoard's files where they are wanted."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.training.checkpoint import reporting_write_errors

CHECKPOINTS, LOG, TENSORBOARD = "checkpoints", "log.jsonl", "tensorboard"


def require_tensorboard() -> Any:
    """TensorBoard's writer.

    Raises:
        UserError: the package is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("training.tensorboard needs a package more: pip install 'regard[watch]'") from None
    return SummaryWriter


class Journal:
    """Writes the entries of a run; each is on the disk when `write` returns.

    Args:
        out: the run's folder.
        tensorboard: whether TensorBoard shall be able to show them too.
    """

    def __init__(self, out: Path, tensorboard: bool = False) -> None:
        self.out, self.wanted = out, tensorboard
        self.writer: Any = None

    @contextmanager
    def open(self, step: int) -> Iterator[None]:
        """Begins behind this step: what TensorBoard was told of later ones, by a process that was killed, is void."""
        if not self.wanted:
            yield
            return
        with self._reporting(self.out / TENSORBOARD):
            self.writer = require_tensorboard()(str(self.out / TENSORBOARD), purge_step=step + 1)
        try:
            yield
        finally:
            self.writer.close()

    def write(self, entry: dict[str, Any]) -> None:
        """Adds an entry, which has a step.

        Raises:
            UserError: it cannot be written.
        """
        with self._reporting(self.out / LOG), (self.out / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_plain(entry), ensure_ascii=False) + "\n")
        if self.writer is not None:
            with self._reporting(self.out / TENSORBOARD):
                self._show(entry)

    def _show(self, entry: dict[str, Any]) -> None:
        scores = {f"validation/{name}": value for name, value in entry.get("validation", {}).items()}
        figures = {f"training/{name}": value for name, value in entry.items() if name not in ("step", "seconds")}
        for name, value in (figures | scores).items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, entry["step"])
        for name in ("samples", "event"):
            if name in entry:
                self.writer.add_text(name, "\n\n".join(_lines(entry[name])), entry["step"])
        self.writer.flush()

    def _reporting(self, path: Path) -> AbstractContextManager[None]:
        return reporting_write_errors(path, self.out / CHECKPOINTS)


def _plain(value: Any) -> Any:
    """The same with null for numbers that JSON cannot say: NaN and infinity."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lines(value: str | list[dict[str, str]]) -> Iterator[str]:
    """An event, or samples, as lines of Markdown, in which no text is taken for markup."""
    if isinstance(value, str):
        yield f"    {value}"
        return
    for sample in value:
        yield "\n".join(f"    {name:12}{text}" for name, text in sample.items())
