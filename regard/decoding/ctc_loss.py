"""The sum over all paths of a target, and its gradient, in which the device is never asked: a recording can have both.

A path passes through states, (B, L): a blank, the first token, a blank, and so on. It is counted from both ends at
once: what leads to a state at a place, times what leads on from there, is all that passes through it, and of the whole
sum that is just the gradient of its log-probability there. So nothing is left to do for a backward pass but a product.

Shapes: B sentences, T places of the canvas, L states, U = (L - 1) / 2 tokens of the longest target.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

FAR = -1e30
"""The logarithm of what never happens: between two infinities there would be no numbers."""


def add_up(emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int) -> Tensor:
    """The log-probability of all paths together, (B,), given each state's at every place, (B, T, L).

    What it says of a target for which the canvas is too short has no meaning.
    """
    found: Tensor = _Sum.apply(emissions, lengths, states, target_lengths, blank)  # type: ignore[no-untyped-call]
    return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, emissions: Tensor, lengths: Tensor, states: Tensor, target_lengths: Tensor, blank: int
    ) -> Tensor:
        B, T, L = emissions.shape
        place = turn(torch.arange(T, device=lengths.device), lengths)
        state = turn(torch.arange(L, device=lengths.device), 2 * target_lengths + 1)
        back = emissions.gather(1, place[..., None].expand(-1, -1, L)).gather(2, state[:, None].expand(-1, T, -1))
        both = torch.cat((emissions, back))
        came, total = _walk(both, lengths.repeat(2), may_skip(torch.cat((states, states.gather(1, state))), blank))
        last = 2 * target_lengths[:, None]
        in_blank, in_token = total[:B].gather(1, last), total[:B].gather(1, (last - 1).clamp(min=0))
        found = torch.logaddexp(in_blank, torch.where(last > 0, in_token, FAR))[:, 0]
        ctx.save_for_backward(emissions, lengths, target_lengths, came, place, state, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        emissions, lengths, target_lengths, came, place, state, found = ctx.saved_tensors
        B, T, L = emissions.shape
        to, on = came.transpose(0, 1).split(B)
        on = on.gather(1, place[..., None].expand(-1, -1, L)).gather(2, state[:, None].expand(-1, T, -1))
        inside = (torch.arange(T, device=lengths.device) < lengths[:, None])[..., None]
        own = (torch.arange(L, device=lengths.device) <= 2 * target_lengths[:, None])[:, None]
        possible = inside & own & (found > FAR / 2)[:, None, None]
        through = (to + emissions + on - found[:, None, None]).masked_fill(~possible, FAR).exp()
        return through * grad[:, None, None], None, None, None, None


def _walk(emissions: Tensor, lengths: Tensor, skips: Tensor) -> tuple[Tensor, Tensor]:
    """What leads to each state at each place before it is said there, (T, B, L); and to each at the end, (B, L)."""
    B, T, L = emissions.shape
    skipping = torch.where(skips, 0.0, FAR).to(emissions.dtype)
    came = emissions.new_empty(T, B, L)
    came[0] = torch.where(torch.arange(L, device=emissions.device) < 2, 0.0, FAR)
    wide = F.pad(came[0] + emissions[:, 0], (2, 0), value=FAR)  # so that a neighbour is a view
    total, before, skipped = wide[:, 2:], wide[:, 1:-1], wide[:, :-2]
    for t in range(1, T):
        come = torch.logaddexp(torch.logaddexp(total, before), skipped + skipping, out=came[t])
        torch.where((t < lengths)[:, None], come + emissions[:, t], total, out=total)
    return came, total


def turn(places: Tensor, counts: Tensor) -> Tensor:
    """The first so many places of every row from behind, (B, N); what follows them stays."""
    return torch.where(places < counts[:, None], counts[:, None] - 1 - places, places)


def may_skip(states: Tensor, blank: int) -> Tensor:
    """Which states may follow another token directly, past the blank between them: not where the two are equal."""
    return (states != blank) & (states != F.pad(states, (2, 0), value=blank)[:, : states.shape[1]])
