"""Kernels of cross-entropy: a row of logits becomes its loss and, in place, the gradient of the loss."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def cross_entropy_two_reads(
    logits, labels, losses, V, smoothing,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per row, which reads it twice in blocks of BLOCK logits. A negative label gives zeros."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * V
    label = tl.load(labels + row)
    word = tl.arange(0, BLOCK)
    if label < 0:
        tl.store(losses + row, 0.0)
        if BACKWARD:
            for first in range(0, V, BLOCK):
                tl.store(start + first + word, tl.zeros([BLOCK], logits.dtype.element_ty), mask=first + word < V)
    else:
        # Loaded before the row is overwritten: the reductions below wait for this load.
        label_logit = tl.load(start + label).to(tl.float32)
        highest = float("-inf")
        exp_sum = 0.0
        logit_sum = 0.0
        for first in range(0, V, BLOCK):
            mask = first + word < V
            z = tl.load(start + first + word, mask=mask, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(highest, tl.max(z, 0))
            exp_sum = exp_sum * tl.exp(highest - higher) + tl.sum(tl.exp(z - higher), 0)
            logit_sum += tl.sum(tl.where(mask, z, 0.0), 0)
            highest = higher
        log_sum = highest + tl.log(exp_sum)
        tl.store(losses + row, log_sum - (1 - smoothing) * label_logit - smoothing * logit_sum / V)
        if BACKWARD:
            for first in range(0, V, BLOCK):
                mask = first + word < V
                z = tl.load(start + first + word, mask=mask, other=0.0).to(tl.float32)
                gradient = tl.exp(z - log_sum) - smoothing / V
                gradient = tl.where(first + word == label, gradient - (1 - smoothing), gradient)
                tl.store(start + first + word, gradient.to(logits.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N"])
def cross_entropy_one_read(
    pairs, logits, labels, losses, N, row_pairs, V, smoothing,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr, MINUS_INFINITY: tl.constexpr
):  # fmt: skip
    """Each program processes several rows: it holds one in registers, so that it is read once, and prefetches the next.

    Args:
        pairs: Logits viewed as int32: two elements each, (N, V / 2).
        logits: The same memory by element, (N, V).
        labels: Labels, (N,).
        losses: Losses, (N,).
        N: Number of rows.
        row_pairs: V / 2. Triton specialises integer arguments that are divisible by 16.
        V: Vocabulary size, even and at most BLOCK.
        smoothing: Label smoothing.
        MINUS_INFINITY: Two logits of -∞ as an int32.
    """
    pair, word = tl.arange(0, BLOCK // 2), tl.arange(0, BLOCK)
    first_row, step = tl.program_id(0), tl.num_programs(0)
    pair_mask = pair < row_pairs
    following = tl.load(pairs + first_row.to(tl.int64) * row_pairs + pair, mask=pair_mask, other=MINUS_INFINITY)
    for distance in range(0, N - first_row, step):
        current, row = following, first_row + distance
        start = row.to(tl.int64) * row_pairs
        label = tl.load(labels + row)
        # Loaded before the row is overwritten: the reductions below wait for this load.
        label_logit = tl.load(logits + 2 * start + tl.maximum(label, 0)).to(tl.float32)
        next_row = tl.minimum(row + step, N - 1)
        following = tl.load(pairs + next_row.to(tl.int64) * row_pairs + pair, mask=pair_mask, other=MINUS_INFINITY)
        low = current.to(tl.int16).to(logits.dtype.element_ty, bitcast=True).to(tl.float32)
        high = (current >> 16).to(tl.int16).to(logits.dtype.element_ty, bitcast=True).to(tl.float32)
        highest = tl.max(tl.maximum(low, high), 0) * LOG2_E
        logit_sum = tl.sum(tl.where(pair_mask, low + high, 0.0), 0)
        low, high = tl.exp2(low * LOG2_E - highest), tl.exp2(high * LOG2_E - highest)
        exp_sum = tl.sum(low + high, 0)
        if label < 0:
            tl.store(losses + row, 0.0)
            if BACKWARD:
                tl.store(pairs + start + pair, tl.zeros([BLOCK // 2], tl.int32), mask=pair_mask)
        else:
            log_sum = (highest + tl.log2(exp_sum)) * LN_2
            tl.store(losses + row, log_sum - (1 - smoothing) * label_logit - smoothing * logit_sum / V)
            if BACKWARD:
                normaliser, uniform = 1 / exp_sum, smoothing / V
                gradient = tl.reshape(tl.join(low * normaliser - uniform, high * normaliser - uniform), [BLOCK])
                tl.store(logits + 2 * start + word, gradient.to(logits.dtype.element_ty), mask=word < V)
                tl.debug_barrier()  # the label is stored a second time: comparing each word with it would take longer
                probability = tl.exp2(label_logit * LOG2_E - highest) * normaliser
                label_gradient = probability - uniform - (1 - smoothing)
                tl.store(logits + 2 * start + label, label_gradient.to(logits.dtype.element_ty))


@triton.jit
def multiply(x, factor, y, N, SIZE: tl.constexpr):
    """Multiply N elements by one scalar in memory, SIZE per program."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    product = tl.load(x + index, mask=index < N, other=0.0).to(tl.float32) * tl.load(factor).to(tl.float32)
    tl.store(y + index, product.to(y.dtype.element_ty), mask=index < N)
