"""Shared parts of the benchmarks: the environment, result files, and alternating measurement."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def environment(device: torch.device | str = "cpu", *packages: str) -> dict[str, Any]:
    """The machine, the versions of Python, torch and other packages, the date, and the command."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "machine": machine(torch.device(device)),
        "versions": versions | {package: version(package) for package in packages},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": command(),
    }


def machine(device: torch.device) -> str:
    """The name of the GPU, or of the CPU with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.M) if info.exists() else []
    threads = torch.get_num_threads()
    return f"{names[0] if names else platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"


def command() -> str:
    """This command line, with files named without their folders."""
    words = [f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    return "python " + " ".join(re.sub(r"(?<![^=])/\S*/", "", word) for word in words)


def save_result(result: Mapping[str, Any], path: str | Path) -> None:
    """Write a result as JSON: to a path, or by name to benchmarks/results."""
    target = RESULTS / f"{path}.json" if isinstance(path, str) else path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(format_json(result) + "\n", encoding="utf-8")


def format_json(result: Mapping[str, Any]) -> str:
    """Format JSON with each list of numbers on one line."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s*\n([^][{}\"]+)\n\s*\]", lambda match: f"[{' '.join(match[1].split())}]", text)


def synchronize(device: torch.device) -> None:
    """Wait for the device, if it is a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_alternately(
    systems: Mapping[str, Callable[[], object]],
    *,
    device: torch.device | str = "cpu",
    seconds: float = 0.0,
    repetitions: int = 3,
    warm_up: int = 1,
) -> dict[str, list[float]]:
    """Time systems in turns, so that other load on the machine affects all of them.

    Args:
        systems: what to call, by name.
        device: device to synchronise with before and after each call.
        seconds: minimum total time per system.
        repetitions: minimum number of calls per system.
        warm_up: number of calls before timing starts.

    Returns:
        The seconds of each call, by system.
    """
    device = torch.device(device)
    for call in systems.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in systems}
    while any(len(taken) < repetitions or sum(taken) < seconds for taken in times.values()):
        for name, call in systems.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
    return times


def default_threads() -> int:
    """Two threads, or one on a machine with a single core: what laptops and small servers have."""
    return min(2, os.cpu_count() or 1)
