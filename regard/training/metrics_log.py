"""The metrics of a run: log.jsonl and, optionally, TensorBoard event files."""

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
    """Return TensorBoard's SummaryWriter."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("training.tensorboard needs TensorBoard: pip install 'regard[watch]'") from None
    return SummaryWriter


class MetricsLog:
    """Writes log entries to the run folder `out`. Each entry is in the file when `write` returns."""

    def __init__(self, out: Path, tensorboard: bool = False) -> None:
        self.out, self.tensorboard = out, tensorboard
        self.writer: Any = None

    @contextmanager
    def open(self, step: int) -> Iterator[None]:
        """Open the log after `step`; purge TensorBoard events of later steps, which a killed process has written."""
        if not self.tensorboard:
            yield
            return
        with self._reporting(self.out / TENSORBOARD):
            self.writer = require_tensorboard()(str(self.out / TENSORBOARD), purge_step=step + 1)
        try:
            yield
        finally:
            self.writer.close()

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry, which must have the key "step"."""
        with self._reporting(self.out / LOG), (self.out / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(entry), ensure_ascii=False) + "\n")
        if self.writer is not None:
            with self._reporting(self.out / TENSORBOARD):
                self._write_events(entry)

    def _write_events(self, entry: dict[str, Any]) -> None:
        scores = {f"validation/{name}": value for name, value in entry.get("validation", {}).items()}
        metrics = {f"training/{name}": value for name, value in entry.items() if name not in ("step", "seconds")}
        for name, value in (metrics | scores).items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, entry["step"])
        for name in ("samples", "event"):
            if name in entry:
                self.writer.add_text(name, "\n\n".join(_as_markdown(entry[name])), entry["step"])
        self.writer.flush()

    def _reporting(self, path: Path) -> AbstractContextManager[None]:
        return reporting_write_errors(path, self.out / CHECKPOINTS)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot represent, by None."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _as_markdown(value: str | list[dict[str, str]]) -> Iterator[str]:
    """An event or samples as indented blocks, in which no character is interpreted as markup."""
    if isinstance(value, str):
        yield f"    {value}"
        return
    for sample in value:
        yield "\n".join(f"    {name:12}{text}" for name, text in sample.items())
