"""Steps that are not taken, because their loss or gradient is no number or too large."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops.dispatch import KERNELS_ENABLED, on_device

ENABLED = KERNELS_ENABLED
ADVICE = "lower optim.lr or optim.clip, lengthen optim.warmup, or set training.precision=float32"
EXPLODED = "lower optim.lr, lengthen optim.warmup, or raise optim.skip_above if such a norm is usual here"
TIMES = 100  # the mean norm, over which a gradient counts as exploded where no bound is set
ENOUGH = 100  # steps taken, before their mean norm tells what is usual


@dataclass(frozen=True)
class SkippedSteps:
    """Steps that were skipped since the last reading."""

    steps: int
    in_a_row: int  # up to the present step, earlier readings included
    last: int
    why: str  # of the last one
    advice: str  # what to change, should there be many like the last one


class StepCheck:
    """Judges every step, and counts on the device, so that nobody waits for it: whoever wants to know reads.

    Args:
        device: where losses and gradients lie.
        above: a gradient with a larger norm than this is skipped too; by default one that is far over the mean.
    """

    def __init__(self, device: torch.device, above: float | None = None) -> None:
        self.above = above
        # How many were skipped in all, how many in a row up to now; the last one's step, loss, norm of the gradient and
        # bound on it; how many were taken, and the sum of their norms.
        self.record = torch.zeros(8, dtype=torch.float64, device=device)
        self.told = 0

    def judge(self, step: int | Tensor, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the step of this mean loss and norm may be taken: a truth value on the device."""
        if ENABLED and self.record.is_cuda and isinstance(step, Tensor):
            return self.judge_by_kernel(step, loss, norm)
        total, in_a_row, *last, count, norms = self.record
        loss, norm, bound = loss.double(), norm.double(), self._bound(count, norms)
        taken = loss.isfinite() & norm.isfinite() & (norm <= bound)
        after = torch.stack((total, torch.zeros_like(total), *last, count + 1, norms + norm))
        skipped = (total + 1, in_a_row + 1, torch.zeros_like(total) + step, loss, norm, bound, count, norms)
        self.record.copy_(torch.where(taken, after, torch.stack(skipped)))  # which stays where it is
        return taken

    def judge_by_kernel(self, step: Tensor, loss: Tensor, norm: Tensor) -> Tensor:
        """`judge` in one launch, where plain operations are thirty."""
        from regard.ops.triton import step_check as skips_triton

        taken = torch.empty_like(loss, dtype=torch.bool)
        # A mean over tokens is of double precision where their number is on the device, as in a recording, which is no
        # place to compile a kernel for that.
        mean = loss.double()
        with on_device(self.record):
            skips_triton.judge[(1,)](
                self.record, step, mean, norm, taken, ABOVE=self.above, ENOUGH=ENOUGH, TIMES=TIMES, num_warps=1
            )
        return taken

    def _bound(self, count: Tensor, norms: Tensor) -> Tensor:
        if self.above is not None:
            return torch.full_like(norms, self.above)
        return torch.where(count >= ENOUGH, TIMES * norms / count, math.inf)

    @property
    def total(self) -> int:
        """How many steps of the run were skipped."""
        return int(self.record[0])

    def read(self) -> SkippedSteps | None:
        """What was skipped since the last reading; None where nothing was."""
        total, in_a_row, step, loss, norm, bound, *_ = self.record.tolist()
        fresh, self.told = int(total) - self.told, int(total)
        if not fresh:
            return None
        why, advice = f"its loss was {loss:.3g} and its gradient's norm {norm:.3g}", ADVICE
        if math.isfinite(loss) and math.isfinite(norm):
            mean = "" if self.above is not None else f", {TIMES} times the mean of the steps before"
            why, advice = f"{why}, over optim.skip_above ({bound:.3g}{mean})", EXPLODED
        return SkippedSteps(fresh, int(in_a_row), int(step), why, advice)
