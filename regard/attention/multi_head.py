"""`Attention`: multi-head attention with projections, rotary embeddings and a choice of attention kind.

Shapes: B batch, T query tokens, S source tokens, H heads, D head width, W = H · D model width.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from regard.attention import linear, local, routing  # noqa: F401 -- registers the kinds
from regard.attention.kinds import Cache, Full, KeyValues, Kind
from regard.masks import Mask
from regard.ops import dispatch
from regard.ops.dispatch import list_modules
from regard.ops.dropout import Dropout
from regard.ops.linear import Linear, LinearSlice
from regard.ops.rotary import rotate_qkv

QKVHook = Callable[["Attention", Tensor, Tensor, Tensor, Mask], None]


class Attention(nn.Module):
    """Multi-head attention: project to q, k and v, split into heads, attend, join the heads, project the output.

    Called with `x` alone it is self-attention; called with a source it is cross-attention.

    Args:
        width: Width of the input and the output, W.
        heads: Number of heads, H; must divide the width.
        qkv_bias: Whether the input projections have a bias.
        qk_scale: Factor on the scores; 1/√D by default.
        attention_dropout: Dropout probability of the attention weights.
        projection_dropout: Dropout probability of the output.
        rotary: Rotary embedding applied to q and k (`Rotary` or `Rotary2D`).
        kind: Kind of attention; full attention by default.

    Attributes:
        qkv_hook: Called with (self, q, k, v, mask) before attention is computed. `probe` sets it to read the attention
            weights, which are otherwise never materialised.
        head_scales: Factor on the context of each head, (H,). `ablate` and `scale_heads` set it.
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
            raise ValueError("qk_scale applies to full attention only; pass the scale to the kind instead")
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
        for weight in (*self.qkv.weight.chunk(3), self.out.weight):
            nn.init.xavier_uniform_(weight)
        for bias in (self.qkv.bias, self.out.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(
        self,
        x: Tensor,
        source: Tensor | KeyValues | None = None,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        source_positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Attend from x to itself or to a source.

        Args:
            x: Tokens that attend, (B, T, W).
            source: Tokens to attend to, (B, S, W), or their keys and values from `project`; x itself by default. If the
                keys have B/n rows, each of them serves n consecutive rows of x, such as the hypotheses of a beam.
            mask: Which queries may attend to which keys.
            positions: Positions of the queries for the rotary embedding, (B, T) or (B, T, 2).
            source_positions: Positions of the source, likewise.
            cache: Cache from `start_cache` for self-attention in decoding; the queries are those of the new tokens.

        Returns:
            Output, (B, T, W).
        """
        B, T, _ = x.shape
        if source is None:
            context_BTW = self.self_context(self.qkv(x), mask=mask, positions=positions, cache=cache)
        else:
            if cache is not None:
                raise ValueError("a cache is for self-attention; for cross-attention, project the source once instead")
            q_layer, kv_layer = self.q_and_kv_layers()
            if isinstance(source, KeyValues):
                x = self._merge_hypotheses(x, source)
            else:
                source = kv_layer(source)
            rotary = {"positions": positions, "source_positions": source_positions}
            context_BTW = self.cross_context(q_layer(x), source, mask=mask, **rotary).reshape(B, T, self.width)
        y_BTW: Tensor = self.out(context_BTW)
        return self.projection_dropout(y_BTW) if self.training else y_BTW

    def self_context(
        self, qkv: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Return the joined contexts of all heads in self-attention, (B, T, W): the input of the output projection.

        Args:
            qkv: Projected queries, keys and values, (B, T, 3W).
            mask: See `forward`, also for the other arguments.
        """
        mask = Mask() if mask is None else mask
        context_BHTD = None if cache is not None else self._try_attend_projected([qkv], mask)
        if context_BHTD is None:
            q_BHTD, k_BHTD, v_BHTD = self._split_qkv(qkv, positions)
            context_BHTD = self._attend(q_BHTD, k_BHTD, v_BHTD, mask, cache)
        return self._join_heads(context_BHTD)

    def cross_context(
        self,
        q: Tensor,
        source: Tensor | KeyValues,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        source_positions: Tensor | None = None,
    ) -> Tensor:
        """Return the joined contexts of all heads in cross-attention, (B, T, W): the input of the output projection.

        Args:
            q: Projected queries, (B, T, W).
            source: Projected keys and values of the source, (B, S, 2W), or those of each head from `project`.
            mask: See `forward`, also for the other arguments.
        """
        mask = Mask() if mask is None else mask
        context_BHTD = None if isinstance(source, KeyValues) else self._try_attend_projected([q, source], mask)
        if context_BHTD is None:
            q_BHTD = self._rotate(self._split_heads(q), positions)
            k_BHSD, v_BHSD = source if isinstance(source, KeyValues) else self._split_kv(source, source_positions)
            context_BHTD = self._attend(q_BHTD, k_BHSD, v_BHSD, mask)
        return self._join_heads(context_BHTD)

    def q_and_kv_layers(self) -> list[LinearSlice]:
        """Return the query projection, and the joint projection of keys and values, for cross-attention."""
        return self.qkv.split([self.width, 2 * self.width])

    def start_cache(self, beam_width: int = 1) -> Cache:
        """Return an empty cache for decoding with this number of hypotheses per sentence."""
        return self.kind.start_cache(beam_width, keep_all=self.qkv_hook is not None)

    def project(self, source: Tensor, positions: Tensor | None = None) -> KeyValues:
        """Return the keys and values of a source, (B, H, S, D) each, to attend to it many times."""
        return self._split_kv(self.q_and_kv_layers()[1](source), positions)

    def _try_attend_projected(self, projections: Sequence[Tensor], mask: Mask) -> Tensor | None:
        """Attend to the projections as they are, [qkv] or [q, kv], if the kind can; otherwise return None."""
        if self.rotary is not None or self.qkv_hook is not None:
            return None
        return self.kind.try_attend_projected(projections, self.heads, mask, self._dropout)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, cache: Cache | None = None) -> Tensor:
        """Return the context, (B, H, T, D), of the queries, keys and values of each head."""
        hook = None if self.qkv_hook is None else partial(self.qkv_hook, self)
        if cache is not None:  # it stores the keys and values and calls the kind with those of all tokens
            return cache.attend(q, k, v, mask, self._dropout, hook)
        if hook is not None:
            hook(q, k, v, mask)
        return self.kind(q, k, v, mask, self._dropout)

    @property
    def _dropout(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def _join_heads(self, context_BHTD: Tensor) -> Tensor:
        """(B, H, T, D) to (B, T, W), after the heads have been scaled."""
        if self.head_scales is not None:
            context_BHTD = context_BHTD * self.head_scales.to(context_BHTD)[:, None, None]
        B, H, T, D = context_BHTD.shape
        return context_BHTD.transpose(1, 2).reshape(B, T, H * D)

    def _merge_hypotheses(self, x: Tensor, source: KeyValues) -> Tensor:
        """Reshape x so that all hypotheses of a source are queries of one row."""
        rows, sources = x.shape[0], source.keys.shape[0]
        if rows == sources:
            return x
        if rows % sources:
            raise ValueError(f"{rows} rows cannot be divided evenly among {sources} sources")
        return x.reshape(sources, -1, self.width)

    def _split_qkv(self, qkv: Tensor, positions: Tensor | None) -> tuple[Tensor, ...]:
        if self.rotary is None:
            return tuple(self._split_heads(y) for y in qkv.chunk(3, -1))
        if (
            positions is not None
            and isinstance(self.rotary, Rotary | Rotary2D)
            and dispatch.training_kernels_apply(qkv)
        ):
            return rotate_qkv(qkv, positions, self.rotary.frequency, self.heads)
        qk, v = (self._split_heads(y) for y in qkv.split_with_sizes([2 * self.width, self.width], -1))
        return *self._rotate(qk, positions).chunk(2, 1), v  # one rotation for q and k takes half as many operations

    def _split_kv(self, kv: Tensor, positions: Tensor | None) -> KeyValues:
        k, v = (self._split_heads(y) for y in kv.chunk(2, -1))
        return KeyValues(self._rotate(k, positions), v)

    def _split_heads(self, x: Tensor) -> Tensor:
        """(B, T, n · D) to (B, n, T, D)."""
        (B, T, width), D = x.shape, self.width // self.heads
        return x.view(B, T, width // D, D).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if self.rotary is None:
            return x
        if positions is None:
            raise ValueError("rotary attention needs the positions of its tokens")
        rotated: Tensor = self.rotary(x, positions)
        return rotated

    def extra_repr(self) -> str:
        kind = "" if "kind" in self._modules else f", kind={self.kind}"  # submodules are printed anyway
        return f"{self.width}, heads={self.heads}{kind}"


def use_qkv_hook(attentions: Iterable[Attention], hook: QKVHook | None) -> AbstractContextManager[None]:
    """Set the hook of these attentions inside a `with` block."""
    return _set_attribute("qkv_hook", dict.fromkeys(attentions, hook))


def use_head_scales(scales: Mapping[Attention, Tensor]) -> AbstractContextManager[None]:
    """Multiply the head scales of these attentions by the given ones, (H,) each, inside a `with` block."""
    products = {
        attention: scale if attention.head_scales is None else attention.head_scales * scale.to(attention.head_scales)
        for attention, scale in scales.items()
    }
    return _set_attribute("head_scales", products)


@contextmanager
def disable_qkv_hooks(model: nn.Module) -> Iterator[bool]:
    """Remove the hooks of all attentions of a model inside a `with` block; yield whether there were any."""
    hooked = [m for m in list_modules(model) if isinstance(m, Attention) and m.qkv_hook is not None]
    with use_qkv_hook(hooked, None):
        yield bool(hooked)


@contextmanager
def _set_attribute(name: str, values: Mapping[Attention, object]) -> Iterator[None]:
    previous = {attention: getattr(attention, name) for attention in values}
    try:
        for attention, value in values.items():
            setattr(attention, name, value)
        yield
    finally:
        for attention, value in previous.items():
            setattr(attention, name, value)


# Rotary embeddings of q and k
#
# They take explicit integer positions, so packed rows, cached steps and image patches need no special treatment. A
# position on a grid is a pair (y, x).


class Rotary(nn.Module):
    """Rotary embedding (RoPE): rotate each pair of features by an angle proportional to the position.

    The product of a rotated query and a rotated key depends only on the distance between them. Feature i is paired with
    feature i + D/2.
    """

    def __init__(self, head_width: int, base: float = 10_000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"rotary positions need an even head width, not {head_width}")
        self.head_width, self.base = head_width, base
        self.frequency: Tensor
        self.register_buffer("frequency", self._frequency(), persistent=False)

    def _frequency(self, device: torch.device | None = None) -> Tensor:
        index = torch.arange(0, self.head_width, 2, dtype=torch.float64, device=device)
        # On the meta device, only the shape is of interest, and arithmetic would import torch's compiler.
        return (index if index.is_meta else self.base ** (-index / self.head_width)).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep the frequencies in float32 when the model is converted: half precision is too coarse for the angles."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.frequency = self._frequency(self.frequency.device)
        return self

    def extra_repr(self) -> str:
        return f"{self.head_width}, base={self.base:g}"

    def forward(self, x_BHTD: Tensor, positions: Tensor) -> Tensor:
        """Rotate q or k, (B, H, T, D); positions are (B, T) or (1, T)."""
        return _rotate(x_BHTD, positions[:, None, :, None].float() * self.frequency)


class Rotary2D(nn.Module):
    """Rotary embedding on a grid: the first half of each head is rotated by y, the second half by x."""

    def __init__(self, head_width: int, base: float = 100.0) -> None:
        super().__init__()
        if head_width % 4:
            raise ValueError(f"rotary positions on a grid need a head width divisible by 4, not {head_width}")
        self.axis = Rotary(head_width // 2, base)

    @property
    def frequency(self) -> Tensor:
        """Frequencies of either axis, (D/4,)."""
        return self.axis.frequency

    def forward(self, x_BHTD: Tensor, positions: Tensor) -> Tensor:
        """Rotate q or k, (B, H, T, D); positions are (B, T, 2) or (1, T, 2), each (y, x)."""
        angle = positions[:, None, :, :, None].float() * self.axis.frequency
        by_axis = x_BHTD.reshape(*x_BHTD.shape[:-1], 2, -1)
        return _rotate(by_axis, angle).flatten(-2)


def _rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate features i and i + D/2 of the last dimension by angle i."""
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def grid_positions(rows: int, columns: int, device: torch.device | None = None) -> Tensor:
    """Return the (y, x) of every cell of a grid in row-major order, (rows · columns, 2)."""
    y, x = torch.arange(rows, device=device), torch.arange(columns, device=device)
    return torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)
