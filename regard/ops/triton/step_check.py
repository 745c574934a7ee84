"""Kernel of `regard.training.optim.StepCheck`: decides whether a step is taken and updates the counters."""

import triton
import triton.language as tl


@triton.jit
def check_step(
    counters, step, loss, norm, taken, MAX_NORM: tl.constexpr, MIN_STEPS: tl.constexpr, NORM_FACTOR: tl.constexpr
):
    """Store whether the step is taken; see `StepCheck.check` for the counters."""
    total = tl.load(counters)
    consecutive = tl.load(counters + 1)
    taken_steps = tl.load(counters + 6)
    norm_sum = tl.load(counters + 7)
    loss_value = tl.load(loss).to(tl.float64)
    norm_value = tl.load(norm).to(tl.float64)
    if MAX_NORM is None:
        scaled_mean = NORM_FACTOR * norm_sum / tl.maximum(taken_steps, 1.0)
        max_norm = tl.where(taken_steps >= MIN_STEPS, scaled_mean, float("inf"))
    else:
        max_norm = tl.zeros_like(norm_sum) + MAX_NORM
    finite = (tl.abs(loss_value) < float("inf")) & (tl.abs(norm_value) < float("inf"))
    is_taken = finite & (norm_value <= max_norm)
    tl.store(taken, is_taken)
    if is_taken:
        tl.store(counters + 1, tl.zeros_like(total))
        tl.store(counters + 6, taken_steps + 1)
        tl.store(counters + 7, norm_sum + norm_value)
    else:
        tl.store(counters, total + 1)
        tl.store(counters + 1, consecutive + 1)
        tl.store(counters + 2, tl.load(step).to(tl.float64))
        tl.store(counters + 3, loss_value)
        tl.store(counters + 4, norm_value)
        tl.store(counters + 5, max_norm)
