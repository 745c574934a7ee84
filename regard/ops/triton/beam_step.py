"""The kernels of `Board.advance`: `scan` looks at every logit once, `advance` settles a sentence with what it found.

Shapes: K hypotheses a sentence, C candidates of each part of a hypothesis's logits, W logits a part, G parts; END
stands behind the last part as one of its own. What ends in P is the next power of two.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["l_r", "V", "eos", "G"])
def scan(
    logits, values, tokens, peaks, sums, news, l_r, V, eos, G, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """The highest logits of a part, END's apart, and what the sum of all probabilities is made of."""
    row, g = tl.program_id(0), tl.program_id(1)
    if (row == 0) & (g == 0):
        tl.store(news, 0)  # for `advance` to count anew
    lane = tl.arange(0, W)
    at = g * W + lane
    x = tl.load(logits + row.to(tl.int64) * l_r + at, mask=at < V, other=float("-inf")).to(tl.float32)
    peak = tl.max(x, 0)
    tl.store(peaks + row * G + g, peak)
    tl.store(sums + row * G + g, tl.sum(tl.exp(x - tl.where(peak == float("-inf"), 0.0, peak)), 0))
    if (eos >= g * W) & (eos < (g + 1) * W):
        place = (row * (G + 1) + G) * CP
        tl.store(values + place, tl.sum(tl.where(at == eos, x, 0.0), 0))
        tl.store(tokens + place, eos)
    x = tl.where(at == eos, float("-inf"), x)
    for c in tl.static_range(C):
        value, which = tl.max(x, 0, return_indices=True)
        place = (row * (G + 1) + g) * CP + c
        tl.store(values + place, value)
        tl.store(tokens + place, tl.minimum(g * W + which, V - 1))
        x = tl.where(lane == which, float("-inf"), x)


