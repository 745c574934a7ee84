"""Random numbers of kernels that drop elements; `kernel_drop_mask` of tests/kernel_references.py is the reference."""

import triton
import triton.language as tl


@triton.jit
def hash_uint32(x):
    """Map 32-bit integers one-to-one to integers that look random."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def keep_mask(seed, row, column, threshold):
    """Return which elements dropout keeps; it depends on seed, row and column only, not on the tile."""
    start = hash_uint32(row.to(tl.uint32) ^ seed)
    return (hash_uint32(start + column.to(tl.uint32) * 0x9E3779B9) >> 8).to(tl.int32) >= threshold
