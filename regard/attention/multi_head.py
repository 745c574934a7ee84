"""`Attention`: projections, heads, rotary positions and the cache, round a kind of attention.

Shapes: B batch, H heads, T queries, S keys, D head width; W = H · D, the model's width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn

from regard.attention.core import Full, Kind
from regard.attention.linear import Linear as LinearKind
from regard.attention.linear import RunningSums
from regard.attention.local import Local
from regard.attention.masks import Mask
from regard.attention.positions import Rotary, Rotary2D
from regard.ops import rotary as turning
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear, linear
from regard.ops.modules import walk

Rotation = Callable[[Tensor, Tensor], Tensor]
QKVHook = Callable[["Attention", Tensor, Tensor, Tensor, Mask], None]


class KeyValues(NamedTuple):
    """Projected keys and values, (B, H, S, D) each: what a source needs to be attended to again and again."""

    keys: Tensor
    values: Tensor

    def select(self, rows: Tensor) -> KeyValues:
        return KeyValues(self.keys[rows], self.values[rows])


class Cache:
    """The keys and values of the tokens decoded so far, in memory that grows by doubling, not by copying every step.

    Args:
        capacity: tokens that there is room for at first.
        keeps: how many tokens before the new ones may still be needed; earlier ones are given up whenever there is no
            room left, so that memory does not grow for ever. None: all are kept.
    """

    keeps: int | None = None

    def __init__(self, capacity: int = 32, keeps: int | None = None) -> None:
        self.capacity, self.keeps = capacity, keeps
        self.length = 0  # tokens decoded
        self.held = 0  # the last of these, which are in memory
        self._memory: Tensor | None = None  # (2, B, H, capacity, D)

    def append(self, k: Tensor, v: Tensor) -> KeyValues:
        """Adds the new tokens' keys and values and returns all that are held, as views."""
        new = k.shape[-2]
        if self._memory is None or self.held + new > self._memory.shape[-2]:
            self._make_room(k)
        assert self._memory is not None
        start, self.held, self.length = self.held, self.held + new, self.length + new
        keys, values = self._memory[0], self._memory[1]  # parts of an unbind could not be written to while learning
        keys.narrow(-2, start, new).copy_(k)
        values.narrow(-2, start, new).copy_(v)
        return KeyValues(keys.narrow(-2, 0, self.held), values.narrow(-2, 0, self.held))

    @property
    def forgot(self) -> bool:
        """Whether tokens have been given up."""
        return self.keeps is not None and self.held < self.length

    def _make_room(self, k: Tensor) -> None:
        """Memory for the new tokens behind those that are still needed."""
        needed = self.held if self.keeps is None else min(self.held, self.keeps)
        B, H, new, D = k.shape
        if self._memory is not None and needed + new > self.capacity // 2:  # else it would be full again at once
            self.capacity *= 2
        self.capacity = max(self.capacity, needed + new)
        grown = k.new_empty(2, B, H, self.capacity, D)
        if self._memory is not None:
            grown[..., :needed, :] = self._memory[..., self.held - needed : self.held, :]
        self._memory, self.held = grown, needed

    def follow(self, rows: Tensor, sentences: Tensor | None) -> Cache:
        """The cache once hypotheses have changed places: their tokens stay where they are, unless sentences go."""
        return self if sentences is None else self.select(sentences)

    def select(self, rows: Tensor) -> Cache:
        """The cache of these rows, in this order; rows may be dropped and repeated."""
        chosen = Cache(self.capacity, self.keeps)
        chosen.length, chosen.held = self.length, self.held
        if self._memory is not None:
            _, _, H, _, D = self._memory.shape
            chosen._memory = self._memory.new_empty(2, len(rows), H, self._memory.shape[-2], D)
            chosen._memory[..., : self.held, :] = self._memory[..., : self.held, :].index_select(1, rows)
        return chosen


