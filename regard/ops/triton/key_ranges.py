"""The kernel of `runs`: what follows from the offsets of a packed row, searched by halving, all of it in one launch."""

import triton
import triton.language as tl


@triton.jit
def first_from(x, y, value, sequences, steps):
    """The first sequence whose offset, or sum of two, is not below a value; the last offset of all is not."""
    low = tl.zeros(value.shape, tl.int32)
    high = low + sequences
    for _ in range(steps):
        middle = (low + high) // 2
        found = tl.load(x + middle)
        if y is not None:
            found += tl.load(y + middle)
        below = found < value
        low = tl.where(below, middle, low)
        high = tl.where(below, high, middle)
    return tl.where(value <= 0, 0, high)


@triton.jit
def find_run(mine, theirs, begins, ends, size, before, after, sequences, steps, BLOCK: tl.constexpr):
    """Between which places of the other side stands what a token sees, or what sees it."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = place < size
    sequence = first_from(mine, None, tl.minimum(place, size - 1) + 1, sequences, steps) - 1
    start, end = tl.load(theirs + sequence, mask=real), tl.load(theirs + sequence + 1, mask=real)
    aligned = place + end - tl.load(mine + sequence + 1, mask=real)
    tl.store(begins + place, tl.minimum(tl.maximum(aligned - before, start), end), mask=real)
    tl.store(ends + place, tl.minimum(tl.maximum(aligned + after + 1, start), end), mask=real)


@triton.jit
def find_slots(queries, keys, slots, T, S, width, number, sequences, steps, BLOCK: tl.constexpr):
    """The sequences of each slot, by their first and last places, and which share of them is this slot's."""
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = slot < number
    end = first_from(queries, keys, tl.minimum((slot + 1) * width, T + S), sequences, steps)
    latest = tl.maximum(end - 1, 0)
    owner = (tl.load(queries + latest, mask=real) + tl.load(keys + latest, mask=real)) // width
    begin = first_from(queries, keys, owner * width, sequences, steps)
    q_end, k_end = tl.load(queries + end, mask=real), tl.load(keys + end, mask=real)
    following = tl.where(q_end + k_end < T + S, (q_end + k_end) // width, number)
    row = slots + slot * 6
    tl.store(row, tl.load(queries + begin, mask=real), mask=real)
    tl.store(row + 1, q_end, mask=real)
    tl.store(row + 2, tl.load(keys + begin, mask=real), mask=real)
    tl.store(row + 3, k_end, mask=real)
    tl.store(row + 4, slot - owner, mask=real)
    tl.store(row + 5, following - owner, mask=real)


@triton.jit(do_not_specialize=["T", "S", "before", "after", "number", "sequences", "steps"])
def find_runs(
    queries, keys, lo, hi, first, last, slots, T, S, before, after, width, number, sequences, steps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs (·, 0) are for queries, (·, 1) for keys, (·, 2) for slots."""
    if tl.program_id(1) == 0:
        find_run(queries, keys, lo, hi, T, before, after, sequences, steps, BLOCK)
    elif tl.program_id(1) == 1:
        find_run(keys, queries, first, last, S, after, before, sequences, steps, BLOCK)
    else:
        find_slots(queries, keys, slots, T, S, width, number, sequences, steps, BLOCK)
