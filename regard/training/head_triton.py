"""The kernel of `head`: a row of logits becomes its loss and, in place, the gradient of that."""

import triton
import triton.language as tl


@triton.jit
def turn_into_gradient(
    logits, labels, losses, stride, V, smoothing,
    LEARNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row, in blocks of words; a row whose label is negative gives zeros."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    label = tl.load(labels + row)
    words = tl.arange(0, BLOCK)
    if label < 0:
        tl.store(losses + row, 0.0)
        if LEARNS:
            for begin in range(0, V, BLOCK):
                there = begin + words < V
                tl.store(start + begin + words, tl.zeros([BLOCK], logits.dtype.element_ty), mask=there)
    else:
        # Before the row is written over; the sums below wait for all that was read here.
        right = tl.load(start + label).to(tl.float32)
        top = float("-inf")
        total = 0.0
        sums = 0.0
        for begin in range(0, V, BLOCK):
            there = begin + words < V
            z = tl.load(start + begin + words, mask=there, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(z, 0))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(z - higher), 0)
            sums += tl.sum(tl.where(there, z, 0.0), 0)
            top = higher
        norm = top + tl.log(total)
        tl.store(losses + row, norm - (1 - smoothing) * right - smoothing * sums / V)
        if LEARNS:
            for begin in range(0, V, BLOCK):
                there = begin + words < V
                z = tl.load(start + begin + words, mask=there, other=0.0).to(tl.float32)
                gradient = tl.exp(z - norm) - smoothing / V
                gradient = tl.where(begin + words == label, gradient - (1 - smoothing), gradient)
                tl.store(start + begin + words, gradient.to(logits.dtype.element_ty), mask=there)