class Attention(nn.Module):
    """Multi-head attention: h projections, split to (B, H, T, D), attend, join, project out.

    Self-attention when called with `x` alone, cross-attention when called with a context too; the weights are the same
    shape for both. `probe` sets `observer` to see the weights; without one they are never made. `ablate` and
    `scale_heads` set `head_scales`, (H,), by which each head's context is multiplied before the heads are joined.

    Args:
        width: of the input and the output.
        heads: how many; must divide the width.
        qkv_bias: whether the three input projections have a bias.
        qk_scale: factor on the scores; 1/√D unless given.
        attention_dropout: on the weights, in training.
        projection_dropout: on the output, in training.
        rotary: turns q and k by their positions (`Rotary`, `Rotary2D`).
        kind: how scores become context; full attention unless given.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        qkv_bias: bool = True,
        qk_scale: float | None = None,
        attention_dropout: float = 0.0,
        projection_dropout: float = 0.0,
        rotary: nn.Module | None = None,
        kind: Kind | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not divisible by {heads} heads")
        if kind is not None and qk_scale is not None:
            raise ValueError("give qk_scale to the kind, or no kind: two places for one scale would hide one of them")
        self.width, self.heads = width, heads
        self.kind: Kind = Full(scale=qk_scale) if kind is None else kind
        self.attention_dropout = attention_dropout
        self.qkv = Linear(width, 3 * width, bias=qkv_bias)
        self.out = Linear(width, width)
        self.projection_dropout = Dropout(projection_dropout)
        self.rotary = rotary
        self.qkv_hook: QKVHook | None = None
        self.head_scales: Tensor | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for projection in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(projection)
        for bias in (self.qkv.bias, self.out.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | KeyValues | None = None,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        source_positions: Tensor | None = None,
        cache: Cache | RunningSums | None = None,
    ) -> Tensor:
        """Attends from x to itself, or to a context.

        Args:
            x: the queries' side, (B, T, W).
            context: the keys' side, (B, S, W), or what `project` made of it once for many calls.
            mask: who may attend to whom.
            positions: of x, for rotary attention, (B, T) or (B, T, 2).
            source_positions: of the context, likewise.
            cache: earlier keys and values of a self-attention, from `start_cache`; the new ones are added to it.
        """
        B, T, _ = x.shape
        if context is not None and cache is not None:
            raise ValueError("a cache is for self-attention; what a context needs again and again is `project`ed once")
        if isinstance(context, KeyValues) and context.keys.shape[0] != B:
            # Several hypotheses of one source: to the source they are just more queries, side by side.
            if B % len(context.keys):
                raise ValueError(f"{B} rows cannot be shared out evenly among {len(context.keys)} sources")
            x = x.reshape(len(context.keys), -1, self.width)
        mask = Mask() if mask is None else mask  # a new one: what kinds build of it must not outlive the call
        dropout = self.attention_dropout if self.training else 0.0
        projections = self._projections(x, context)
        joined = None
        apart = self.rotary or self.qkv_hook or cache or isinstance(context, KeyValues)  # must q, k and v be had
        if not apart and isinstance(self.kind, Full):
            joined = self.kind.together(projections, self.heads, mask, dropout)
        if joined is None:
            if context is None:
                q, k, v = self._triple(projections[0], positions)
                if isinstance(cache, Cache):
                    k, v = cache.append(k, v)
                    mask = mask.last(k.shape[-2]) if cache.forgot else mask
            else:
                q = self._rotate(self._split(projections[0]), positions)
                k, v = context if isinstance(context, KeyValues) else self._pair(projections[1], source_positions)
            joined = self._attend(q, k, v, mask, dropout, cache)
        if self.head_scales is not None:
            joined = joined * self.head_scales.to(joined)[:, None, None]
        y: Tensor = self.out(joined.transpose(1, 2).reshape(B, T, self.width))
        return self.projection_dropout(y) if self.projection_dropout.p else y

    @property
    def last(self) -> Linear | None:
        """The product with which it ends, if it does end there."""
        return None if self.projection_dropout.p else self.out

    def start_cache(self, beam_width: int = 1) -> Cache | RunningSums:
        """An empty cache of what this kind of attention must remember, for a beam of this width."""
        if isinstance(self.kind, LinearKind):
            return RunningSums(self.kind, beam_width)
        # Whoever observes is to see every key by its place.
        keeps = self.kind.remembers if isinstance(self.kind, Local) and self.qkv_hook is None else None
        return Cache(32 * beam_width, None if keeps is None else keeps * beam_width)

    def project(self, context: Tensor, positions: Tensor | None = None) -> KeyValues:
        """The context's keys and values, to be attended to many times."""
        return self._pair(linear(context, *self._parts()[1]), positions)

    def _projections(self, x: Tensor, context: Tensor | KeyValues | None) -> list[Tensor]:
        """Of queries, keys and values together, (B, T, 3W); or of queries and, where need be, of what they look at."""
        if context is None:
            return [self.qkv(x)]
        read = [x] if isinstance(context, KeyValues) else [x, context]
        return [linear(y, *part) for y, part in zip(read, self._parts(), strict=False)]

    def _triple(self, together: Tensor, positions: Tensor | None) -> tuple[Tensor, ...]:
        """Queries, keys and values; the cuts are such that their gradients are joined in one go."""
        if self.rotary is None:
            return tuple(self._split(y) for y in together.chunk(3, -1))
        if positions is not None and isinstance(self.rotary, Rotary | Rotary2D) and turning.usable(together):
            return turning.turn_by_kernel(together, positions, self.rotary.frequency, self.heads)
        both, v = (self._split(y) for y in together.split_with_sizes([2 * self.width, self.width], -1))
        return *self._rotate(both, positions).chunk(2, 1), v  # turned as one, which is half the work of many small ones

    def _pair(self, together: Tensor, positions: Tensor | None) -> KeyValues:
        k, v = (self._split(y) for y in together.chunk(2, -1))
        return KeyValues(self._rotate(k, positions), v)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float, cache: Cache | RunningSums | None
    ) -> Tensor:
        if self.qkv_hook is not None:
            if isinstance(cache, RunningSums):
                raise ValueError("linear attention keeps no keys while decoding, so there are no weights to be seen")
            if isinstance(cache, Cache) and cache.forgot:
                raise ValueError("keys beyond the window were given up before anybody looked; observe from the start")
            self.qkv_hook(self, q, k, v, mask)
        return cache.advance(q, k, v) if isinstance(cache, RunningSums) else self.kind(q, k, v, mask, dropout)

    def _parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of queries, and those of keys and values; split, their gradients are joined in one go."""
        sizes = [self.width, 2 * self.width]
        biases = (None, None) if self.qkv.bias is None else self.qkv.bias.split_with_sizes(sizes)
        return list(zip(self.qkv.weight.split_with_sizes(sizes), biases, strict=True))

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, W) to (B, H, T, D); of q and k side by side, to (B, 2H, T, D)."""
        (B, T, W), D = x.shape, self.width // self.heads
        return x.view(B, T, W // D, D).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if self.rotary is None:
            return x
        if positions is None:
            raise ValueError("rotary attention needs the positions of its tokens")
        turned: Tensor = self.rotary(x, positions)
        return turned

    def extra_repr(self) -> str:
        shown = "" if isinstance(self.kind, nn.Module) else f", kind={self.kind}"
        return f"{self.width}, heads={self.heads}{shown}"


@contextmanager
def use_qkv_hook(attentions: Iterable[Attention], observe: QKVHook | None) -> Iterator[None]:
    """These attentions have this observer, or none, while the block runs; then those that they had before."""
    before = {attention: attention.qkv_hook for attention in attentions}
    try:
        for attention in before:
            attention.qkv_hook = observe
        yield
    finally:
        for attention, observer in before.items():
            attention.qkv_hook = observer


@contextmanager
def use_head_scales(factors: Mapping[Attention, Tensor]) -> Iterator[None]:
    """The heads of these attentions count by these factors, (H,) each, on top of earlier ones, while the block runs."""
    before = {attention: attention.head_scales for attention in factors}
    try:
        for attention, given in factors.items():
            outer = before[attention]
            attention.head_scales = given if outer is None else outer * given.to(outer)
        yield
    finally:
        for attention, outer in before.items():
            attention.head_scales = outer


@contextmanager
def disable_qkv_hooks(model: nn.Module) -> Iterator[bool]:
    """Nobody sees the attention of this model while the block runs; tells whether anybody would have."""
    watched = [m for m in walk(model) if isinstance(m, Attention) and m.qkv_hook is not None]
    with use_qkv_hook(watched, None):
        yield bool(watched)
