"""The kernels of `head`: a row of logits becomes its loss and, in place, the gradient of that."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


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


@triton.jit(do_not_specialize=["N"])
def turn_held_rows(
    pairs, logits, labels, losses, N, stride, P, V, smoothing,
    LEARNS: tl.constexpr, BLOCK: tl.constexpr, NOTHING: tl.constexpr,
):  # fmt: skip
    """The same, each row held in registers, so that it is read once; the next is on its way meanwhile.

    Args:
        pairs: the logits, two of a row in one number of int32, P of them.
        logits: the same memory, number by number.
        labels: of N rows.
        losses: of N rows.
        stride: from row to row, in pairs.
        V: words, all of them in one BLOCK.
        smoothing: the share of the label that is spread evenly over all words.
        NOTHING: two logits of -∞.
    """
    pair, word = tl.arange(0, BLOCK // 2), tl.arange(0, BLOCK)
    first, step = tl.program_id(0), tl.num_programs(0)
    there = pair < P
    ahead = tl.load(pairs + first.to(tl.int64) * stride + pair, mask=there, other=NOTHING)
    for turn in range(0, N - first, step):
        held, row = ahead, first + turn
        start = row.to(tl.int64) * stride
        label = tl.load(labels + row)
        # Before the row is written over; the sums below wait for all that was read here.
        right = tl.load(logits + 2 * start + tl.maximum(label, 0)).to(tl.float32)
        following = tl.minimum(row + step, N - 1)
        ahead = tl.load(pairs + following.to(tl.int64) * stride + pair, mask=there, other=NOTHING)
        low = held.to(tl.int16).to(logits.dtype.element_ty, bitcast=True).to(tl.float32)
        high = (held >> 16).to(tl.int16).to(logits.dtype.element_ty, bitcast=True).to(tl.float32)
        top = tl.max(tl.maximum(low, high), 0) * LOG2_E
        sums = tl.sum(tl.where(there, low + high, 0.0), 0)
        low, high = tl.exp2(low * LOG2_E - top), tl.exp2(high * LOG2_E - top)
        total = tl.sum(low + high, 0)
        if label < 0:
            tl.store(losses + row, 0.0)
            if LEARNS:
                tl.store(pairs + start + pair, tl.zeros([BLOCK // 2], tl.int32), mask=there)
        else:
            norm = (top + tl.log2(total)) * LN_2
            tl.store(losses + row, norm - (1 - smoothing) * right - smoothing * sums / V)
            if LEARNS:
                share, even = 1 / total, smoothing / V
                gradient = tl.reshape(tl.join(low * share - even, high * share - even), [BLOCK])
                tl.store(logits + 2 * start + word, gradient.to(logits.dtype.element_ty), mask=word < V)
                tl.debug_barrier()  # one word is written twice: to compare each with the label would take longer
                of_label = tl.exp2(right * LOG2_E - top) * share - even - (1 - smoothing)
                tl.store(logits + 2 * start + label, of_label.to(logits.dtype.element_ty))


@triton.jit
def multiply(x, factor, y, N, SIZE: tl.constexpr):
    """N numbers times one."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    product = tl.load(x + at, mask=at < N, other=0.0).to(tl.float32) * tl.load(factor).to(tl.float32)
    tl.store(y + at, product.to(y.dtype.element_ty), mask=at < N)
