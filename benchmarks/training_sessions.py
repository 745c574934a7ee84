"""Sessions of processes that stand still while benchmarks/training.py times steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")


def send(what: signal.Signals, sessions: Collection[int]) -> None:
    """A signal to all processes of these sessions, those included that they begin meanwhile."""
    told: set[int] = set()
    while fresh := set(find_processes(sessions)) - told:
        for process in fresh:
            with suppress(ProcessLookupError, PermissionError):  # it may be done by now, or somebody else's
                os.kill(process, what)
        told |= fresh


def find_processes(sessions: Collection[int]) -> list[int]:
    """The processes of these sessions, whatever groups they have made; without sessions it looks nowhere."""
    if not sessions:
        return []
    found = []
    for process in [int(folder.name) for folder in PROCESSES.iterdir() if folder.name.isdigit()]:
        with suppress(ProcessLookupError):
            found += [process] if os.getsid(process) in sessions else []
    return found


def find_fault(sessions: Collection[int]) -> str:
    """Why these cannot be halted, if so: steps would be timed in the company of whom nobody has found."""
    if not PROCESSES.is_dir():
        return f"the processes of a session are found in {PROCESSES}, which is not there, so leave it out"
    for session in sessions:
        if session <= 1 or session == os.getsid(0):
            return f"{session} cannot stand still: a session has a number above 1 and is another than that of this call"
        if not find_processes([session]):
            return (
                f"no process is in a session {session}; begin with setsid what is to stand still, and give "
                "the number that `ps -o sid= -p PID` tells of it"
            )
    return ""
