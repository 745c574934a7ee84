"""Mean loss and speed between two lines of the log."""

from __future__ import annotations

import time

import torch
from torch import Tensor


class Meter:
    """Mean loss and speed since the last reading. The loss stays on the device until it is read."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), device=device, dtype=torch.float64)
        self.count = torch.zeros((), device=device, dtype=torch.float64)
        self.restart()

    def restart(self) -> None:
        self.total.zero_()
        self.count.zero_()
        self.timed = 0
        self.since = time.perf_counter()

    def add(self, total: Tensor, count: int, taken: Tensor) -> None:
        """Takes in the loss of a step, unless the step was skipped; it took its time all the same."""
        self.total += torch.where(taken, total, 0)
        self.count += taken * count
        self.timed += count

    def read(self) -> dict[str, float]:
        """The figures since the last reading; where every step was skipped, the loss is NaN."""
        mean = float(self.total / self.count)
        speed = self.timed / (time.perf_counter() - self.since)
        self.restart()
        return {"loss": mean, "tokens_per_second": speed}

    def restore(self, total: float, count: float) -> None:
        """Goes on from an earlier sum; its tokens took time that is not measured here, so the speed leaves them out."""
        self.restart()
        self.total += total
        self.count += count
