"""What figures were measured on and with."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import torch

from regard.evaluation.bench.comparison import PEERS
from regard.evaluation.bench.speed import describe_machine


def describe_circumstances(device: torch.device, peers: Iterable[str] = ()) -> dict[str, Any]:
    """The machine, the versions of all that took part, and the day."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {package: version(package) for package in ("regard", *(PEERS[peer] for peer in peers))}
    return {
        "machine": describe_machine(device),
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def cite(circumstances: dict[str, Any]) -> str:
    """The same in a few words."""
    versions = circumstances["versions"]
    named = [f"{package} {versions[package]}" for package in versions if package not in ("python", "regard")]
    return ", ".join([circumstances["machine"], *named, circumstances["date"]])
