"""Commands over folders of shards: their folders, and their progress."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.options import exit_on_interruption
from regard.console import Interruptions, LineProgress
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines.executors import Executor
    from regard.pipelines.shards import Job, ShardRun


def is_folder(path: Path | None) -> bool:
    """Return whether a path is a folder or a URL, such as s3://bucket/folder."""
    return path is not None and (path.is_dir() or re.match(r"[a-z][a-z0-9+]+:/", str(path)) is not None)


def open_run(
    command: str, source: Path, target: Path | None, conditions: Mapping[str, Any], option: str = "--out"
) -> ShardRun:
    """Open the folders of a command."""
    from regard.pipelines.shards import Folder, ShardRun

    if target is None:
        raise UserError(f"{source} is a folder of shards, so {option} must name a folder for the results")
    return ShardRun(Folder(source), Folder(target), command, conditions)


def run_job(run: ShardRun, job: Job, executor: Executor, before_end: Callable[[], object] = lambda: None) -> None:
    """Apply a job to all shards of a folder, show the progress, and print the speed of each worker.

    Args:
        run: The folders.
        job: What is done.
        executor: Where it runs.
        before_end: Called when all shards are complete, before what only resuming needs is removed.
    """
    rows: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    with exit_on_interruption(), Interruptions(), LineProgress(None, noun="rows") as progress:
        for done in run.run(job, executor):
            rows[done.worker] += done.result.rows
            seconds[done.worker] += done.seconds
            progress.advance(done.result.rows)
        before_end()
        totals = run.finish()
    typer.echo(
        f"{run.target.url}: {len(run.shards)} shards, {totals['rows']:,} rows in, {totals['written']:,} rows out"
        + ("" if rows else "; they were complete already")
    )
    for worker in sorted(rows):
        typer.echo(f"  {worker}: {rows[worker]:,} rows, {rows[worker] / max(seconds[worker], 1e-9):,.0f} per second")


def fingerprints(runs: Sequence[Path]) -> list[str]:
    """Return the fingerprints of models, by which resuming recognises them."""
    from regard.evaluation.translation import fingerprint_model
    from regard.models.folder import find_model_folder

    return [fingerprint_model(find_model_folder(run)) for run in runs]


def checksum(path: Path | None) -> str | None:
    """Return the checksum of a file, or None."""
    from regard.files import sha256_of

    return None if path is None else sha256_of(path)
