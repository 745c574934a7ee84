"""The heart: `attend()`, the one place where scores become weights and weights become context.

The reference path reads like the formula and is the meaning of the rest. The fused paths are faster ways to the same
numbers; tests/contracts hold them to it.

Shapes: B batch, H heads, T queries, S keys, D head width, N tokens of a packed row (B is 1 there).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention.kind import Kind, check_choice
from regard.attention.masks import Mask, Packed
from regard.attention.packing import Places, pack_padded, packed_layouts, pad_packed, pad_packed_mask
from regard.ops import attention_kernels as kernels
from regard.ops import decode_attention as few
from regard.ops.dropout import drop
from regard.ops.key_ranges import KeyRanges
from regard.ops.varlen_attention import attend_bundles, attend_key_ranges, unbundle

Path = Literal["auto", "reference", "fused", "few", "unpacked", "varlen", "short"]
FEW = 16
"""Up to so many queries a CPU is done sooner with two plain products than with the blocks of the fused kernel."""
MANY = 64
"""From so many heads, those of all rows together, that holds for a single query too."""
SHORT = 1024
"""Up to so many tokens of its longest sequence a packed batch is done sooner with tiles that sequences share."""
EVERYTHING = Mask()
ANY_SHAPE = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""On a GPU, the kernels that need no plan: cuDNN makes one for every new shape, and padded batches have many."""
CUDNN_TILE = 64
"""Where a length is a multiple of it, cuDNN may take rows that only fill up a tile for real ones, scored 0: on the way
back these weigh exp(0 - lse), which overflows where all other scores are below -88, and gradients are NaN. Seen with 64
tokens on an H200 (PyTorch 2.11); reported for lengths of 64 beyond a multiple of 128, with a mask, and for one query on
128 keys (pytorch/pytorch#196678, NVIDIA/cudnn-frontend#1072). All multiples are left to others, to be safe."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    path: Path = "auto",
) -> Tensor:
    """Scaled dot-product attention, softmax(q kᵀ · scale + bias) v.

    Args:
        q: queries, (B, H, T, D).
        k: keys, (B, H, S, D).
        v: values, (B, H, S, D).
        mask: who may attend to whom; a query that may attend to nothing gets zeros.
        scale: factor on the scores; 1/√D unless given.
        dropout: probability with which each weight is dropped; pass 0 outside training.
        bias: added to the scores before the softmax, broadcastable to (B, H, T, S).
        path: "auto" takes the fastest that fits; a named path is for tests and benchmarks.

    Returns:
        The context, (B, H, T, D).
    """
    mask = mask or EVERYTHING
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if path == "auto":
        path = _fastest(q, k, v, mask, dropout, bias)
    return _PATHS[path](q, k, v, mask, scale, dropout, bias)


def attend_projected(
    projections: Sequence[Tensor], heads: int, mask: Mask, *, scale: float | None = None, dropout: float = 0.0
) -> Tensor | None:
    """`attend` for projections that nobody has taken apart yet, where a path is the faster for that; else None.

    Args:
        projections: of self-attention one, (B, T, 3W); of cross-attention those of queries, (B, T, W), and of keys and
            values, (B, S, 2W).
        heads: how many share the width W.
        mask: who may attend to whom.
        scale: factor on the scores; 1/√D unless given.
        dropout: of weights.
    """
    if not mask.packed:
        return None
    parts = (3,) if len(projections) == 1 else (1, 2)
    D = projections[-1].shape[-1] // (heads * parts[-1])
    bundles = [x.view(*x.shape[:2], n, heads, D) for x, n in zip(projections, parts, strict=True)]
    q, k, v = unbundle(bundles)
    if _fastest(q, k, v, mask, dropout, None) != "short":
        return None
    scale = 1 / math.sqrt(D) if scale is None else scale
    return attend_bundles(bundles, mask.once(("runs",), lambda: KeyRanges.of(mask)), scale, dropout)


def attention_weights(
    q: Tensor, k: Tensor, mask: Mask | None = None, *, scale: float | None = None, bias: Tensor | None = None
) -> Tensor:
    """The weights softmax(q kᵀ · scale + bias) alone, (B, H, T, S), in float32 or better."""
    scores = _scores(q, k, scale, bias)
    may = (mask or EVERYTHING).dense(q.shape[-2], k.shape[-2], q.device)
    if may is None:
        return scores.softmax(-1)
    # The lowest finite number instead of -inf: a row of -inf alone would be NaN. The second fill makes "excluded"
    # exactly zero, also in such a row, and keeps gradients from passing through it.
    return scores.masked_fill(~may, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(~may, 0.0)


def attention_scores(
    q: Tensor, k: Tensor, mask: Mask | None = None, *, scale: float | None = None, bias: Tensor | None = None
) -> Tensor:
    """What the softmax is taken of, q kᵀ · scale + bias, (B, H, T, S), with -inf where the mask excludes."""
    scores = _scores(q, k, scale, bias)
    may = (mask or EVERYTHING).dense(q.shape[-2], k.shape[-2], q.device)
    return scores if may is None else scores.masked_fill(~may, -math.inf)


def _scores(q: Tensor, k: Tensor, scale: float | None, bias: Tensor | None) -> Tensor:
    precision = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):  # which would take the product back to half precision
        scores = q.to(precision) @ k.to(precision).transpose(-2, -1)
    scores = scores * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return scores if bias is None else scores + bias


def _attend_reference(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    weights = attention_weights(q, k, mask, scale=scale, bias=bias)
    return (drop(weights, dropout) @ v.to(weights.dtype)).to(v.dtype)


def _attend_fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """PyTorch's scaled_dot_product_attention; the mask stays symbolic where that can express it."""
    T, S, device = q.shape[-2], k.shape[-2], q.device
    if dropout and device.type == "cpu" and not torch.compiler.is_compiling():
        # PyTorch has the formula there, too, in more passes, and draws what is dropped one number at a time.
        formula = _attend_few if _is_plain(q) else _attend_reference
        return formula(q, k, v, mask, scale, dropout, bias)
    if mask.only_causal and bias is None and T in (1, S):
        # One query at the end of the keys sees them all; its is_causal flag would align it to their beginning.
        with _sound_backends(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=T == S, scale=scale)
    may = mask.dense(T, S, device)
    if may is None:
        with _sound_backends(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    if device.type == "cpu":  # which gives zeros for a row without a single key, and is slow to read booleans
        addend = mask.once(("addend", T, S, q.dtype), lambda: torch.where(may, 0.0, -math.inf).to(q.dtype))
        addend = addend if bias is None else addend + bias
        return F.scaled_dot_product_attention(q, k, v, attn_mask=addend, dropout_p=dropout, scale=scale)
    return _attend_with_blind(q, k, v, mask, scale, dropout, bias)


def _sound_backends(q: Tensor, k: Tensor, v: Tensor) -> AbstractContextManager[None]:
    """Without cuDNN where it would spoil gradients; as PyTorch chooses elsewhere."""
    return sdpa_kernel(ANY_SHAPE) if q.is_cuda and spoils_gradients(q, k, v) else nullcontext()


def spoils_gradients(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether there will be gradients, and lengths are such that cuDNN's may be NaN; see `CUDNN_TILE`."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    return learns and any(x.shape[-2] % CUDNN_TILE == 0 for x in (q, k))


def _attend_with_blind(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """The fused path on a GPU, where backends differ in what a row without a single key gives, some NaN.

    Such a row sees everything, and then that is taken back.
    """
    T, S, device = q.shape[-2], k.shape[-2], q.device
    may, blind = mask.dense(T, S, device), mask.blind(T, S, device)
    assert may is not None
    assert blind is not None
    # Numbers in place of booleans, which PyTorch would turn into numbers anew in every layer.
    addend = mask.once(("open addend", T, S, q.dtype), lambda: torch.where(may | blind, 0.0, -math.inf).to(q.dtype))
    addend = addend if bias is None else addend + bias
    with sdpa_kernel(ANY_SHAPE):
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=addend, dropout_p=dropout, scale=scale)
    return context.masked_fill(blind, 0.0)


def _attend_few(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """A handful of queries, as in a step of decoding, by one kernel of a GPU; or any, by the formula, in few passes."""
    if bias is None and not dropout and few.usable(q, k, v, mask):
        return few.attend_few(q, k, v, mask, scale)
    (B, H, T, D), S = q.shape, k.shape[-2]
    addend = mask.once(("addend of heads", B, H, T, S, q.dtype), lambda: _addend_of_heads(q, mask, S))
    given, share = (q.new_empty(1), 0) if addend is None else (addend, 1)
    keys, values = k.reshape(B * H, S, D).transpose(1, 2), v.reshape(B * H, S, D)
    scores = torch.baddbmm(given, q.reshape(B * H, T, D), keys, beta=share, alpha=scale)
    if bias is not None:
        scores = (scores.view(B, H, T, S) + bias).view(B * H, T, S)
    weights = scores.softmax(-1)
    context = torch.bmm(drop(weights, dropout) if dropout else weights, values).view(B, H, T, D)
    blind = None if addend is None else mask.once(("some blind", T, S), lambda: _some_blind(mask, T, S, q.device))
    return context if blind is None else context.masked_fill(blind, 0.0)


def _some_blind(mask: Mask, T: int, S: int, device: torch.device) -> Tensor | None:
    """Marks the queries that may attend to nothing; None where there are none."""
    blind = mask.blind(T, S, device)
    return None if blind is None or not bool(blind.any()) else blind


def _addend_of_heads(q: Tensor, mask: Mask, S: int) -> Tensor | None:
    """What excludes, written out for every head, (B · H, T, S): so it is added while a product is made."""
    B, H, T, _ = q.shape
    may = None if T == 1 and mask.only_causal else mask.dense(T, S, q.device)
    if may is None:
        return None
    excluded = torch.zeros(may.shape, dtype=q.dtype, device=q.device).masked_fill_(~may, torch.finfo(q.dtype).min)
    return excluded.expand(B, H, T, S).reshape(B * H, T, S)


def _attend_unpacked(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """A packed batch, laid out in padded rows for the fused path and packed again: runs anywhere, with dropout."""
    queries, keys = packed_layouts(mask)
    if bias is not None:
        raise ValueError("a bias over a packed batch needs path='reference'")
    rows = mask.once(("rows",), lambda: pad_packed_mask(mask))
    of_queries = mask.once(("places of queries",), partial(Places.of, queries))
    of_keys = of_queries if keys is queries else mask.once(("places of keys",), partial(Places.of, keys))
    context = _attend_fused(
        pad_packed(q, of_queries), pad_packed(k, of_keys), pad_packed(v, of_keys), rows, scale, dropout, None
    )
    return pack_padded(context, of_queries)


def _attend_varlen(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """A packed batch through PyTorch's varlen_attn: CUDA, half precision, no dropout, no dense parts."""
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = packed_layouts(mask)
    if bias is not None or mask.allowed is not None or dropout:
        raise ValueError("varlen attention takes no bias, no dense mask and no dropout")
    before, after = mask.reach
    context = varlen_attn(
        q[0].transpose(0, 1),
        k[0].transpose(0, 1),
        v[0].transpose(0, 1),
        queries.offsets,
        keys.offsets,
        queries.longest,
        keys.longest,
        scale=scale,
        window_size=(-1 if before is None else before, -1 if after is None else after),
    )
    assert isinstance(context, Tensor)
    return context.transpose(0, 1)[None]


def _attend_short(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """A packed batch of short sequences, several of which share a tile: Triton, with dropout, no dense parts."""
    packed_layouts(mask)
    if bias is not None or mask.allowed is not None:
        raise ValueError("the kernels for short sequences take no bias and no dense mask")
    return attend_key_ranges(q, k, v, mask.once(("runs",), lambda: KeyRanges.of(mask)), scale, dropout)


def _fastest(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float, bias: Tensor | None) -> Path:
    if not isinstance(mask.keys, Packed):
        if torch.compiler.is_compiling():  # asked first: a program must not depend on how long today's sentence is
            return "fused"
        learning = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        if learning or dropout:
            return "fused"
        if q.device.type == "cuda":
            return "few" if bias is None and few.usable(q, k, v, mask) else "fused"
        return "few" if _is_plain(q) and _are_few(q, mask) else "fused"
    if bias is not None or mask.allowed is not None:
        return "reference"
    half = q.dtype in (torch.float16, torch.bfloat16)
    queries, keys = packed_layouts(mask)
    if half and max(queries.longest, keys.longest) <= SHORT and kernels.usable(q, k, v):
        return "short"
    fits = q.shape[-1] % 8 == 0 and q.shape[-1] <= 256 and keys.longest > 0  # its backward fails without any key
    if q.device.type == "cuda" and half and not dropout and fits:
        return "varlen"
    return "unpacked"


def _is_plain(q: Tensor) -> bool:
    """Whether a CPU makes plain products as precise as scores must be: half precision would round them."""
    return q.device.type == "cpu" and q.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def _are_few(q: Tensor, mask: Mask) -> bool:
    """Whether a CPU is done sooner with plain products; a single query needs many heads for that, all rows counted."""
    B, H, T, _ = q.shape
    return B * H >= MANY if T == 1 else T <= FEW and not mask.causal


_PATHS: dict[Path, Callable[[Tensor, Tensor, Tensor, Mask, float, float, Tensor | None], Tensor]] = {
    "reference": _attend_reference,
    "fused": _attend_fused,
    "few": _attend_few,
    "unpacked": _attend_unpacked,
    "varlen": _attend_varlen,
    "short": _attend_short,
}


@dataclass(frozen=True)
class Full(Kind):
    """Every query against every key that the mask allows: `attend()` itself."""

    scale: float | None = None
    path: Path = "auto"

    def __post_init__(self) -> None:
        check_choice("full attention", "path", self.path, get_args(Path))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        return attend(q, k, v, mask, scale=self.scale, dropout=dropout, path=self.path)

    def attend_projected(
        self, projections: Sequence[Tensor], heads: int, mask: Mask, dropout: float = 0.0
    ) -> Tensor | None:
        """The context of projections as they are, where that is the faster way."""
        if self.path != "auto":
            return None
        return attend_projected(projections, heads, mask, scale=self.scale, dropout=dropout)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_weights(q, k, mask, scale=self.scale)

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask, scale=self.scale)
