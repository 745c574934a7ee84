"""Steps of training, as a run's recipe has them, and beside that what its user could switch on."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from regard.errors import UserError
from regard.evaluation.bench.harness import library_errors
from regard.training.bench_peers import in_transformers
from regard.training.bench_runs import open_run
from regard.training.bench_variants import Changes, as_peers_train, ways_to_train
from regard.training.progress import Progress
from regard.training.resume import DATA
from regard.training.step_timing import StepTiming, time_steps
from regard.training.task import Task
from regard.training.tasks.registry import task_of

TIMED = "of whole steps: batch, loss, gradients, optimiser"
REASON = 300
"""Characters of an error that are shown at the most."""


@dataclass(frozen=True)
class Way:
    """How the steps of a run are taken.

    Attributes:
        run: as its user calls it.
        changes: laid over its recipe.
        peer: whose model takes the place of ours, and whether that is compiled.
    """

    run: str
    changes: Changes = ()
    peer: str = ""
    compiled: bool = False

    @property
    def name(self) -> str:
        if self.peer:
            return "in transformers, compiled" if self.compiled else "in transformers"
        return " ".join(self.changes) or "as the recipe has it"

    def prepare(self, device: torch.device) -> tuple[Task[Any], Any]:
        """The task, with a new model, and the recipe.

        Raises:
            UserError: the recipe cannot be carried out so.
        """
        folder, recipe = open_run(Path(self.run), self.changes)
        torch.manual_seed(recipe.training.seed)
        task = task_of(recipe.kind).open(folder / DATA, recipe, device, Progress(1, Console(quiet=True)))
        if self.peer:
            task = in_transformers(task)
            if self.compiled:
                task.model.compile(dynamic=True)
        return task, recipe


@dataclass(frozen=True)
class Row:
    """What the steps of a way took, or why they cannot be taken."""

    way: Way
    timing: StepTiming | None
    refusal: str = ""

    def as_dict(self) -> dict[str, Any]:
        found = {"refused": self.refusal} if self.timing is None else self.timing.as_dict()
        return {"run": self.way.run, "name": self.way.name, "changes": list(self.way.changes)} | found


@dataclass(frozen=True)
class Steps:
    """What the steps of runs took, in every way."""

    rows: list[Row]
    seconds: float

    def lines(self) -> list[str]:
        """A table, and what it shows."""
        on_gpu = any(row.timing and row.timing.peak for row in self.rows)
        memory = "; the peak is all that was allocated, KB each what a batch takes beside weights and moments"
        return [
            tabulate(self.rows),
            *list_remarks(self.rows),
            "",
            f"medians {TIMED}, with new weights and the run's own data; in brackets, how much faster than its recipe"
            + (memory if on_gpu else ""),
        ]

    def as_dict(self) -> dict[str, Any]:
        return {"timed": TIMED, "seconds": self.seconds, "training": [row.as_dict() for row in self.rows]}


def time_training(
    runs: Sequence[str],
    device: torch.device,
    seconds: float,
    peers: Sequence[str] = (),
    tell: Callable[[str], None] = lambda text: None,
) -> Steps:
    """Times the steps of runs in several ways, one after the other; tells beforehand which is next.

    Raises:
        UserError: one is no run, its own recipe cannot be carried out here, or a peer has no such model.
    """
    ways = [way for run in runs for way in _ways(run, device, peers)]
    for way in ways:
        if way.peer and not way.compiled:  # refused now, and not after minutes
            with library_errors(way.peer):
                way.prepare(torch.device("cpu"))
    rows = []
    for way in ways:
        tell(f"{way.run}, {way.name}")
        rows.append(_time(way, device, seconds))
    return Steps(rows, seconds)


def _ways(run: str, device: torch.device, peers: Sequence[str]) -> Iterator[Way]:
    recipe = open_run(Path(run))[1]
    yield from (Way(run, changes) for changes in ways_to_train(recipe, device))
    for peer in peers:
        if peer != "huggingface":
            raise UserError(f"--library {peer}: does not train; huggingface does")
        yield Way(run, as_peers_train(recipe), peer)
        if device.type == "cuda":
            yield Way(run, as_peers_train(recipe), peer, compiled=True)


def _time(way: Way, device: torch.device, seconds: float) -> Row:
    """A way that fails is told as such, unless it is the recipe as it is."""
    try:
        return _time_steps(way, device, seconds)
    except (UserError, RuntimeError) as error:
        if way == Way(way.run):
            raise
        return Row(way, None, " ".join(str(error).split())[:REASON])
    finally:
        _clear(device)


def _time_steps(way: Way, device: torch.device, seconds: float) -> Row:
    task, recipe = way.prepare(device)
    return Row(way, time_steps(task, recipe, device, seconds))


def _clear(device: torch.device) -> None:
    """Nothing of one way may slow the next, or take its memory."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def tabulate(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table; how many times faster each is than the first of its run stands in brackets."""
    several = len({row.way.run for row in rows}) > 1
    columns: dict[str, list[str]] = {
        "": [f"{row.way.run}, {row.way.name}" if several else row.way.name for row in rows],
        "a second": [_rate(row, rows) for row in rows],
        "step, ms": [f"{row.timing.step:,.1f}" if row.timing else "" for row in rows],
        "warm-up, s": [f"{row.timing.warm_up:.1f}" if row.timing else "" for row in rows],
    }
    if any(row.timing and row.timing.peak for row in rows):
        columns["peak, GB"] = [f"{(row.timing.peak or 0) / 1e9:.2f}" if row.timing else "" for row in rows]
        columns["KB each"] = [f"{(row.timing.per_unit or 0) / 1e3:,.1f}" if row.timing else "" for row in rows]
    lines = [list(columns), ["---"] * len(columns), *map(list, zip(*columns.values(), strict=True))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rate(row: Row, rows: Sequence[Row]) -> str:
    first = next(one.timing for one in rows if one.way.run == row.way.run)
    if row.timing is None or first is None:
        return "refused"
    return f"{row.timing.rate:,.0f} {row.timing.unit} ({row.timing.rate / first.rate:.2f}×)"


def list_remarks(rows: Sequence[Row]) -> list[str]:
    """What is to be said of single rows: why they were refused, what the loop noted."""
    refused = [f"{row.way.name}: {row.refusal}" for row in rows if row.refusal]
    return refused + [f"{row.way.name}: {note}" for row in rows if row.timing for note in row.timing.notes]
