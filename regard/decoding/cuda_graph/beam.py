"""Beam search in static tensors on the device: the arithmetic of `regard.decoding.beam`, without a copy to the host.

A token is stored once, in the slot that its hypothesis had at that step. A hypothesis is a sequence of slots, one for
each step, and reordering hypotheses moves only their slots. The slots of finished hypotheses follow those of live ones.

Shapes: B sentences, K hypotheses per sentence, T steps, V vocabulary, C candidates per hypothesis, N per sentence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decoding.beam import top_k
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.ops import dispatch

ROW_TENSORS = (
    "slots", "tokens", "token_log_probs", "last", "log_probs", "finished_scores", "finished_lengths", "end_log_probs",
    "max_lengths", "final_normaliser",
)  # fmt: skip
SHARED_TENSORS = ("step", "normaliser", "min_length", "decisive_rank", "stops_when_full", "status")

MAX_KERNEL_BEAM_WIDTH = 8
"""A kernel program holds all candidates of a sentence."""
CHUNK = 2048
"""Number of logits that a kernel program scans."""


class BeamState:
    """The hypotheses of a search of fixed shape. Step 0 of a hypothesis is BOS.

    Attributes:
        step: Number of finished steps, (1,).
        slots: Slot of the token of each step, for K live and K finished hypotheses, (B, 2K, T + 1).
        tokens: Token in each slot, (B, T + 1, K).
        token_log_probs: Their log-probabilities.
        last: Last token of each live hypothesis, (B, K).
        log_probs: Cumulative log-probability of each live hypothesis, (B, K).
        finished_scores: Scores of finished hypotheses, best first, (B, K).
        finished_lengths: Their lengths, END included.
        end_log_probs: Log-probability of END in each of them.
        max_lengths: Maximum length of each sentence, (B,).
        final_normaliser: Length normaliser of the maximum length, (B,).
        normaliser: Length normaliser of each length, (T + 1,).
        min_length: Minimum length, (1,).
        decisive_rank: Index of the finished hypothesis whose score decides a sentence, (1,).
        stops_when_full: Whether a sentence is decided once that hypothesis has finished, (1,).
        status: Number of undecided sentences, and whether NaN was found, (2,).
    """

    def __init__(
        self, sentences: int, beam_width: int, steps: int, bos: int, eos: int, vocabulary: int, device: torch.device
    ) -> None:
        B, K, T = self.shape = (sentences, beam_width, steps)
        self.bos, self.eos = bos, eos

        def zeros(*size: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.step = zeros(1)
        self.slots = zeros(B, 2 * K, T + 1, dtype=torch.int32)
        self.tokens = zeros(B, T + 1, K)
        self.token_log_probs = zeros(B, T + 1, K, dtype=torch.float32)
        self.last = zeros(B, K)
        self.log_probs = zeros(B, K, dtype=torch.float64)
        self.finished_scores = zeros(B, K, dtype=torch.float64)
        self.finished_lengths = zeros(B, K)
        self.end_log_probs = zeros(B, K, dtype=torch.float32)
        self.max_lengths = zeros(B)
        self.final_normaliser = zeros(B, dtype=torch.float64)
        self.normaliser = zeros(T + 1, dtype=torch.float64)
        self.min_length = zeros(1)
        self.decisive_rank = zeros(1)
        self.stops_when_full = zeros(1, dtype=torch.bool)
        self.status = zeros(2)
        self._slot = torch.arange(K, device=device, dtype=torch.int32)
        self.kernels = BeamKernels(self, vocabulary, CHUNK) if beam_kernels_apply(device, K) else None

    def start(self, max_lengths: Tensor, settings: SearchSettings) -> None:
        """Start a search; rows without a sentence are decided."""
        (_, K, T), n = self.shape, len(max_lengths)
        self.step.zero_()
        self.status.zero_()
        self.last.fill_(self.bos)
        self.slots[:, :K, 0] = self._slot
        # All hypotheses start equal, so only the first is extended in the first step.
        self.log_probs.fill_(-math.inf)
        self.log_probs[:n, 0] = 0
        self.finished_scores.fill_(-math.inf)
        self.max_lengths.fill_(T)
        self.max_lengths[:n] = max_lengths
        self.final_normaliser.copy_(settings.length_normaliser(self.max_lengths.double()))
        lengths = torch.arange(T + 1, device=max_lengths.device).clamp(min=1)
        self.normaliser.copy_(settings.length_normaliser(lengths.double()))
        self.min_length.fill_(settings.min_length)
        self.stops_when_full.fill_(settings.stops_when_full)
        self.decisive_rank.fill_(K - 1 if settings.stops_when_full else settings.n_best - 1)

    @property
    def live_slots(self) -> Tensor:
        """Slots of live hypotheses, (B, K, T), without END."""
        _, K, T = self.shape
        return self.slots[:, :K, :T]

    def advance(self, logits: Tensor) -> None:
        """Append a token to every hypothesis, given the logits of the next tokens, (B, K, V)."""
        if self.kernels is None:
            self.advance_reference(logits)
        else:
            self.kernels.advance(logits)

    def advance_reference(self, logits: Tensor) -> None:
        """`advance` as PyTorch operations."""
        B, K, T = self.shape
        token_log_prob, token = self._candidates(logits)
        C = token.shape[2]
        log_prob, index = (self.log_probs[:, :, None] + token_log_prob).flatten(1).topk(min(2 * K, K * C), 1)
        origin, token = index // C, token.flatten(1).gather(1, index)
        token_log_prob = token_log_prob.flatten(1).gather(1, index)
        is_end = token == self.eos
        live, survivor = log_prob.masked_fill(is_end, -math.inf).topk(K, 1)
        # Only the first K may finish: others would not have been kept in the beam either.
        score = log_prob[:, :K] / self.normaliser.index_select(0, self.step + 1)
        score = score.masked_fill(~is_end[:, :K], -math.inf)
        best, rank = torch.cat((self.finished_scores, score), 1).topk(K, 1)
        self.finished_scores.copy_(best)

        now = self.step + 1
        finished_origin = torch.cat(((self._slot + K).expand(B, K), origin[:, :K]), 1).gather(1, rank)
        origins = torch.cat((origin.gather(1, survivor), finished_origin), 1)
        self.slots.copy_(self.slots.gather(1, origins[:, :, None].expand(-1, -1, T + 1)))
        self.slots[:, :K].index_copy_(2, now, self._slot[:, None].expand(B, K, 1))
        self.last.copy_(token.gather(1, survivor))
        self.tokens.index_copy_(1, now, self.last[:, None])
        self.token_log_probs.index_copy_(1, now, token_log_prob.gather(1, survivor)[:, None])
        self.finished_lengths.copy_(torch.cat((self.finished_lengths, now.expand(B, K)), 1).gather(1, rank))
        self.end_log_probs.copy_(torch.cat((self.end_log_probs, token_log_prob[:, :K]), 1).gather(1, rank))

        decided = self._decided(live[:, 0])
        self.log_probs.copy_(live.masked_fill(decided[:, None], -math.inf))  # decided sentences are never extended
        nan_found = log_prob[:, 0].isnan().any() | (self.status[1] > 0)
        self.status.copy_(torch.stack(((~decided).sum(), nan_found)))
        self.step.copy_(now)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable tokens of each hypothesis and their log-probabilities, (B, K, C) each.

        END is excluded before the minimum length, and all other tokens are at the maximum length.
        """
        B, K, V = logits.shape
        log_probs = logits.float().log_softmax(-1)
        end = log_probs[..., self.eos]
        end.masked_fill_(self.step < self.min_length, -math.inf)
        values, tokens = (x.view(B, K, -1) for x in top_k(log_probs.flatten(0, 1), min(2 * K, V)))
        at_limit = (self.max_lengths == self.step + 1)[:, None, None]
        only_end = torch.full_like(values, -math.inf)
        only_end[..., 0] = end
        return torch.where(at_limit, only_end, values), tokens.masked_fill(at_limit, self.eos)

    def _decided(self, best: Tensor) -> Tensor:
        """Return whether each sentence is decided, given its best live log-probability, (B,)."""
        decisive = self.finished_scores.index_select(1, self.decisive_rank)[:, 0]
        unbeatable = self.stops_when_full | (decisive >= best / self.final_normaliser)
        return (best == -math.inf) | ((decisive > -math.inf) & unbeatable)

    def undecided(self) -> Tensor:
        """Return the rows of undecided sentences."""
        return (self.log_probs[:, 0] != -math.inf).nonzero()[:, 0]

    def copy_rows(self, other: BeamState, rows: Tensor) -> None:
        """Continue with the given rows of another state; the remaining rows are decided."""
        for name in SHARED_TENSORS:
            getattr(self, name).copy_(getattr(other, name))
        for name in ROW_TENSORS:
            getattr(self, name)[: len(rows)] = getattr(other, name)[rows]
        self.log_probs[len(rows) :] = -math.inf

    def collect(self, rows: Sequence[int], n_best: int) -> list[list[TokenHypothesis]]:
        """Return the best finished hypotheses of the given rows, best first."""
        index = torch.tensor(rows, dtype=torch.long, device=self.slots.device)
        columns = (
            self._follow_slots(self.tokens, index, n_best),
            self._follow_slots(self.token_log_probs, index, n_best),
            self.end_log_probs[index, :n_best],
            self.finished_lengths[index, :n_best],
            self.finished_scores[index, :n_best],
        )
        return [
            [
                TokenHypothesis(tokens[1:length], score, [*log_probs[1:length], end_log_prob])  # step 0 is BOS
                for tokens, log_probs, end_log_prob, length, score in zip(*sentence, strict=True)
                if score > -math.inf  # otherwise, fewer hypotheses have finished
            ]
            for sentence in zip(*(column.tolist() for column in columns), strict=True)
        ]

    def _follow_slots(self, stored: Tensor, rows: Tensor, n_best: int) -> Tensor:
        """Return what is stored in the slots, (B, T + 1, K), for the best finished hypotheses, (rows, n_best, T)."""
        _, K, T = self.shape
        slots = self.slots[rows, K : K + n_best, :T].long()  # those of finished hypotheses follow K live ones
        by_step = stored[rows, None, :T].expand(-1, n_best, -1, -1)
        return by_step.gather(3, slots[..., None])[..., 0]


def beam_kernels_apply(device: torch.device, beam_width: int) -> bool:
    """Return whether kernels advance a beam of this width."""
    return dispatch.kernels_available(device) and beam_width <= MAX_KERNEL_BEAM_WIDTH


class BeamKernels:
    """`BeamState.advance_reference` as two kernels instead of about seventy small operations.

    A program of the first kernel scans `chunk` of the `vocabulary` logits of a hypothesis.
    """

    def __init__(self, beam: BeamState, vocabulary: int, chunk: int) -> None:
        self.beam, self.vocabulary, self.chunk = beam, vocabulary, chunk
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
