"""One step of beam search as two kernels instead of about seventy small operations."""

import math
from typing import Any

import torch
from torch import Tensor

from regard.ops import dispatch

MAX_BEAM_WIDTH = 8
"""A kernel program holds all candidates of a sentence."""
CHUNK = 2048
"""Number of logits that a kernel program scans."""


def beam_kernels_apply(device: torch.device, beam_width: int) -> bool:
    """Return whether kernels advance a beam of this width."""
    return dispatch.kernels_available(device) and beam_width <= MAX_BEAM_WIDTH


class BeamKernels:
    """Kernels that compute the same as `BeamState.advance_reference`.

    Args:
        beam: A `regard.decoding.cuda_graph.beam.BeamState`.
        vocabulary: Number of logits per hypothesis.
        chunk: Number of logits that a program scans; `CHUNK` by default.
    """

    def __init__(self, beam: Any, vocabulary: int, chunk: int | None = None) -> None:
        self.beam, self.vocabulary = beam, vocabulary
        self.chunk = CHUNK if chunk is None else chunk
        B, K, _ = beam.shape
        self.chunks = -(-vocabulary // self.chunk)
        self.slots = _next_power_of_two(2 * K)
        device = beam.slots.device
        size = (B * K, self.chunks + 1, self.slots)
        self.values = torch.full(size, -math.inf, device=device)  # unused slots remain -inf
        self.tokens = torch.zeros(size, dtype=torch.int32, device=device)
        self.maxima = torch.zeros(B * K, self.chunks, device=device)
        self.sums = torch.zeros_like(self.maxima)

    def advance(self, logits: Tensor) -> None:
        """Append a token to every hypothesis, given the logits of the next tokens, (B, K, V)."""
        from regard.ops.triton import beam_step

        beam, scanned = self.beam, (self.values, self.tokens, self.maxima, self.sums)
        B, K, T = beam.shape
        rows = logits.reshape(B * K, self.vocabulary)
        with dispatch.on_device(rows):
            beam_step.scan[(B * K, self.chunks)](
                rows, *scanned, beam.status, rows.stride(0), self.vocabulary, beam.eos, self.chunks,
                C=min(2 * K, self.chunk), CP=self.slots, W=self.chunk, num_warps=2,
            )  # fmt: skip
            beam_step.advance[(B,)](
                *scanned, beam.step, beam.log_probs, beam.slots, beam.tokens, beam.token_log_probs, beam.last,
                beam.finished_scores, beam.finished_lengths, beam.end_log_probs, beam.max_lengths,
                beam.final_normaliser, beam.normaliser, beam.min_length, beam.decisive_rank,
                beam.stops_when_full.view(torch.uint8), beam.status, beam.eos, self.chunks, T,
                K=K, KP=_next_power_of_two(K), CP=self.slots, GP=_next_power_of_two(self.chunks),
                N=_next_power_of_two(K * (self.chunks + 1) * self.slots), TP=64, num_warps=4,
            )  # fmt: skip
        beam.step += 1


def _next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()
