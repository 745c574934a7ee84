"""CPU threads: how many there are, and how they wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path


def available_cpus(root: Path = Path("/")) -> int:
    """Return the number of CPUs that this process may use, by its CPU affinity and the CPU quotas of its cgroups.

    Args:
        root: Folder that contains proc and sys.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([cpus, *map(int, _cpu_quotas(root))]))


SHORT_SPINS = 2000
"""Number of times that a waiting thread looks for work before it sleeps: some microseconds."""
SPINS = "GOMP_SPINCOUNT"
WAITING = ("OMP_WAIT_POLICY", SPINS, "KMP_BLOCKTIME")
"""Variables with which a user chooses how OpenMP threads wait: of the standard, of GNU and of Intel."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def configure_threads(environment: MutableMapping[str, str] = os.environ, root: Path = Path("/")) -> None:
    """Choose the number of CPU threads and how they wait for each other, before torch is imported.

    By default, a thread that has finished its part of an operation spins for about a millisecond before it sleeps. On a
    shared machine it so takes the CPU from the threads it waits for. A short time costs nothing on an idle machine,
    because the parts of an operation end almost together. Variables that are set already are kept.

    Args:
        environment: Environment variables, which OpenMP reads when it is loaded.
        root: Folder that contains proc and sys.
    """
    if not any(name in environment for name in WAITING):
        environment.update({SPINS: str(SHORT_SPINS), "KMP_BLOCKTIME": "1"})
    # OpenMP knows the affinity of the process, but not the quotas of its cgroups.
    if not any(name in environment for name in THREADS) and any(_cpu_quotas(root)):
        environment["OMP_NUM_THREADS"] = str(available_cpus(root))


def describe_threads(threads: int, environment: Mapping[str, str] = os.environ) -> str:
    """Describe the CPU threads of this process, and what their number and waiting follow from."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpus = available_cpus()
    quota = f" by the quota of its cgroup, {affinity} by its affinity" if cpus < affinity else ""
    policy = environment.get("OMP_WAIT_POLICY")
    spins = environment.get(SPINS)
    waiting = f"OMP_WAIT_POLICY={policy}" if policy else f"{SPINS}={spins}" if spins else "the default of OpenMP"
    return f"CPU threads: {threads} of {cpus} CPUs{quota}; waiting: {waiting}"


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of the cgroups of this process and of all groups around them, in CPUs."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        home = root / "sys/fs/cgroup"
        if controllers:  # version 1
            home /= controllers
        group = home / path.lstrip("/")
        while group.is_relative_to(home):
            for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
                with suppress(OSError, ValueError):  # there is no quota, or it is "max"
                    quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
                    if quota > 0:
                        yield quota / period
            group = group.parent
