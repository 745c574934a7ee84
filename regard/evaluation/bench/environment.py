"""Description of the machine and the versions of a benchmark."""

import datetime
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from regard.evaluation.bench.harness import LIBRARIES


def describe_environment(device: torch.device, libraries: Iterable[str] = ()) -> dict[str, Any]:
    """Return the machine, the versions of the packages, and the date."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {package: version(package) for package in ("regard", *(LIBRARIES[name] for name in libraries))}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"machine": describe_machine(device), "versions": versions, "date": date}


def describe_machine(device: torch.device) -> str:
    """Return the name of the GPU, or of the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def summarise(environment: dict[str, Any]) -> str:
    """Return the description of an environment as one line."""
    versions = environment["versions"]
    named = [f"{package} {versions[package]}" for package in versions if package not in ("python", "regard")]
    return ", ".join([environment["machine"], *named, environment["date"]])
