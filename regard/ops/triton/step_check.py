"""The kernel of `skips`: one program judges a step and counts."""

import triton
import triton.language as tl


@triton.jit
def judge(record, step, loss, norm, taken, ABOVE: tl.constexpr, ENOUGH: tl.constexpr, TIMES: tl.constexpr):
    """Whether a step may be taken, and the record of it: see `StepCheck.judge`."""
    total = tl.load(record)
    in_a_row = tl.load(record + 1)
    count = tl.load(record + 6)
    norms = tl.load(record + 7)
    lost = tl.load(loss).to(tl.float64)
    size = tl.load(norm).to(tl.float64)
    if ABOVE is None:
        bound = tl.where(count >= ENOUGH, TIMES * norms / tl.maximum(count, 1.0), float("inf"))
    else:
        bound = tl.zeros_like(norms) + ABOVE
    fine = (tl.abs(lost) < float("inf")) & (tl.abs(size) < float("inf")) & (size <= bound)
    tl.store(taken, fine)
    if fine:
        tl.store(record + 1, tl.zeros_like(total))
        tl.store(record + 6, count + 1)
        tl.store(record + 7, norms + size)
    else:
        tl.store(record, total + 1)
        tl.store(record + 1, in_a_row + 1)
        tl.store(record + 2, tl.load(step).to(tl.float64))
        tl.store(record + 3, lost)
        tl.store(record + 4, size)
        tl.store(record + 5, bound)
