"""Optimizer, learning rate schedule, and the check that skips steps with NaN or exploding gradients."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.training.recipe import OptimSettings

NO_DECAY = ("embedding", "positions", "class_token", "registers", ".table")
"""Parts of the names of embeddings, which are not decayed."""
ADVICE = "lower optim.lr or optim.clip, lengthen optim.warmup, or set training.precision=float32"
EXPLODED_ADVICE = "lower optim.lr, lengthen optim.warmup, or raise optim.skip_above if such a norm is normal"
NORM_FACTOR = 100
"""Without optim.skip_above, a step is skipped if its gradient norm exceeds the mean by this factor."""
MIN_STEPS = 100
"""Number of steps after which the mean gradient norm is reliable."""


def build_optimizer(model: nn.Module, optim: OptimSettings) -> torch.optim.AdamW:
    """Build AdamW, without weight decay for vectors (norms, biases) and embeddings."""
    parameters = list(model.named_parameters())
    excluded = {name for name, p in parameters if p.dim() <= 1 or any(part in name for part in NO_DECAY)}
    decayed = [p for name, p in parameters if name not in excluded]
    others = [p for name, p in parameters if name in excluded]
    groups = [{"params": decayed, "weight_decay": optim.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=optim.betas, eps=optim.eps, fused=True)


def learning_rate(optim: OptimSettings, step: int, steps: int, width: int) -> float:
    """Return the learning rate of a step, counted from 1, of `steps`; Noam depends on the model's width."""
    lr, warmup = optim.lr, max(1, optim.warmup)
    if optim.schedule == "noam":
        return float(lr * width**-0.5 * min(step**-0.5, step * warmup**-1.5))
    if optim.schedule == "inverse-sqrt":
        return lr * min(step / warmup, math.sqrt(warmup / step))
    if optim.schedule == "cosine":
        progress = max(0, step - warmup) / max(1, steps - warmup)
        return lr * min(step / warmup, (1 + math.cos(math.pi * min(1.0, progress))) / 2)
    return lr * min(1.0, step / warmup)


@dataclass(frozen=True)
class SkippedSteps:
    """Steps that were skipped since the last report."""

    number: int
    consecutive: int  # up to now, including earlier reports
    last: int
    reason: str  # of the last one
    advice: str  # if many steps are skipped for this reason


class StepCheck:
    """Decides on the device whether a step is taken, and counts skipped steps, without synchronising.

    Without `max_norm`, steps with a gradient norm above 100 times the mean are skipped.
    """

    def __init__(self, device: torch.device, max_norm: float | None = None) -> None:
        self.max_norm = max_norm
        # Skipped steps in total and consecutively; step, loss, norm and maximum norm of the last skipped step;
        # number of steps taken and the sum of their norms.
        self.counters = torch.zeros(8, dtype=torch.float64, device=device)
        self.reported = 0

    def check(self, step: int | Tensor, loss: Tensor, norm: Tensor) -> Tensor:
        """Return whether to take a step with this mean loss and gradient norm, as a boolean tensor."""
        total, consecutive, *last, taken_steps, norm_sum = self.counters
        loss, norm, max_norm = loss.double(), norm.double(), self._max_norm(taken_steps, norm_sum)
        taken = loss.isfinite() & norm.isfinite() & (norm <= max_norm)
        zero = torch.zeros_like(total)
        if_taken = torch.stack((total, zero, *last, taken_steps + 1, norm_sum + norm))
        if_skipped = torch.stack((total + 1, consecutive + 1, zero + step, loss, norm, max_norm, taken_steps, norm_sum))
        self.counters.copy_(torch.where(taken, if_taken, if_skipped))  # in place, for CUDA graphs
        return taken

    def _max_norm(self, taken_steps: Tensor, norm_sum: Tensor) -> Tensor:
        if self.max_norm is not None:
            return torch.full_like(norm_sum, self.max_norm)
        return torch.where(taken_steps >= MIN_STEPS, NORM_FACTOR * norm_sum / taken_steps, math.inf)

    @property
    def total(self) -> int:
        """Number of skipped steps of the run."""
        return int(self.counters[0])

    def report(self) -> SkippedSteps | None:
        """Return the steps that were skipped since the last report; None if there are none."""
        total, consecutive, step, loss, norm, max_norm, *_ = self.counters.tolist()
        number, self.reported = int(total) - self.reported, int(total)
        if not number:
            return None
        reason, advice = f"its loss was {loss:.3g} and its gradient norm {norm:.3g}", ADVICE
        if math.isfinite(loss) and math.isfinite(norm):
            mean = "" if self.max_norm is not None else f", {NORM_FACTOR} times the mean of the previous steps"
            reason, advice = f"{reason}, above optim.skip_above ({max_norm:.3g}{mean})", EXPLODED_ADVICE
        return SkippedSteps(number, int(consecutive), int(step), reason, advice)
