"""Steps that are not taken, because their loss or gradient is no number or too large."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

ADVICE = "lower optim.lr or optim.clip, lengthen optim.warmup, or set training.precision=float32"


@dataclass(frozen=True)
class Skipped:
    """Steps that were skipped since the last reading."""

    steps: int
    in_a_row: int  # up to the present step, earlier readings included
    last: int
    why: str  # of the last one


class Skips:
    """Judges every step, and counts on the device, so that nobody waits for it: whoever wants to know reads.

    Args:
        device: where losses and gradients lie.
        above: a gradient with a larger norm than this is skipped too.
    """

    def __init__(self, device: torch.device, above: float | None = None) -> None:
        self.above = math.inf if above is None else above
        # How many in all, how many in a row up to now; the last one's step, loss and norm of the gradient.
        self.record = torch.zeros(5, dtype=torch.float64, device=device)
        self.told = 0

    def judge(self, step: int, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the step of this mean loss and norm may be taken: a truth value on the device."""
        taken = loss.isfinite() & norm.isfinite() & (norm <= self.above)
        total, in_a_row, *last = self.record
        skipped = torch.stack((total + 1, in_a_row + 1, torch.full_like(total, step), loss.double(), norm.double()))
        self.record = torch.where(taken, torch.stack((total, torch.zeros_like(total), *last)), skipped)
        return taken

    @property
    def total(self) -> int:
        """How many steps of the run were skipped."""
        return int(self.record[0])

    def read(self) -> Skipped | None:
        """What was skipped since the last reading; None where nothing was."""
        total, in_a_row, step, loss, norm = self.record.tolist()
        fresh, self.told = int(total) - self.told, int(total)
        if not fresh:
            return None
        why = f"its loss was {loss:.3g} and its gradient's norm {norm:.3g}"
        return Skipped(fresh, int(in_a_row), int(step), why)
