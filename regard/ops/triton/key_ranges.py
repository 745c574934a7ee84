"""Kernel of `regard.ops.key_ranges`: ranges and programs of a packed row, by binary search in its offsets."""

import triton
import triton.language as tl


@triton.jit
def first_at_least(x, y, value, sequences, steps):
    """Return the first index at which the offsets x, or the sum x + y, are not below a value.

    The last offset never is below it.
    """
    low = tl.zeros(value.shape, tl.int32)
    high = low + sequences
    for _ in range(steps):
        middle = (low + high) // 2
        offset = tl.load(x + middle)
        if y is not None:
            offset += tl.load(y + middle)
        below = offset < value
        low = tl.where(below, middle, low)
        high = tl.where(below, high, middle)
    return tl.where(value <= 0, 0, high)


@triton.jit
def find_ranges(offsets, other_offsets, first, end, size, before, after, sequences, steps, BLOCK: tl.constexpr):
    """Compute the range of the other side in the window of each token."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = token < size
    sequence = first_at_least(offsets, None, tl.minimum(token, size - 1) + 1, sequences, steps) - 1
    other_start = tl.load(other_offsets + sequence, mask=mask)
    other_end = tl.load(other_offsets + sequence + 1, mask=mask)
    aligned = token + other_end - tl.load(offsets + sequence + 1, mask=mask)
    tl.store(first + token, tl.minimum(tl.maximum(aligned - before, other_start), other_end), mask=mask)
    tl.store(end + token, tl.minimum(tl.maximum(aligned + after + 1, other_start), other_end), mask=mask)


@triton.jit
def assign_programs(queries, keys, programs, T, S, interval, count, sequences, steps, BLOCK: tl.constexpr):
    """Compute the table of `regard.ops.key_ranges.assign_programs`."""
    program = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = program < count
    end = first_at_least(queries, keys, tl.minimum((program + 1) * interval, T + S), sequences, steps)
    last = tl.maximum(end - 1, 0)
    owner = (tl.load(queries + last, mask=mask) + tl.load(keys + last, mask=mask)) // interval
    begin = first_at_least(queries, keys, owner * interval, sequences, steps)
    q_end, k_end = tl.load(queries + end, mask=mask), tl.load(keys + end, mask=mask)
    next_owner = tl.where(q_end + k_end < T + S, (q_end + k_end) // interval, count)
    row = programs + program * 6
    tl.store(row, tl.load(queries + begin, mask=mask), mask=mask)
    tl.store(row + 1, q_end, mask=mask)
    tl.store(row + 2, tl.load(keys + begin, mask=mask), mask=mask)
    tl.store(row + 3, k_end, mask=mask)
    tl.store(row + 4, program - owner, mask=mask)
    tl.store(row + 5, next_owner - owner, mask=mask)


@triton.jit(do_not_specialize=["T", "S", "before", "after", "count", "sequences", "steps"])
def find_key_ranges(
    queries, keys, first_key, end_key, first_query, end_query, programs,
    T, S, before, after, interval, count, sequences, steps, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the key ranges in programs (·, 0), the query ranges in (·, 1) and the table of programs in (·, 2)."""
    if tl.program_id(1) == 0:
        find_ranges(queries, keys, first_key, end_key, T, before, after, sequences, steps, BLOCK)
    elif tl.program_id(1) == 1:
        find_ranges(keys, queries, first_query, end_query, S, after, before, sequences, steps, BLOCK)
    else:
        assign_programs(queries, keys, programs, T, S, interval, count, sequences, steps, BLOCK)
