"""Decoding with connectionist temporal classification (CTC): collapsing paths and prefix search.

`regard.ops.ctc` defines paths, targets and their likelihood.

Shapes: B sentences, T positions, V vocabulary, K hypotheses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_EXTENSIONS = 8
"""Minimum number of tokens per position that prefix search appends to its prefixes."""


def collapse(path: list[int], blank: int) -> list[int]:
    """Return the target of a path."""
    return [token for token, _ in groupby(path) if token != blank]


def token_starts(path: Tensor, blank: int) -> Tensor:
    """Mark the positions of paths (B, T) at which a token of the target starts."""
    previous = F.pad(path, (1, 0), value=blank)[:, :-1]
    return (path != blank) & (path != previous)


@dataclass
class _Prefixes:
    """K prefixes per sentence; their probability is split by whether the last position is blank."""

    tokens: Tensor  # (B, K, T)
    lengths: Tensor  # (B, K)
    last: Tensor  # last token, -1 for the empty prefix, (B, K)
    blank: Tensor  # log-probability of the paths that end in a blank, (B, K)
    token: Tensor  # log-probability of the paths that end in the last token, (B, K)

    @property
    def total(self) -> Tensor:
        return torch.logaddexp(self.blank, self.token)


def search_prefixes(log_probs: Tensor, lengths: Tensor, blank: int, beam: int) -> list[list[tuple[list[int], float]]]:
    """Return the `beam` most probable targets of every sentence with their log-probabilities, best first.

    All paths of a target count. A prefix is extended only by the most probable tokens of each position: as many as the
    beam is wide, but at least `MIN_EXTENSIONS`.
    """
    B, T, V = log_probs.shape
    device = log_probs.device
    outside = torch.arange(T, device=device) >= lengths[:, None]
    # A blank of probability 1 after the end of a sequence does not change its prefixes.
    only_blank = torch.full((V,), -math.inf, device=device).index_fill(0, torch.tensor([blank]).to(device), 0.0)
    log_probs = torch.where(outside[..., None], only_blank, log_probs).double()
    prefixes = _Prefixes(
        tokens=torch.full((B, 1, T), blank, device=device),
        lengths=torch.zeros((B, 1), dtype=torch.long, device=device),
        last=torch.full((B, 1), -1, device=device),
        blank=log_probs.new_zeros(B, 1),
        token=log_probs.new_full((B, 1), -math.inf),
    )
    extensions = min(V, max(beam, MIN_EXTENSIONS))
    for t in range(T):
        prefixes = _advance(prefixes, log_probs[:, t], blank, beam, extensions)
    rows = zip(prefixes.tokens.tolist(), prefixes.lengths.tolist(), prefixes.total.tolist(), strict=True)
    return [
        [(tokens[:n], score) for tokens, n, score in zip(*sentence, strict=True) if score > -math.inf]
        for sentence in rows
    ]


def _advance(prefixes: _Prefixes, log_probs: Tensor, blank: int, beam: int, extensions: int) -> _Prefixes:
    """Process one position (B, V): every prefix stays unchanged or is extended by one token."""
    total, K, T = prefixes.total, *prefixes.tokens.shape[1:]
    stay_blank = total + log_probs[:, None, blank]
    repeated = log_probs.gather(1, prefixes.last.clamp(min=0))
    stay_token = prefixes.token + repeated.masked_fill(prefixes.last < 0, -math.inf)
    gain, new = log_probs.index_fill(1, torch.tensor([blank], device=log_probs.device), -math.inf).topk(extensions, 1)
    repeats_last = prefixes.last[..., None] == new[:, None]  # a token repeats only after a blank
    extended = torch.where(repeats_last, prefixes.blank[..., None], total[..., None]) + gain[:, None]  # (B, K, new)
    # An extension that is already in the beam is merged with that prefix.
    parent = _is_parent(prefixes)
    same = parent[..., None] & (prefixes.last[:, None, :, None] == new[:, None, None, :])  # (B, K parent, K child, new)
    merged = torch.where(same, extended[:, :, None], -math.inf).transpose(1, 2).flatten(2).logsumexp(2)
    stay_token = torch.logaddexp(stay_token, merged)
    extended = extended.masked_fill(same.any(2), -math.inf).flatten(1)

    blanks = torch.cat((stay_blank, torch.full_like(extended, -math.inf)), 1)
    tokens = torch.cat((stay_token, extended), 1)
    chosen = torch.logaddexp(blanks, tokens).topk(min(beam, blanks.shape[1]), 1).indices
    stays = chosen < K
    origin = torch.where(stays, chosen, (chosen - K) // extensions)
    token = new.gather(1, ((chosen - K) % extensions).clamp(min=0))
    lengths = prefixes.lengths.gather(1, origin)
    appended = (torch.arange(T, device=log_probs.device) == lengths[..., None]) & ~stays[..., None]
    return _Prefixes(
        tokens=torch.where(appended, token[..., None], prefixes.tokens.gather(1, origin[..., None].expand(-1, -1, T))),
        lengths=lengths + ~stays,
        last=torch.where(stays, prefixes.last.gather(1, origin), token),
        blank=blanks.gather(1, chosen),
        token=tokens.gather(1, chosen),
    )


def _is_parent(prefixes: _Prefixes) -> Tensor:
    """Mark pairs (B, K parent, K child) in which the parent is the child without its last token."""
    parent, child = prefixes.tokens[:, :, None], prefixes.tokens[:, None]
    length = prefixes.lengths[:, :, None]
    inside = torch.arange(prefixes.tokens.shape[2], device=length.device) < length[..., None]
    reachable = (prefixes.total > -math.inf)[:, None]
    return ((parent == child) | ~inside).all(-1) & (length + 1 == prefixes.lengths[:, None]) & reachable
