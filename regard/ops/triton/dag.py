"""Kernels of the forward-backward algorithm on graphs of tokens; `regard.ops.dag` has the formulas.

Emissions are (B, U, L), transitions (B, L, L), and states after each number of tokens (U + 1, B, L), filled with
`LOG_ZERO` before the kernels run. Vertices are processed in blocks of BLOCK.
"""

import triton
import triton.language as tl

LOG_ZERO = tl.constexpr(-1e30)
TINY = tl.constexpr(1e-30)
"""Keeps the logarithm of an empty sum finite."""


@triton.jit(do_not_specialize=["L", "U"])
def sum_paths(emissions, transitions, lengths, target_lengths, reached, L, U, BLOCK: tl.constexpr):
    """Write the log-probability of reaching each vertex with each number of tokens; one program per graph."""
    graph = tl.program_id(0).to(tl.int64)
    length, tokens = tl.load(lengths + graph), tl.load(target_lengths + graph)
    emissions += graph * U * L
    transitions += graph * L * L
    step = tl.num_programs(0).to(tl.int64) * L  # between the states of successive tokens
    reached += graph * L
    vertex = tl.arange(0, BLOCK)
    for _ in range(tokens):
        for first in range(0, length, BLOCK):
            j = first + vertex
            highest = tl.full([BLOCK], LOG_ZERO, tl.float32)
            total = tl.zeros([BLOCK], tl.float32)
            for start in range(0, first + BLOCK, BLOCK):  # paths come from earlier vertices
                i = start + vertex
                inside = (i < length)[:, None] & (j < length)[None, :]
                edge = tl.load(transitions + i[:, None] * L + j[None, :], mask=inside, other=LOG_ZERO)
                x = tl.load(reached + i, mask=i < length, other=LOG_ZERO)[:, None] + edge
                maximum = tl.maximum(highest, tl.max(x, 0))
                total = total * tl.exp(highest - maximum) + tl.sum(tl.exp(x - maximum[None, :]), 0)
                highest = maximum
            emission = tl.load(emissions + j, mask=j < length, other=LOG_ZERO)
            tl.store(reached + step + j, highest + tl.log(tl.maximum(total, TINY)) + emission, mask=j < length)
        tl.debug_barrier()  # all threads see the states before the next token
        reached += step
        emissions += L


@triton.jit(do_not_specialize=["L", "U"])
def best_paths(emissions, transitions, lengths, target_lengths, best, origins, L, U, BLOCK: tl.constexpr):
    """Write the log-probability of the best path to each vertex with each number of tokens, and its previous vertex."""
    graph = tl.program_id(0).to(tl.int64)
    length, tokens = tl.load(lengths + graph), tl.load(target_lengths + graph)
    emissions += graph * U * L
    transitions += graph * L * L
    step = tl.num_programs(0).to(tl.int64) * L
    best += graph * L
    origins += graph * L
    vertex = tl.arange(0, BLOCK)
    for _ in range(tokens):
        for first in range(0, length, BLOCK):
            j = first + vertex
            highest = tl.full([BLOCK], 2 * LOG_ZERO, tl.float32)
            origin = tl.zeros([BLOCK], tl.int32)
            for start in range(0, first + BLOCK, BLOCK):
                i = start + vertex
                inside = (i < length)[:, None] & (j < length)[None, :]
                edge = tl.load(transitions + i[:, None] * L + j[None, :], mask=inside, other=LOG_ZERO)
                x = tl.load(best + i, mask=i < length, other=LOG_ZERO)[:, None] + edge
                maximum = tl.max(x, 0)
                origin = tl.where(maximum > highest, (start + tl.argmax(x, 0)).to(tl.int32), origin)
                highest = tl.maximum(highest, maximum)
            emission = tl.load(emissions + j, mask=j < length, other=LOG_ZERO)
            tl.store(best + step + j, highest + emission, mask=j < length)
            tl.store(origins + j, origin, mask=j < length)
        tl.debug_barrier()
        best += step
        origins += step
        emissions += L


@triton.jit(do_not_specialize=["L", "U"])
def sum_rests(emissions, transitions, lengths, target_lengths, rests, L, U, BLOCK: tl.constexpr):
    """Write the log-probability of the rest of the target after each vertex and number of tokens."""
    graph = tl.program_id(0).to(tl.int64)
    length, tokens = tl.load(lengths + graph), tl.load(target_lengths + graph)
    transitions += graph * L * L
    step = tl.num_programs(0).to(tl.int64) * L
    emissions += graph * U * L + (tokens - 1) * L
    rests += graph * L + tokens * step
    vertex = tl.arange(0, BLOCK)
    for first in range(0, length, BLOCK):
        i = first + vertex
        tl.store(rests + i, tl.load(transitions + i * L + length - 1, mask=i < length), mask=i < length)
    tl.debug_barrier()
    for _ in range(tokens):
        for first in range(0, length, BLOCK):
            i = first + vertex
            highest = tl.full([BLOCK], LOG_ZERO, tl.float32)
            total = tl.zeros([BLOCK], tl.float32)
            for start in range(first, length, BLOCK):  # paths lead to later vertices
                j = start + vertex
                inside = (i < length)[:, None] & (j < length)[None, :]
                edge = tl.load(transitions + i[:, None] * L + j[None, :], mask=inside, other=LOG_ZERO)
                onward = tl.load(emissions + j, mask=j < length, other=LOG_ZERO)
                onward += tl.load(rests + j, mask=j < length, other=LOG_ZERO)
                x = edge + onward[None, :]
                maximum = tl.maximum(highest, tl.max(x, 1))
                total = total * tl.exp(highest - maximum) + tl.sum(tl.exp(x - maximum[:, None]), 1)
                highest = maximum
            tl.store(rests - step + i, highest + tl.log(tl.maximum(total, TINY)), mask=i < length)
        tl.debug_barrier()
        rests -= step
        emissions -= L


@triton.jit(do_not_specialize=["L", "U"])
def edge_posteriors(
    emissions, transitions, lengths, target_lengths, reached, rests, totals, edges, L, U,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Write the probability that a path of the target uses each transition; one program per graph and two blocks."""
    graph = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    length, tokens = tl.load(lengths + graph), tl.load(target_lengths + graph)
    total = tl.load(totals + graph)
    place = graph * L * L + i.to(tl.int64)[:, None] * L + j[None, :]
    posterior = tl.zeros([BLOCK, BLOCK], tl.float32)
    if tl.program_id(1) <= tl.program_id(2):  # otherwise all transitions lead backwards
        inside = (i < length)[:, None] & (j < length)[None, :]
        edge = tl.load(transitions + place, mask=inside, other=LOG_ZERO) - total
        step = tl.num_programs(0).to(tl.int64) * L
        emissions += graph * U * L
        reached += graph * L
        rests += graph * L + step
        for _ in range(tokens):
            onward = tl.load(emissions + j, mask=j < length, other=LOG_ZERO)
            onward += tl.load(rests + j, mask=j < length, other=LOG_ZERO)
            x = tl.load(reached + i, mask=i < length, other=LOG_ZERO)[:, None] + edge + onward[None, :]
            posterior += tl.exp(x)
            reached += step
            rests += step
            emissions += L
        x = tl.load(reached + i, mask=i < length, other=LOG_ZERO)[:, None] + edge
        posterior += tl.where((j == length - 1)[None, :], tl.exp(x), 0.0)
    tl.store(edges + place, posterior, mask=(i < L)[:, None] & (j < L)[None, :])
