"""The number of CPU threads, and how they wait."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard.threads import WAITING, available_cpus, configure_threads, describe_threads


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 64),  # not on Linux
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 64),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "350000 100000\n"}, 3),  # of an outer group
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "12800000 100000\n"}, 64),
        (
            {
                "proc/self/cgroup": "3:cpuset:/\n1:cpu,cpuacct:/docker/1:2\n",  # the path of the host
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",  # no quota
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            64,
        ),
    ],
)
def test_cpus_are_limited_by_the_quotas_of_cgroups(
    files: dict[str, str], cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_cpus(tmp_path) == cpus


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "2"}),
        ({"OMP_NUM_THREADS": "7"}, {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1", "OMP_NUM_THREADS": "7"}),
        ({"MKL_NUM_THREADS": "7"}, {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1", "MKL_NUM_THREADS": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "2"}),
        ({"GOMP_SPINCOUNT": "9"}, {"GOMP_SPINCOUNT": "9", "OMP_NUM_THREADS": "2"}),
    ],
)
def test_waiting_and_number_of_threads_are_chosen_unless_given(
    given: dict[str, str], chosen: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(64)), raising=False)
    for name, text in {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    environment = dict(given)
    configure_threads(environment, tmp_path)
    assert environment == chosen


def test_without_a_quota_openmp_chooses_the_number_of_threads(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    configure_threads(environment, tmp_path)
    assert "OMP_NUM_THREADS" not in environment


def test_threads_are_configured_before_torch_is_imported() -> None:
    code = (
        "import os, sys, regard.cli\n"
        "regard.cli.main = lambda: print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)\n"
        "from regard.__main__ import main\n"
        "main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in WAITING}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "2000 False\n"


def test_description_of_threads_states_the_way_of_waiting() -> None:
    assert describe_threads(3, {"GOMP_SPINCOUNT": "5"}).startswith("CPU threads: 3 of ")
    assert describe_threads(3, {"GOMP_SPINCOUNT": "5"}).endswith("; waiting: GOMP_SPINCOUNT=5")
    assert describe_threads(3, {"OMP_WAIT_POLICY": "PASSIVE"}).endswith("OMP_WAIT_POLICY=PASSIVE")
    assert describe_threads(3, {}).endswith("the default of OpenMP")


def test_cpus_are_limited_by_the_affinity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3, 5, 7}, raising=False)
    assert available_cpus(tmp_path) == 3