@triton.jit(do_not_specialize=["eos", "G", "T"])
def advance(
    values, tokens, peaks, sums, step, totals, lines, said, gains, last, worth, lengths, end_gains,
    limits, limit_normaliser, normaliser, shortest, decisive, when_full, news, eos, G, T,
    K: tl.constexpr, KP: tl.constexpr, CP: tl.constexpr, GP: tl.constexpr, N: tl.constexpr, TP: tl.constexpr,
):  # fmt: skip
    """One token more for every hypothesis of a sentence, as `Board._advance` reads."""
    b = tl.program_id(0)
    now = tl.load(step) + 1
    k = tl.arange(0, KP)
    here = k < K
    nothing = float("-inf")

    # What each hypothesis's logits are to be lessened by.
    g = tl.arange(0, GP)
    part = (b * K + k)[:, None] * G + g[None, :]
    there = here[:, None] & (g < G)[None, :]
    peak = tl.load(peaks + part, mask=there, other=nothing)
    high = tl.max(peak, 1)
    high = tl.where(high == nothing, 0.0, high)
    of_all = tl.sum(tl.load(sums + part, mask=there, other=0.0) * tl.exp(peak - high[:, None]), 1)
    lse = high + tl.log(tl.where(here, of_all, 1.0))
    broken = tl.max((here & ((lse != lse) | (of_all == 0.0))).to(tl.int32), 0)

    # All candidates, as the rules allow.
    each = (G + 1) * CP
    lane = tl.arange(0, N)
    mine = lane < K * each
    token = tl.load(tokens + b * K * each + lane, mask=mine, other=0)
    gain = tl.load(values + b * K * each + lane, mask=mine, other=nothing)
    before = tl.load(totals + b * K + k, mask=here, other=nothing)
    total = tl.full([N], nothing, tl.float64)
    hypothesis = lane // each
    for i in tl.static_range(K):
        gain = tl.where(hypothesis == i, gain - tl.sum(tl.where(k == i, lse, 0.0), 0), gain)
        total = tl.where(hypothesis == i, tl.sum(tl.where(k == i, before, 0.0), 0), total)
    at_limit = tl.load(limits + b) == now
    too_short = now <= tl.load(shortest)
    is_end = token == eos
    gain = tl.where((is_end & too_short) | ((token != eos) & at_limit), nothing, gain)
    total = total + gain.to(tl.float64)

    # The best 2K: those that end, of the first K, and the K best others.
    alive = 0
    new_total = tl.full([KP], nothing, tl.float64)
    new_parent = tl.zeros([KP], tl.int32)
    new_token = tl.zeros([KP], tl.int64)
    new_gain = tl.full([KP], nothing, tl.float32)
    score = tl.full([KP], nothing, tl.float64)
    score_parent = tl.zeros([KP], tl.int32)
    score_gain = tl.full([KP], nothing, tl.float32)
    divisor = tl.load(normaliser + now)
    for n in tl.static_range(2 * K):
        best, which = tl.max(total, 0, return_indices=True)
        chosen = lane == which
        its_token = tl.sum(tl.where(chosen, token, 0), 0)
        its_gain = tl.sum(tl.where(chosen, gain, 0.0), 0)
        parent = which // each
        total = tl.where(chosen, nothing, total)
        lives = (its_token != eos) & (alive < K)
        spot = (k == alive) & lives
        new_total = tl.where(spot, best, new_total)
        new_parent = tl.where(spot, parent, new_parent)
        new_token = tl.where(spot, its_token.to(tl.int64), new_token)
        new_gain = tl.where(spot, its_gain, new_gain)
        alive += lives.to(tl.int32)
        if n < K:
            spot = (k == n) & (its_token == eos)
            score = tl.where(spot, best / divisor, score)
            score_parent = tl.where(spot, parent, score_parent)
            score_gain = tl.where(spot, its_gain, score_gain)

    # The best K of all that have ended.
    old = tl.load(worth + b * K + k, mask=here, other=nothing)
    old_length = tl.load(lengths + b * K + k, mask=here, other=0)
    old_gain = tl.load(end_gains + b * K + k, mask=here, other=0.0)
    new_worth = tl.full([KP], nothing, tl.float64)
    origin = tl.zeros([KP], tl.int32)
    new_length = tl.zeros([KP], tl.int64)
    new_end_gain = tl.zeros([KP], tl.float32)
    for n in tl.static_range(K):
        best_old, which_old = tl.max(old, 0, return_indices=True)
        best_new, which_new = tl.max(score, 0, return_indices=True)
        fresh = tl.where(best_new > best_old, 1, 0) > 0  # the interpreter cannot spread the comparison itself
        from_old, from_new = (k == which_old) & (fresh == 0), (k == which_new) & fresh
        spot = k == n
        parent = tl.sum(tl.where(k == which_new, score_parent, 0), 0)
        length = tl.sum(tl.where(k == which_old, old_length, 0), 0)
        gain_old = tl.sum(tl.where(k == which_old, old_gain, 0.0), 0)
        gain_new = tl.sum(tl.where(k == which_new, score_gain, 0.0), 0)
        new_worth = tl.where(spot, tl.maximum(best_old, best_new), new_worth)
        origin = tl.where(spot, tl.where(fresh, parent, K + which_old), origin)
        new_length = tl.where(spot, tl.where(fresh, now, length), new_length)
        new_end_gain = tl.where(spot, tl.where(fresh, gain_new, gain_old), new_end_gain)
        old = tl.where(from_old, nothing, old)
        score = tl.where(from_new, nothing, score)

    # Whether anything can still change.
    alive_best = tl.max(new_total, 0)
    settled = tl.sum(tl.where(k == tl.load(decisive), new_worth, 0.0), 0)
    beyond_reach = (tl.load(when_full) != 0) | (settled >= alive_best / tl.load(limit_normaliser + b))
    decided = (alive_best == nothing) | ((settled > nothing) & beyond_reach)
    new_total = tl.where(decided, nothing, new_total)
    tl.atomic_add(news, 1 - decided.to(tl.int64))
    if broken > 0:
        tl.store(news + 1, 1)

    tl.debug_barrier()  # everything has been read
    tl.store(totals + b * K + k, new_total, mask=here)
    tl.store(last + b * K + k, new_token, mask=here)
    tl.store(said + (b * (T + 1) + now) * K + k, new_token, mask=here)
    tl.store(gains + (b * (T + 1) + now) * K + k, new_gain, mask=here)
    tl.store(worth + b * K + k, new_worth, mask=here)
    tl.store(lengths + b * K + k, new_length, mask=here)
    tl.store(end_gains + b * K + k, new_end_gain, mask=here)
    line = lines + b.to(tl.int64) * 2 * K * (T + 1)
    for start in range(0, now + 1, TP):
        t = start + tl.arange(0, TP)
        reached = here[:, None] & (t <= now)[None, :]
        living = tl.load(line + new_parent[:, None] * (T + 1) + t[None, :], mask=reached, other=0)
        ended = tl.load(line + origin[:, None] * (T + 1) + t[None, :], mask=reached, other=0)
        living = tl.where((t == now)[None, :], k[:, None], living)
        tl.debug_barrier()
        tl.store(line + k[:, None] * (T + 1) + t[None, :], living, mask=reached)
        tl.store(line + (K + k)[:, None] * (T + 1) + t[None, :], ended, mask=reached)
        tl.debug_barrier()
