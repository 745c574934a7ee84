"""Runs of a benchmark as processes side by side on one machine, within a time limit."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

GRACE = 60
"""Seconds for a process that was asked to stop."""


@dataclass(frozen=True)
class Job:
    """A process: its name, the words of its command line after Python, and the names of jobs that it waits for."""

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...] = ()


def run_jobs(jobs: Sequence[Job], folder: Path, parallel: int, limit: float, mps: bool) -> int:
    """Run jobs side by side; return how many of them did not finish.

    Args:
        jobs: Jobs in the order in which they start. A job comes after those that it waits for; if one of them does not
            finish, the job is not started.
        folder: Each job writes its output to a file NAME.log in it.
        parallel: Number of jobs that run at the same time.
        limit: Seconds after which jobs are asked to stop, and no more are started.
        mps: Whether to share the GPU by NVIDIA's multi-process service.
    """
    end = time.monotonic() + limit
    started: dict[str, Future[bool]] = {}
    folder.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, len(os.sched_getaffinity(0)) // parallel))

    def run(job: Job) -> bool:
        if missing := [name for name in job.after if not started[name].result()]:
            print(f"{job.name}: not started, because {', '.join(missing)} did not finish", flush=True)
            return False
        with (folder / f"{job.name}.log").open("w") as log:
            code = run_process([sys.executable, *job.words], log, max(0.1, end - time.monotonic()), threads)
        if code:
            lines = Path(log.name).read_text().splitlines()
            print(f"{job.name}: {'out of time' if code < 0 else 'failed'}: {lines[-1:]}", flush=True)
        return code == 0

    sharing = multi_process_service(folder / "mps") if mps else nullcontext()
    with sharing, ThreadPoolExecutor(parallel) as pool:
        for job in jobs:
            started[job.name] = pool.submit(run, job)
    return sum(not future.result() for future in started.values())


def run_process(words: Sequence[str], log: TextIO, limit: float, threads: str) -> int:
    """Run a process; return its exit code, or -1 if it had to be stopped after the limit."""
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment)
    for stop, seconds in ((process.terminate, limit), (process.kill, GRACE)):
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            stop()
    process.wait()
    return -1


@contextmanager
def multi_process_service(folder: Path) -> Iterator[None]:
    """Run the processes started in this context on one GPU at the same time, if the service works here."""
    names = {"CUDA_MPS_PIPE_DIRECTORY": str(folder.absolute()), "CUDA_MPS_LOG_DIRECTORY": str(folder.absolute())}
    folder.mkdir(exist_ok=True)
    check = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=os.environ | names, timeout=20, check=True)
        subprocess.run(check, env=os.environ | names, timeout=60, check=True)
        os.environ |= names
        print("the runs share the GPU by the multi-process service", flush=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no multi-process service: {error}", flush=True)
    try:
        yield
    finally:
        if names.items() <= os.environ.items():
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", timeout=60, check=False)
