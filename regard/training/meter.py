"""Mean loss, its parts and the speed between two lines of the log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Meter:
    """Mean loss, its parts and speed since the last reading. The sums stay on the device until they are read."""

    def __init__(self, device: torch.device, unit: str = "tokens") -> None:
        self.unit = unit
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.count = torch.zeros((), device=device, dtype=torch.float64)
        self.parts: dict[str, Tensor] = {}
        self.restart()

    def restart(self) -> None:
        self.total.zero_()
        self.count.zero_()
        self.parts.clear()
        self.timed = 0
        self.since = time.perf_counter()

    def add(self, total: Tensor, count: int, parts: Mapping[str, Tensor], taken: Tensor) -> None:
        """Takes in the loss of a step, unless the step was skipped; it took its time all the same."""
        self.total += torch.where(taken, total, 0)
        for name, part in parts.items():
            self._part(name).add_(torch.where(taken, part, 0))
        self.count += taken * count
        self.timed += count

    def read(self) -> dict[str, float]:
        """The figures since the last reading; where every step was skipped, the loss is NaN."""
        means = {name: float(total / self.count) for name, total in ({"loss": self.total} | self.parts).items()}
        speed = self.timed / (time.perf_counter() - self.since)
        self.restart()
        return means | {f"{self.unit}_per_second": speed}

    def sums(self) -> dict[str, Any]:
        """What `restore` needs."""
        parts = {name: float(part) for name, part in self.parts.items()}
        return {"total": float(self.total), "count": float(self.count), "parts": parts}

    def restore(self, total: float, count: float, parts: Mapping[str, float]) -> None:
        """Goes on from earlier sums; their tokens took time that is not measured here, so the speed leaves them out."""
        self.restart()
        self.total += total
        self.count += count
        for name, part in parts.items():
            self._part(name).add_(part)

    def _part(self, name: str) -> Tensor:
        return self.parts.setdefault(name, torch.zeros_like(self.total))
