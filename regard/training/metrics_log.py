"""Reports of a run: its log (log.jsonl and, optionally, TensorBoard event files), and messages on the console."""

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic

from torch import Tensor

from regard.errors import UserError
from regard.training.checkpoint import reporting_write_errors
from regard.training.distributed import Processes
from regard.training.memory import read_peak
from regard.training.parallelism import Accumulated
from regard.training.progress import Progress
from regard.training.state import TrainingState
from regard.training.task import BatchT, Task, Validation

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


class Reporter(Generic[BatchT]):
    """Reports what happens in a run on the console and in its log. All processes of the run must call every method."""

    def __init__(
        self,
        out: Path,
        task: Task[BatchT],
        state: TrainingState,
        processes: Processes,
        progress: Progress,
        tensorboard: bool = False,
    ) -> None:
        self.task, self.state, self.processes, self.progress = task, state, processes, progress
        self._log = MetricsLog(out, tensorboard and processes.main)

    def open(self) -> AbstractContextManager[None]:
        """Open the log after the current step."""
        return self._log.open(self.state.step)

    def report_metrics(self, learning_rate: float, gradient_norm: Tensor) -> None:
        """Report the metrics of the steps since the last such report."""
        state = self.state
        report = state.meter.read() | {"lr": learning_rate, "gradient_norm": float(gradient_norm)}
        report["memory"] = read_peak(state.device)
        counts = {
            "skipped_steps": state.step_check.total,
            "split_batches": state.split_batches,
            "dropped_examples": state.dropped_examples,
        }
        self.progress.step(state.step, report)
        self._write(report | {name: count for name, count in counts.items() if count})

    def report_validation(self, validation: Validation) -> None:
        """Report scores and samples; only the main process validates, and calls this method."""
        scores, samples = validation.scores, validation.samples
        self.progress.validated(self.state.step, scores, samples)
        entry: dict[str, Any] = {"validation": scores}
        if samples:
            entry["samples"] = [asdict(sample) for sample in samples]
        self._write_on_main(entry)

    def report_phases(self) -> None:
        """Report the seconds of each phase of the run."""
        phases = {name: round(seconds, 1) for name, seconds in self.state.phases.read().items()}
        self.progress.print("seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items()))
        self._write({"phases": phases})

    # Unusual events

    def report_event(self, step: int, text: str) -> None:
        """Report an unusual event."""
        self.progress.print(f"step {step}: {text}")
        self._write({"step": step, "event": text})

    def report_skipped_steps(self, max_skips: int) -> None:
        """Report recently skipped steps.

        Raises:
            UserError: At least `max_skips` consecutive steps were skipped.
        """
        skipped = self.state.step_check.report()
        if skipped is None:
            return
        several = f"{skipped.number} steps, the last of them " if skipped.number > 1 else ""
        self.report_event(self.state.step, f"skipped {several}step {skipped.last}: {skipped.reason}")
        with self.processes.sync_errors():
            if skipped.consecutive >= max_skips:
                raise UserError(
                    f"{skipped.consecutive} consecutive steps were skipped, the last of them step {skipped.last}: "
                    f"{skipped.reason}; {skipped.advice}, and start again"
                )

    def report_split_batches(self, accumulated: Accumulated[BatchT], problem: str, step: int) -> None:
        """Report batches that were split because they do not fit into memory."""
        first, smallest = accumulated.failed[0], accumulated.failed[-1]
        self.report_event(
            step,
            f"{problem} ({self.task.describe(first)}): batches of that size are split into microbatches, with the same "
            f"result; {self.task.advise(smallest)} would avoid it",
        )

    def report_failed_capture(self, batch: BatchT, step: int) -> None:
        """Report that the capture of a step with this batch ran out of memory."""
        self.report_event(
            step,
            "out of memory while the step was captured in a CUDA graph, which has memory of its own: steps run eagerly "
            f"from now on, with the same result; {self.task.advise(batch)} would avoid it",
        )

    def _write(self, entry: dict[str, Any]) -> None:
        self.processes.on_main(lambda: self._write_on_main(entry))

    def _write_on_main(self, entry: dict[str, Any]) -> None:
        state = self.state
        units = {self.progress.unit: state.units}
        self._log.write({"step": state.step, "seconds": round(state.seconds, 3)} | units | entry)
