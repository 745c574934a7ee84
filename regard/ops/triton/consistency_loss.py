"""Kernel of consistency losses: the logits of two passes become losses and, in place, gradients of the loss."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["N"])
def consistency(
    logits, labels, divergence_weight, terms, N, V, share, smoothing,
    BACKWARD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One program per label, which reads its logits of both passes twice in blocks. A negative label gives zeros.

    Args:
        logits: Logits of both passes, (2, N, V).
        labels: Labels, (N,).
        divergence_weight: Weight of the divergence, ().
        terms: Cross-entropy and divergence of each label, (2, N).
        N: Number of labels.
        V: Vocabulary size.
        share: Share of the second pass in the cross-entropy, and of the divergence from its predictions.
        smoothing: Label smoothing.
    """
    row = tl.program_id(0).to(tl.int64)
    start1, start2 = logits + row * V, logits + (N + row) * V
    label = tl.load(labels + row)
    word = tl.arange(0, BLOCK)
    if label < 0:
        tl.store(terms + row, 0.0)
        tl.store(terms + N + row, 0.0)
        if BACKWARD:
            for first in range(0, V, BLOCK):
                zeros = tl.zeros([BLOCK], logits.dtype.element_ty)
                tl.store(start1 + first + word, zeros, mask=first + word < V)
                tl.store(start2 + first + word, zeros, mask=first + word < V)
    else:
        # Loaded before the row is overwritten: the reductions below wait for these loads.
        label_logit1 = tl.load(start1 + label).to(tl.float32)
        label_logit2 = tl.load(start2 + label).to(tl.float32)
        highest1, highest2 = float("-inf"), float("-inf")
        exp_sum1, exp_sum2 = 0.0, 0.0
        logit_sum = 0.0
        distance1, distance2 = 0.0, 0.0  # sums of differences of logits, weighted with the exponentials of either pass
        for first in range(0, V, BLOCK):
            mask = first + word < V
            z1 = tl.load(start1 + first + word, mask=mask, other=0.0).to(tl.float32)
            z2 = tl.load(start2 + first + word, mask=mask, other=0.0).to(tl.float32)
            difference = z1 - z2
            logit_sum += tl.sum((1 - share) * z1 + share * z2, 0)
            z1, z2 = tl.where(mask, z1, float("-inf")), tl.where(mask, z2, float("-inf"))
            higher1, higher2 = tl.maximum(highest1, tl.max(z1, 0)), tl.maximum(highest2, tl.max(z2, 0))
            exp1, exp2 = tl.exp(z1 - higher1), tl.exp(z2 - higher2)
            shrinkage1, shrinkage2 = tl.exp(highest1 - higher1), tl.exp(highest2 - higher2)
            exp_sum1 = exp_sum1 * shrinkage1 + tl.sum(exp1, 0)
            exp_sum2 = exp_sum2 * shrinkage2 + tl.sum(exp2, 0)
            distance1 = distance1 * shrinkage1 + tl.sum(exp1 * difference, 0)
            distance2 = distance2 * shrinkage2 + tl.sum(exp2 * difference, 0)
            highest1, highest2 = higher1, higher2
        log_sum1, log_sum2 = highest1 + tl.log(exp_sum1), highest2 + tl.log(exp_sum2)
        shift = log_sum1 - log_sum2  # difference of log-probabilities = difference of logits - shift
        kl1, kl2 = distance1 / exp_sum1 - shift, shift - distance2 / exp_sum2
        label_logit = (1 - share) * label_logit1 + share * label_logit2
        log_sum = (1 - share) * log_sum1 + share * log_sum2
        tl.store(terms + row, log_sum - (1 - smoothing) * label_logit - smoothing * logit_sum / V)
        tl.store(terms + N + row, (1 - share) * kl1 + share * kl2)
        if BACKWARD:
            weight = tl.load(divergence_weight).to(tl.float32)
            for first in range(0, V, BLOCK):
                mask = first + word < V
                z1 = tl.load(start1 + first + word, mask=mask, other=0.0).to(tl.float32)
                z2 = tl.load(start2 + first + word, mask=mask, other=0.0).to(tl.float32)
                p, q, ratio = tl.exp(z1 - log_sum1), tl.exp(z2 - log_sum2), z1 - z2 - shift
                target = tl.where(first + word == label, 1 - smoothing, 0.0) + smoothing / V
                dp = (1 - share) * p * (ratio - kl1) + share * (p - q)
                dq = share * q * (-ratio - kl2) + (1 - share) * (q - p)
                gradient1 = (1 - share) * (p - target) + weight * dp
                gradient2 = share * (q - target) + weight * dq
                tl.store(start1 + first + word, gradient1.to(logits.dtype.element_ty), mask=mask)
                tl.store(start2 + first + word, gradient2.to(logits.dtype.element_ty), mask=mask)
