"""Local attention: each query attends to the keys in a window around its position, at linear cost.

A window in the mask defines the result. The fast implementations avoid the scores outside the window: queries are cut
into blocks, and each block attends to its own and the neighbouring blocks of keys.

Shapes: B batch, H heads, T queries, S keys, D head width, N tokens, n blocks of c tokens, R residues (the dilation).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, get_args

import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field, NonNegativeInt
from torch import Tensor

from regard.attention.core import attend, attention_scores, check_at_least, check_choice, check_inputs
from regard.attention.kinds import CAPACITY, Kind, KindSettings, KVCache
from regard.attention.packing import attend_padded
from regard.masks import Mask, Packed, Padded, in_window
from regard.ops import dispatch
from regard.registry import register

LocalImplementation = Literal["auto", "reference", "dense", "blocks", "flash_varlen"]


@dataclass(frozen=True)
class Local(Kind):
    """Softmax attention within a window, in addition to the restrictions of the mask.

    Args:
        before: Number of keys before its own position that a query attends to.
        after: Number of keys after its own position.
        dilation: Distance between consecutive keys of the window; 2 skips every second key.
        global_tokens: Number of tokens at the beginning of a sequence that attend to all tokens and to which all tokens
            attend.
        scale: Factor on the scores; 1/√D by default.
        implementation: Implementation to use; "auto" selects the fastest.
    """

    before: int
    after: int
    dilation: int = 1
    global_tokens: int = 0
    scale: float | None = None
    implementation: LocalImplementation = "auto"

    def __post_init__(self) -> None:
        for name, minimum in (("before", 0), ("after", 0), ("dilation", 1), ("global_tokens", 0)):
            check_at_least("local attention", name, getattr(self, name), minimum)
        check_choice("local attention", "implementation", self.implementation, get_args(LocalImplementation))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        check_inputs(q, k, v, mask)
        implementation = self._select(q, k, v, mask, dropout) if self.implementation == "auto" else self.implementation
        if implementation == "reference":
            mask = self._add_window(mask, q, k)
            return attend(q, k, v, mask, scale=self.scale, dropout=dropout, implementation="reference")
        if implementation == "dense":
            k, v, mask = self._last_keys(q, k, v, mask)
            return attend(q, k, v, self._add_window(mask, q, k), scale=self.scale, dropout=dropout)
        if implementation == "flash_varlen":
            return self._attend_flash_varlen(q, k, v, mask, dropout)
        if not _is_plain_self_attention(q, k, mask):
            raise ValueError(
                "implementation='blocks' supports self-attention only, without a window or a dense part in the mask"
            )
        attend_blocks = partial(self._attend_blocks, dropout=dropout)
        # Every sequence has its own global tokens, so packed sequences are padded first.
        return attend_padded(attend_blocks, q, k, v, mask) if self.global_tokens else attend_blocks(q, k, v, mask)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, self._add_window(mask, q, k), scale=self.scale)

    def start_cache(self, beam_width: int = 1, keep_all: bool = False) -> KVCache:
        window = None if keep_all or self.global_tokens else self._reach[0] * beam_width
        return KVCache(self, CAPACITY * beam_width, window)

    @property
    def _reach(self) -> tuple[int, int]:
        """Largest distance to a key of the window, before and after the query."""
        return self.before * self.dilation, self.after * self.dilation

    def _select(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> LocalImplementation:
        T, S = q.shape[-2], k.shape[-2]
        if not _is_plain_self_attention(q, k, mask):
            return "dense"
        if self._supports_flash_varlen(mask, dropout) and dispatch.flash_varlen_applies(q, v):
            return "flash_varlen"
        # In short rows most pairs of blocks are neighbours, so blocks save nothing.
        return "blocks" if mask.packed or 2 * _Blocks.of(self, T, mask.causal).scores < T * S else "dense"

    # The window as a dense mask

    def _add_window(self, mask: Mask, q: Tensor, k: Tensor) -> Mask:
        T, S, device = q.shape[-2], k.shape[-2], q.device

        def build() -> Mask:
            query_positions, key_positions = mask.positions(T, S, device)
            return mask & Mask(allowed=self._allowed(query_positions[:, None], key_positions[None, :]))

        return mask.cached(("local", self, T, S, device), build)

    def _allowed(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Which keys each query attends to, from positions that broadcast against each other."""
        allowed = in_window(self._reach, query_positions, key_positions)
        assert allowed is not None
        if self.dilation > 1:
            allowed = allowed & ((query_positions - key_positions) % self.dilation == 0)
        if self.global_tokens:
            allowed = allowed | (key_positions < self.global_tokens) | (query_positions < self.global_tokens)
        return allowed

    def _last_keys(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Mask]:
        """Drop the keys of a cache that are before the windows of all queries."""
        needed = q.shape[-2] + self._reach[0] * mask.beam_width
        if k.shape[-2] <= needed or self.global_tokens or mask.keys is not None:
            return k, v, mask
        return k[..., -needed:, :], v[..., -needed:, :], mask.last_keys(needed)

    # Sequences as segments of PyTorch's varlen_attn, which supports windows

    def _supports_flash_varlen(self, mask: Mask, dropout: float) -> bool:
        return self.dilation == 1 and not self.global_tokens and not dropout and not isinstance(mask.keys, Padded)

    def _attend_flash_varlen(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend by PyTorch's varlen_attn, which supports windows; other batches are packed into one row first."""
        if not self._supports_flash_varlen(mask, dropout) or not _is_plain_self_attention(q, k, mask):
            raise ValueError(
                "implementation='flash_varlen' supports self-attention without padding, dilation, global tokens or "
                "dropout only"
            )
        if isinstance(mask.keys, Packed):
            window = Mask(window=(self.before, self.after))
            return attend(q, k, v, mask & window, scale=self.scale, implementation="flash_varlen")
        B, H, N, _ = q.shape
        offsets = torch.arange(0, (B + 1) * N, N, dtype=torch.int32, device=q.device)
        layout = Packed(offsets, N, B * N)
        packed_mask = Mask(queries=layout, keys=layout, causal=mask.causal, window=(self.before, self.after))
        q, k, v = (x.transpose(0, 1).reshape(1, H, B * N, x.shape[-1]) for x in (q, k, v))
        context = attend(q, k, v, packed_mask, scale=self.scale, implementation="flash_varlen")
        return context.view(H, B, N, v.shape[-1]).transpose(0, 1)

    # Neighbouring blocks

    def _attend_blocks(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float) -> Tensor:
        """Attend within blocks: the queries of a block to the keys of it and its neighbours, and to global tokens."""
        B, _, N, _ = q.shape
        blocks = _Blocks.of(self, N, mask.causal)
        key = ("local blocks", self, N, q.device)
        allowed = mask.cached(key, lambda: self._allowed_in_blocks(blocks, mask, q.device))
        allowed = allowed.expand(B, *allowed.shape[1:]).flatten(0, 2)[:, None]
        global_tokens = min(self.global_tokens, N)
        keys, values = blocks.neighbours(k), blocks.neighbours(v)
        if global_tokens:
            keys, values = (
                torch.cat((block, x[:, None, None, :, :global_tokens].expand(*block.shape[:4], -1, -1)), 4)
                for block, x in ((keys, k), (values, v))
            )
        block_context = attend(
            blocks.cut(q).flatten(0, 2),
            keys.flatten(0, 2),
            values.flatten(0, 2),
            Mask(allowed=allowed),
            scale=self.scale,
            dropout=dropout,
        )
        context = blocks.join(block_context, B, N)
        if not global_tokens or mask.causal:  # under causality, global tokens attend to earlier global tokens only
            return context
        first = attend(q[:, :, :global_tokens], k, v, Mask(keys=mask.keys), scale=self.scale, dropout=dropout)
        return torch.cat((first, context[:, :, global_tokens:]), 2)

    def _allowed_in_blocks(self, blocks: "_Blocks", mask: Mask, device: torch.device) -> Tensor:
        """Which of the keys next to its block each query attends to, (B or 1, R, n, c, keys)."""
        positions = torch.arange(blocks.tokens, device=device)[None, None, :, None]
        query = blocks.cut(positions, fill=-1)[0, ..., 0, :, 0]  # -1 marks the filler of incomplete blocks
        key = blocks.neighbours(positions, fill=-1)[0, ..., 0, :, 0]
        before, after = self._reach
        distance = key[..., None, :] - query[..., :, None]
        allowed = (distance >= -before) & (distance <= (0 if mask.causal else after))
        allowed = allowed & (key >= self.global_tokens)[..., None, :] & (query >= 0)[..., None]
        if self.global_tokens:
            first = torch.arange(min(self.global_tokens, blocks.tokens), device=device)
            sees_first = (
                first <= query[..., None] if mask.causal else (query >= 0)[..., None].expand(-1, -1, -1, len(first))
            )
            allowed = torch.cat((allowed, sees_first), -1)
            key = torch.cat((key, first.expand(*key.shape[:-1], -1)), -1)
        if isinstance(mask.keys, Packed):
            segment = mask.keys.segments()
            allowed = allowed & (segment[key.clamp(min=0)][..., None, :] == segment[query.clamp(min=0)][..., None])
        allowed = allowed[None]
        if isinstance(mask.keys, Padded):
            allowed = allowed & mask.keys.real()[:, key.clamp(min=0)][..., None, :]
        return allowed


def _is_plain_self_attention(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Return whether query i is token i of the keys, and the mask adds only causality and layouts to the window."""
    aligned = q.shape[-2] == k.shape[-2] and mask.beam_width == 1 and (mask.queries is mask.keys or not mask.packed)
    return aligned and mask.window is None and mask.allowed is None


@dataclass(frozen=True)
class _Blocks:
    """N tokens in blocks of c, each with enough blocks before and after it to cover the window.

    With a dilation, tokens are grouped by their position modulo the dilation; within a group the window has no gaps.
    """

    tokens: int
    size: int
    dilation: int
    before: int
    after: int

    @classmethod
    def of(cls, local: Local, tokens: int, causal: bool) -> "_Blocks":
        after = 0 if causal else local.after
        size = max(16, min(64, local.before + after + 1))
        return cls(tokens, size, local.dilation, math.ceil(local.before / size), math.ceil(after / size))

    @property
    def scores(self) -> int:
        """Number of scores that are computed, the filler of incomplete blocks included."""
        step = self.size * self.dilation
        return math.ceil(self.tokens / step) * step * (self.before + 1 + self.after) * self.size

    def cut(self, x: Tensor, fill: int = 0) -> Tensor:
        """(B, H, N, D) to (B, R, n, H, c, D)."""
        step = self.size * self.dilation
        x = F.pad(x, (0, 0, 0, -x.shape[2] % step), value=fill) if x.shape[2] % step else x
        B, H, N, D = x.shape
        return x.reshape(B, H, N // step, self.size, self.dilation, D).permute(0, 4, 2, 1, 3, 5)

    def neighbours(self, x: Tensor, fill: int = 0) -> Tensor:
        """(B, H, N, D) to (B, R, n, H, (before + 1 + after) · c, D): each block with those around it."""
        x = self.cut(x, fill)
        n = x.shape[2]
        x = F.pad(x, (0, 0, 0, 0, 0, 0, self.before, self.after), value=fill)
        return torch.cat([x[:, :, i : i + n] for i in range(self.before + 1 + self.after)], 4)

    def join(self, x: Tensor, B: int, N: int) -> Tensor:
        """(B · R · n, H, c, D) to (B, H, N, D)."""
        _, H, c, D = x.shape
        n = math.ceil(N / (c * self.dilation))
        x = x.view(B, self.dilation, n, H, c, D).permute(0, 3, 2, 4, 1, 5)
        return x.reshape(B, H, n * c * self.dilation, D)[:, :, :N]


# Settings


def _both_sides(value: Any) -> Any:
    if any(isinstance(part, bool) for part in (value if isinstance(value, list | tuple) else [value])):
        raise ValueError(f"must be one integer or two, found {value}")
    return (value, value) if isinstance(value, int) else value


@register
class LocalSettings(KindSettings):
    """Every token attends to a window around its position."""

    kind: Literal["local"] = "local"
    window: Annotated[tuple[NonNegativeInt, NonNegativeInt], BeforeValidator(_both_sides)] = Field(
        (128, 128), description="tokens before and after the position of a token: one number, or [before, after]"
    )
    dilation: int = Field(1, ge=1, description="distance between consecutive tokens of the window")
    global_tokens: int = Field(
        0, ge=0, description="first tokens of a sequence, which attend to all tokens and to which all tokens attend"
    )

    def build(self, heads: int, width: int, scale: float | None = None) -> Kind:
        return Local(*self.window, self.dilation, self.global_tokens, scale)
