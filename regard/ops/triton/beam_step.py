"""Kernels of `BeamState.advance`: `scan` reads every logit once, `advance` updates the beam of a sentence.

Shapes: K hypotheses per sentence, W logits per chunk, G chunks, C candidates per chunk; END has a chunk of its own
after the last one. Names that end in P are the next power of two.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["row_stride", "V", "eos", "G"])
def scan(
    logits, values, tokens, maxima, sums, status, row_stride, V, eos, G,
    C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """Reduce a chunk of the logits of a hypothesis to what `advance` needs: its program ids are the two indices.

    Stores the C largest logits without END and their tokens, (hypotheses, G + 1, CP), the logit of END in the last
    chunk of these, and the maximum and the sum of exponentials of the chunk with END, (hypotheses, G).
    """
    hypothesis, chunk = tl.program_id(0), tl.program_id(1)
    if (hypothesis == 0) & (chunk == 0):
        tl.store(status, 0)  # `advance` counts undecided sentences
    lane = tl.arange(0, W)
    token = chunk * W + lane
    row = logits + hypothesis.to(tl.int64) * row_stride
    logit = tl.load(row + token, mask=token < V, other=float("-inf")).to(tl.float32)
    maximum = tl.max(logit, 0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)
    tl.store(maxima + hypothesis * G + chunk, maximum)
    tl.store(sums + hypothesis * G + chunk, tl.sum(tl.exp(logit - shift), 0))
    if (eos >= chunk * W) & (eos < (chunk + 1) * W):
        slot = (hypothesis * (G + 1) + G) * CP
        tl.store(values + slot, tl.sum(tl.where(token == eos, logit, 0.0), 0))
        tl.store(tokens + slot, eos)
    logit = tl.where(token == eos, float("-inf"), logit)
    for candidate in tl.static_range(C):
        value, index = tl.max(logit, 0, return_indices=True)
        slot = (hypothesis * (G + 1) + chunk) * CP + candidate
        tl.store(values + slot, value)
        tl.store(tokens + slot, tl.minimum(chunk * W + index, V - 1))
        logit = tl.where(lane == index, float("-inf"), logit)


@triton.jit(do_not_specialize=["eos", "G", "T"])
def advance(
    values, tokens, maxima, sums, step, log_probs, slots, stored_tokens, stored_log_probs, last,
    finished_scores, finished_lengths, end_log_probs, max_lengths, final_normaliser, normaliser,
    min_length, decisive_rank, stops_when_full, status, eos, G, T,
    K: tl.constexpr, KP: tl.constexpr, CP: tl.constexpr, GP: tl.constexpr, N: tl.constexpr, TP: tl.constexpr
):  # fmt: skip
    """Append a token to every hypothesis of a sentence, like `BeamState.advance_reference`."""
    b = tl.program_id(0)
    now = tl.load(step) + 1
    k = tl.arange(0, KP)
    valid = k < K
    minus_inf = float("-inf")

    # log-sum-exp of each hypothesis
    g = tl.arange(0, GP)
    chunk = (b * K + k)[:, None] * G + g[None, :]
    chunk_valid = valid[:, None] & (g < G)[None, :]
    chunk_max = tl.load(maxima + chunk, mask=chunk_valid, other=minus_inf)
    maximum = tl.max(chunk_max, 1)
    maximum = tl.where(maximum == minus_inf, 0.0, maximum)
    total = tl.sum(tl.load(sums + chunk, mask=chunk_valid, other=0.0) * tl.exp(chunk_max - maximum[:, None]), 1)
    lse = maximum + tl.log(tl.where(valid, total, 1.0))
    nan_found = tl.max((valid & ((lse != lse) | (total == 0.0))).to(tl.int32), 0)

    # all candidates that the length constraints allow
    per_hypothesis = (G + 1) * CP
    lane = tl.arange(0, N)
    lane_valid = lane < K * per_hypothesis
    token = tl.load(tokens + b * K * per_hypothesis + lane, mask=lane_valid, other=0)
    token_log_prob = tl.load(values + b * K * per_hypothesis + lane, mask=lane_valid, other=minus_inf)
    previous = tl.load(log_probs + b * K + k, mask=valid, other=minus_inf)
    log_prob = tl.full([N], minus_inf, tl.float64)
    hypothesis = lane // per_hypothesis
    for i in tl.static_range(K):
        of_i = hypothesis == i
        token_log_prob = tl.where(of_i, token_log_prob - tl.sum(tl.where(k == i, lse, 0.0), 0), token_log_prob)
        log_prob = tl.where(of_i, tl.sum(tl.where(k == i, previous, 0.0), 0), log_prob)
    at_limit = tl.load(max_lengths + b) == now
    too_short = now <= tl.load(min_length)
    is_end = token == eos
    token_log_prob = tl.where((is_end & too_short) | ((token != eos) & at_limit), minus_inf, token_log_prob)
    log_prob = log_prob + token_log_prob.to(tl.float64)

    # the best 2K candidates: of the first K those that end, and the best K others
    live = 0
    new_log_prob = tl.full([KP], minus_inf, tl.float64)
    new_origin = tl.zeros([KP], tl.int32)
    new_token = tl.zeros([KP], tl.int64)
    new_token_log_prob = tl.full([KP], minus_inf, tl.float32)
    score = tl.full([KP], minus_inf, tl.float64)
    score_origin = tl.zeros([KP], tl.int32)
    score_end_log_prob = tl.full([KP], minus_inf, tl.float32)
    divisor = tl.load(normaliser + now)
    for n in tl.static_range(2 * K):
        best, index = tl.max(log_prob, 0, return_indices=True)
        chosen = lane == index
        best_token = tl.sum(tl.where(chosen, token, 0), 0)
        best_token_log_prob = tl.sum(tl.where(chosen, token_log_prob, 0.0), 0)
        origin = index // per_hypothesis
        log_prob = tl.where(chosen, minus_inf, log_prob)
        survives = (best_token != eos) & (live < K)
        slot = (k == live) & survives
        new_log_prob = tl.where(slot, best, new_log_prob)
        new_origin = tl.where(slot, origin, new_origin)
        new_token = tl.where(slot, best_token.to(tl.int64), new_token)
        new_token_log_prob = tl.where(slot, best_token_log_prob, new_token_log_prob)
        live += survives.to(tl.int32)
        if n < K:
            slot = (k == n) & (best_token == eos)
            score = tl.where(slot, best / divisor, score)
            score_origin = tl.where(slot, origin, score_origin)
            score_end_log_prob = tl.where(slot, best_token_log_prob, score_end_log_prob)

    # the best K finished hypotheses
    old_score = tl.load(finished_scores + b * K + k, mask=valid, other=minus_inf)
    old_length = tl.load(finished_lengths + b * K + k, mask=valid, other=0)
    old_end_log_prob = tl.load(end_log_probs + b * K + k, mask=valid, other=0.0)
    new_score = tl.full([KP], minus_inf, tl.float64)
    finished_origin = tl.zeros([KP], tl.int32)
    new_length = tl.zeros([KP], tl.int64)
    new_end_log_prob = tl.zeros([KP], tl.float32)
    for n in tl.static_range(K):
        best_old, old_index = tl.max(old_score, 0, return_indices=True)
        best_new, new_index = tl.max(score, 0, return_indices=True)
        is_new = tl.where(best_new > best_old, 1, 0) > 0  # the interpreter cannot broadcast the comparison itself
        from_old, from_new = (k == old_index) & (is_new == 0), (k == new_index) & is_new
        slot = k == n
        origin = tl.sum(tl.where(k == new_index, score_origin, 0), 0)
        length = tl.sum(tl.where(k == old_index, old_length, 0), 0)
        old_end = tl.sum(tl.where(k == old_index, old_end_log_prob, 0.0), 0)
        new_end = tl.sum(tl.where(k == new_index, score_end_log_prob, 0.0), 0)
        new_score = tl.where(slot, tl.maximum(best_old, best_new), new_score)
        finished_origin = tl.where(slot, tl.where(is_new, origin, K + old_index), finished_origin)
        new_length = tl.where(slot, tl.where(is_new, now, length), new_length)
        new_end_log_prob = tl.where(slot, tl.where(is_new, new_end, old_end), new_end_log_prob)
        old_score = tl.where(from_old, minus_inf, old_score)
        score = tl.where(from_new, minus_inf, score)

    # whether the sentence is decided
    best_live = tl.max(new_log_prob, 0)
    decisive = tl.sum(tl.where(k == tl.load(decisive_rank), new_score, 0.0), 0)
    unbeatable = (tl.load(stops_when_full) != 0) | (decisive >= best_live / tl.load(final_normaliser + b))
    decided = (best_live == minus_inf) | ((decisive > minus_inf) & unbeatable)
    new_log_prob = tl.where(decided, minus_inf, new_log_prob)
    tl.atomic_add(status, 1 - decided.to(tl.int64))
    if nan_found > 0:
        tl.store(status + 1, 1)

    tl.debug_barrier()  # all reads are done
    tl.store(log_probs + b * K + k, new_log_prob, mask=valid)
    tl.store(last + b * K + k, new_token, mask=valid)
    tl.store(stored_tokens + (b * (T + 1) + now) * K + k, new_token, mask=valid)
    tl.store(stored_log_probs + (b * (T + 1) + now) * K + k, new_token_log_prob, mask=valid)
    tl.store(finished_scores + b * K + k, new_score, mask=valid)
    tl.store(finished_lengths + b * K + k, new_length, mask=valid)
    tl.store(end_log_probs + b * K + k, new_end_log_prob, mask=valid)
    row = slots + b.to(tl.int64) * 2 * K * (T + 1)
    for start in range(0, now + 1, TP):
        t = start + tl.arange(0, TP)
        reached = valid[:, None] & (t <= now)[None, :]
        live_slots = tl.load(row + new_origin[:, None] * (T + 1) + t[None, :], mask=reached, other=0)
        finished_slots = tl.load(row + finished_origin[:, None] * (T + 1) + t[None, :], mask=reached, other=0)
        live_slots = tl.where((t == now)[None, :], k[:, None], live_slots)
        tl.debug_barrier()
        tl.store(row + k[:, None] * (T + 1) + t[None, :], live_slots, mask=reached)
        tl.store(row + (K + k)[:, None] * (T + 1) + t[None, :], finished_slots, mask=reached)
        tl.debug_barrier()
