"""Local attention: each query looks at a neighbourhood, so that the cost grows with the length, not with its square.

It is a window in the mask, and nothing else. The fast paths only avoid the scores that the window would throw away:
queries go in blocks, each against its own and the neighbouring blocks of keys.

Shapes: B batch, H heads, T queries, S keys, D head width; N tokens in n blocks of c, R remainders of the dilation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.cache import KVCache
from regard.attention.core import attend, attention_scores, attention_weights
from regard.attention.kind import CAPACITY, Kind, check_at_least, check_choice
from regard.attention.masks import Mask, Packed, Padded, in_window
from regard.attention.packing import pack_padded, pad_packed, self_attention_rows

LocalPath = Literal["auto", "reference", "dense", "blocks", "flash_varlen"]


@dataclass(frozen=True)
class Local(Kind):
    """Softmax attention within a window; the mask's own rules, such as causality, hold beside it.

    Args:
        before: how many keys before its own place a query sees.
        after: how many behind it.
        dilation: distance from one of these to the next: 2 leaves out every second.
        global_tokens: how many tokens at the beginning of a sequence see all others and are seen by all.
        scale: factor on the scores; 1/√D unless given.
        path: "auto" takes the fastest that fits; a named path is for tests and benchmarks.
    """

    before: int
    after: int
    dilation: int = 1
    global_tokens: int = 0
    scale: float | None = None
    path: LocalPath = "auto"

    def __post_init__(self) -> None:
        for name, least in (("before", 0), ("after", 0), ("dilation", 1), ("global_tokens", 0)):
            check_at_least("local attention", name, getattr(self, name), least)
        check_choice("local attention", "path", self.path, get_args(LocalPath))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        path = self._fastest(q, k, mask, dropout) if self.path == "auto" else self.path
        if path == "reference":
            return attend(q, k, v, self._within(mask, q, k), scale=self.scale, dropout=dropout, path="reference")
        if path == "dense":
            k, v, mask = self._trim(q, k, v, mask)
            return attend(q, k, v, self._within(mask, q, k), scale=self.scale, dropout=dropout)
        if path == "flash_varlen":
            return self._attend_varlen(q, k, v, mask)
        rows = self_attention_rows(mask) if self.global_tokens else None
        if rows is not None:  # each sequence has its own tokens for everyone, which blocks of a packed row would mix
            layout, mask = rows
            context = self._attend_blocks(
                pad_packed(q, layout), pad_packed(k, layout), pad_packed(v, layout), mask, dropout
            )
            return pack_padded(context, layout)
        return self._attend_blocks(q, k, v, mask, dropout)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_weights(q, k, self._within(mask, q, k), scale=self.scale)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, self._within(mask, q, k), scale=self.scale)

    @property
    def _window(self) -> tuple[int, ...]:
        return self.before, self.after, self.dilation, self.global_tokens

    @property
    def _reach(self) -> tuple[int, int]:
        return self.before * self.dilation, self.after * self.dilation

    def start_cache(self, beam_width: int = 1, keep_all: bool = False) -> KVCache:
        window = None if keep_all or self.global_tokens else self._reach[0] * beam_width
        return KVCache(self, CAPACITY * beam_width, window)

    def _fastest(self, q: Tensor, k: Tensor, mask: Mask, dropout: float) -> LocalPath:
        T, S = q.shape[-2], k.shape[-2]
        alike = T == S and mask.beam_width == 1 and (mask.queries is mask.keys or not mask.packed)
        if not alike or mask.window is not None or mask.allowed is not None:
            return "dense"
        plain = self.dilation == 1 and not self.global_tokens and not dropout
        half = q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
        if q.device.type == "cuda" and half and plain and not isinstance(mask.keys, Padded):
            return "flash_varlen"
        # Short rows fit into so few blocks that cutting them up costs more than it saves.
        return "blocks" if mask.packed or 2 * _Blocks.of(self, T, mask.causal).scores < T * S else "dense"

    # One window in a mask

    def _within(self, mask: Mask, q: Tensor, k: Tensor) -> Mask:
        """The mask with the window beside its own rules."""
        T, S, device = q.shape[-2], k.shape[-2], q.device

        def build() -> Mask:
            query, key = mask.positions(T, S, device)
            return mask & Mask(allowed=self._near(query[:, None], key[None, :]))

        return mask.cached(("local", *self._window, T, S, device), build)

    def _near(self, query: Tensor, key: Tensor) -> Tensor:
        """Which keys stand in the window of which queries, by their places."""
        near = in_window(self._reach, query, key)
        assert near is not None
        if self.dilation > 1:
            near = near & ((query - key) % self.dilation == 0)
        if self.global_tokens:
            near = near | (key < self.global_tokens) | (query < self.global_tokens)
        return near

    def _trim(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Mask]:
        """The last keys alone, where queries at the end of a cache can see no others."""
        seen = q.shape[-2] + self._reach[0] * mask.beam_width
        if k.shape[-2] <= seen or self.global_tokens or mask.keys is not None:
            return k, v, mask
        return k[..., -seen:, :], v[..., -seen:, :], mask.last_keys(seen)

    # Sequences as segments of PyTorch's fused kernel, which knows windows

    def _attend_varlen(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        if isinstance(mask.keys, Packed):
            window = Mask(window=(self.before, self.after))
            return attend(q, k, v, mask & window, scale=self.scale, path="flash_varlen")
        B, H, N, D = q.shape
        offsets = torch.arange(0, (B + 1) * N, N, dtype=torch.int32, device=q.device)
        layout = Packed(offsets, N, B * N)
        row = Mask(queries=layout, keys=layout, causal=mask.causal, window=(self.before, self.after))
        q, k, v = (x.transpose(0, 1).reshape(1, H, B * N, D) for x in (q, k, v))
        context = attend(q, k, v, row, scale=self.scale, path="flash_varlen")
        return context.view(H, B, N, D).transpose(0, 1)

    # Overlapping blocks

    def _attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        B, H, N, D = q.shape
        blocks = _Blocks.of(self, N, mask.causal)
        name = ("local blocks", *self._window, N, q.device)
        near = mask.cached(name, lambda: self._near_in_blocks(blocks, mask, q.device))
        everyone = min(self.global_tokens, N)
        keys, values = (
            torch.cat((blocks.neighbours(x), x[:, None, None, :, :everyone].expand(B, *near.shape[1:3], H, -1, D)), 4)
            if everyone
            else blocks.neighbours(x)
            for x in (k, v)
        )
        near = near.expand(B, *near.shape[1:]).flatten(0, 2)[:, None]
        joined = attend(
            blocks.cut(q).flatten(0, 2),
            keys.flatten(0, 2),
            values.flatten(0, 2),
            Mask(allowed=near),
            scale=self.scale,
            dropout=dropout,
        )
        context = blocks.join(joined, B, N)
        if not everyone or mask.causal:  # the first tokens see nothing but themselves, and that they have seen
            return context
        first = attend(q[:, :, :everyone], k, v, Mask(keys=mask.keys), scale=self.scale, dropout=dropout)
        return torch.cat((first, context[:, :, everyone:]), 2)

    def _near_in_blocks(self, blocks: _Blocks, mask: Mask, device: torch.device) -> Tensor:
        """Which of its keys each query of a block sees, (B or 1, R, n, c, keys)."""
        place = torch.arange(blocks.tokens, device=device)
        query = blocks.cut(place[None, None, :, None], fill=-1)[0, ..., 0, :, 0]
        key = blocks.neighbours(place[None, None, :, None], fill=-1)[0, ..., 0, :, 0]
        before, after = self._reach
        distance = key[..., None, :] - query[..., :, None]
        near = (distance >= -before) & (distance <= (0 if mask.causal else after))
        near = near & (key >= max(0, self.global_tokens))[..., None, :] & (query >= 0)[..., None]
        if self.global_tokens:
            first = torch.arange(min(self.global_tokens, blocks.tokens), device=device)
            seen = (
                (first <= query[..., None]) if mask.causal else (query >= 0)[..., None].expand(*query.shape, len(first))
            )
            near = torch.cat((near, seen), -1)
            key = torch.cat((key, first.expand(*key.shape[:-1], -1)), -1)
        if isinstance(mask.keys, Packed):
            segment = mask.keys.segments()
            near = near & (segment[key.clamp(min=0)][..., None, :] == segment[query.clamp(min=0)][..., None])
        near = near[None]
        if isinstance(mask.keys, Padded):
            near = near & mask.keys.real()[:, key.clamp(min=0)][..., None, :]
        return near


@dataclass(frozen=True)
class _Blocks:
    """N tokens in blocks of c, each with so many blocks before and after it that no window reaches beyond.

    With a dilation, tokens whose places leave the same remainder stand together: among these the window has no gaps.
    """

    tokens: int
    size: int
    dilation: int
    before: int
    after: int

    @classmethod
    def of(cls, local: Local, tokens: int, causal: bool) -> _Blocks:
        after = 0 if causal else local.after
        size = max(16, min(64, local.before + after + 1))
        return cls(tokens, size, local.dilation, math.ceil(local.before / size), math.ceil(after / size))

    @property
    def scores(self) -> int:
        """How many are made: every token, filled up to whole blocks of all remainders, meets all keys of its blocks."""
        step = self.size * self.dilation
        return math.ceil(self.tokens / step) * step * (self.before + 1 + self.after) * self.size

    def cut(self, x: Tensor, fill: int = 0) -> Tensor:
        """(B, H, N, D) to (B, R, n, H, c, D)."""
        step = self.size * self.dilation
        x = F.pad(x, (0, 0, 0, -x.shape[2] % step), value=fill) if x.shape[2] % step else x
        B, H, N, D = x.shape
        return x.reshape(B, H, N // step, self.size, self.dilation, D).permute(0, 4, 2, 1, 3, 5)

    def neighbours(self, x: Tensor, fill: int = 0) -> Tensor:
        """(B, H, N, D) to (B, R, n, H, (before + 1 + after) · c, D): each block with those round it."""
        x = self.cut(x, fill)
        n = x.shape[2]
        x = F.pad(x, (0, 0, 0, 0, 0, 0, self.before, self.after), value=fill)
        return torch.cat([x[:, :, i : i + n] for i in range(self.before + 1 + self.after)], 4)

    def join(self, x: Tensor, B: int, N: int) -> Tensor:
        """(B · R · n, H, c, D) to (B, H, N, D)."""
        _, H, c, D = x.shape
        return x.view(B, self.dilation, -1, H, c, D).permute(0, 3, 2, 4, 1, 5).reshape(B, H, -1, D)[:, :, :N]
