"""`Launcher`: the board's step as two kernels, in place of some seventy small operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.ops.dispatch import KERNELS_ENABLED, on_device

if TYPE_CHECKING:
    from regard.decoding.cuda_graph.beam import Board

ENABLED = KERNELS_ENABLED
WIDEST = 8
"""The widest beam: one program looks at all candidates of a sentence at once."""
PART = 2048
"""How many logits of a hypothesis a program looks at."""


def usable(device: torch.device, beam: int) -> bool:
    """Whether the kernels take a beam of this width on this device."""
    return ENABLED and device.type == "cuda" and beam <= WIDEST


class Launcher:
    """Does what `Board._advance` does.

    Args:
        board: whose hypotheses are advanced.
        vocabulary: how many logits a hypothesis has.
        part: how many of them a program looks at, `PART` unless given.
    """

    def __init__(self, board: Board, vocabulary: int, part: int | None = None) -> None:
        self.board, self.vocabulary = board, vocabulary
        B, K, _, _ = board.shape
        self.part = PART if part is None else part
        self.parts = -(-vocabulary // self.part)
        self.room = _power(2 * K)
        device = board.lines.device
        slots = (B * K, self.parts + 1, self.room)
        self.values = torch.full(slots, -math.inf, device=device)  # unused slots stay so
        self.tokens = torch.zeros(slots, dtype=torch.int32, device=device)
        self.peaks = torch.zeros(B * K, self.parts, device=device)
        self.sums = torch.zeros_like(self.peaks)

    def advance(self, logits: Tensor) -> None:
        """One token more for every hypothesis, given the logits of all tokens, (B, K, V)."""
        from regard.ops.triton import beam_step as board_triton

        board, found = self.board, (self.values, self.tokens, self.peaks, self.sums)
        B, K, _, T = board.shape
        rows = logits.reshape(B * K, self.vocabulary)
        with on_device(rows):
            board_triton.scan[(B * K, self.parts)](
                rows, *found, board.news, rows.stride(0), self.vocabulary, board.eos, self.parts,
                C=min(2 * K, self.part), CP=self.room, W=self.part, num_warps=2,
            )  # fmt: skip
            board_triton.advance[(B,)](
                *found, board.step, board.totals, board.lines, board.tokens, board.gains, board.last,
                board.worth, board.lengths, board.end_gains, board.limits, board.limit_normaliser, board.normaliser,
                board.shortest, board.decisive, board.when_full.view(torch.uint8), board.news,
                board.eos, self.parts, T,
                K=K, KP=_power(K), CP=self.room, GP=_power(self.parts),
                N=_power(K * (self.parts + 1) * self.room), TP=64, num_warps=4,
            )  # fmt: skip
        board.step += 1


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()
