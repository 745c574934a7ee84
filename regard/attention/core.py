"""`attend()`: scaled dot-product attention, softmax(q kᵀ · scale + bias) v.

`_reference` is the formula and defines the result. The other implementations compute the same more efficiently;
tests/contracts compares them with the reference. `regard.ops.dispatch` selects the fastest one.

Shapes: B batch, H heads, T queries, S keys, D head width, V width of the values; B is 1 for a packed batch.
"""

import math
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard.attention.packing import PaddedIndex, pack_padded, packed_layouts, pad_packed, pad_packed_mask
from regard.masks import Mask, check_broadcastable
from regard.ops import dispatch
from regard.ops.decode_attention import decode_attention
from regard.ops.dispatch import AttentionImplementation, select_attention
from regard.ops.dropout import drop
from regard.ops.key_ranges import KeyRanges
from regard.ops.varlen_attention import attend_key_ranges

IMPLEMENTATION_NAMES = get_args(AttentionImplementation)
ALLOW_ALL = Mask()
Bias = Tensor | None
WITHOUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    finite_bias: bool = False,
    implementation: AttentionImplementation = "auto",
) -> Tensor:
    """Compute scaled dot-product attention, softmax(q kᵀ · scale + bias) v.

    Args:
        q: Queries, (B, H, T, D).
        k: Keys, (B, H, S, D).
        v: Values, (B, H, S, V).
        mask: Which queries may attend to which keys. The context of a fully masked query is zero.
        scale: Factor on the scores; 1/√D by default.
        dropout: Dropout probability of the attention weights; pass 0 outside training.
        bias: Added to the scores before the softmax, broadcastable to (B, H, T, S). A bias of -inf excludes a key.
        finite_bias: Whether the bias is known to contain no -inf, which makes attention faster.
        implementation: Implementation to use; "auto" selects the fastest.

    Returns:
        The context, (B, H, T, V).

    Raises:
        TypeError: The mask is not a `Mask`.
        ValueError: The shapes do not fit together, the implementation is unknown or does not support the inputs.
    """
    mask = ALLOW_ALL if mask is None else mask
    check_choice("attend", "implementation", implementation, IMPLEMENTATION_NAMES)
    check_inputs(q, k, v, mask, bias)
    if not finite_bias:
        bias, mask = _move_exclusions(bias, mask)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if implementation == "auto":
        implementation = select_attention(q, k, v, mask, dropout, bias)
    return IMPLEMENTATIONS[implementation](q, k, v, mask, scale, dropout, bias)


def check_inputs(q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: Bias = None) -> None:
    """Raise the same errors for every implementation and kind if q, k, v, mask and bias do not fit together."""
    _check_type(mask)
    problem = None
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        problem = "q, k and v must have four dimensions (batch, heads, tokens, width)"
    elif not q.shape[:2] == k.shape[:2] == v.shape[:2]:
        problem = "q, k and v must have the same batch size and number of heads"
    elif q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
        problem = "q and k must have the same width, and k and v the same number of tokens"
    if problem is not None:
        raise ValueError(f"{problem}, found q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if torch.compiler.is_compiling():  # sizes may be symbolic
        return
    B, H, T, S = *q.shape[:3], k.shape[2]
    mask.check(B, H, T, S)
    if bias is not None:
        check_broadcastable("the bias", bias, (B, H, T, S))


def _check_type(mask: Mask) -> None:
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be a Mask, not a {type(mask).__name__}; pass a boolean tensor as Mask(allowed=...)")


def check_at_least(kind: str, name: str, value: int, minimum: int) -> None:
    """Raise ValueError unless the value is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{kind}: {name} must be an integer of at least {minimum}, not {value!r}")


def check_choice(kind: str, name: str, value: object, choices: Collection[str]) -> None:
    """Raise ValueError unless the value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{kind}: {name} must be one of {', '.join(choices)}, not {value!r}")


def _move_exclusions(bias: Bias, mask: Mask) -> tuple[Bias, Mask]:
    """Replace -inf in the bias by an exclusion in the mask, so that all implementations treat them alike."""
    if bias is None:
        return None, mask
    excluded = bias == -math.inf
    return bias.masked_fill(excluded, 0.0), mask & Mask(allowed=~excluded)


# The formula


def attention_scores(
    q: Tensor, k: Tensor, mask: Mask | None = None, *, scale: float | None = None, bias: Bias = None
) -> Tensor:
    """Return q kᵀ · scale + bias, (B, H, T, S), with -inf for excluded keys, in float32 or better."""
    mask = ALLOW_ALL if mask is None else mask
    _check_type(mask)
    precise = torch.promote_types(q.dtype, torch.float32)  # float32, or float64 if q is float64
    with torch.autocast(q.device.type, enabled=False):
        scores = q.to(precise) @ k.to(precise).transpose(-2, -1)
    scores = scores * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = scores if bias is None else scores + bias
    allowed = mask.dense(q.shape[-2], k.shape[-2], q.device)
    return scores if allowed is None else scores.masked_fill(~allowed, -math.inf)


def attention_weights(
    q: Tensor, k: Tensor, mask: Mask | None = None, *, scale: float | None = None, bias: Bias = None
) -> Tensor:
    """Return the weights softmax(q kᵀ · scale + bias), (B, H, T, S); those of a fully masked query are zero."""
    return softmax_of_scores(attention_scores(q, k, mask, scale=scale, bias=bias))


def softmax_of_scores(scores: Tensor) -> Tensor:
    """Return the weights of scores, (B, H, T, S), in which -inf excludes a key."""
    # The lowest finite number instead of -inf, because the softmax of a row of -inf is NaN. The second fill sets
    # excluded weights to exactly zero, in fully masked rows too, and stops their gradients.
    excluded = scores == -math.inf
    return scores.masked_fill(excluded, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(excluded, 0.0)


def apply_weights(weights: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """Return the context, (B, H, T, V), in the dtype of the values."""
    return (drop(weights, dropout) @ v.to(weights.dtype)).to(v.dtype)


# Implementations


def _reference(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend by the formula, with scores and weights in float32 or better."""
    return apply_weights(attention_weights(q, k, mask, scale=scale, bias=bias), v, dropout)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend by PyTorch's scaled_dot_product_attention."""
    T, S, device = q.shape[-2], k.shape[-2], q.device
    if mask.only_causal and bias is None and T in (1, S):
        # A single query is at the end of the keys and attends to all of them; is_causal aligns it to the beginning.
        with _reliable_backends(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=T == S, scale=scale)
    allowed = mask.dense(T, S, device)
    if allowed is None:
        with _reliable_backends(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=scale)
    if device.type != "cpu":
        return _sdpa_masked(q, k, v, mask, scale, dropout, bias)
    # On CPU, SDPA returns zeros for fully masked rows, and additive masks are faster than boolean ones.
    additive = mask.cached(("additive", T, S, q.dtype), lambda: _additive_mask(allowed, q.dtype))
    additive = additive if bias is None else additive + bias
    return F.scaled_dot_product_attention(q, k, v, attn_mask=additive, dropout_p=dropout, scale=scale)


def _sdpa_masked(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend by SDPA with a dense mask on a GPU, where some backends return NaN for fully masked rows.

    These rows attend to all keys instead, and their context is set to zero afterwards.
    """
    T, S, device = q.shape[-2], k.shape[-2], q.device
    allowed, masked_rows = mask.dense(T, S, device), mask.fully_masked(T, S, device)
    assert allowed is not None and masked_rows is not None
    # PyTorch would convert a boolean mask to an additive one in every layer.
    key = ("additive, no row fully masked", T, S, q.dtype)
    additive = mask.cached(key, lambda: _additive_mask(allowed | masked_rows, q.dtype))
    additive = additive if bias is None else additive + bias
    with sdpa_kernel(WITHOUT_CUDNN):  # cuDNN builds a plan for every new shape, and padded batches have many
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=additive, dropout_p=dropout, scale=scale)
    return context.masked_fill(masked_rows, 0.0)


def _additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(allowed, 0.0, -math.inf).to(dtype)


def _reliable_backends(q: Tensor, k: Tensor, v: Tensor) -> AbstractContextManager[None]:
    """Exclude cuDNN where its gradients may be NaN."""
    if q.is_cuda and dispatch.cudnn_gradients_are_unreliable(q, k, v):
        return sdpa_kernel(WITHOUT_CUDNN)
    return nullcontext()


def _matmul(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend by two batched matmuls in the dtype of the inputs; the first one includes scale and mask."""
    (B, H, T, D), (S, V) = q.shape, v.shape[-2:]
    key = ("additive per head", B, H, T, S, q.dtype)
    additive = None if mask.allows_all else mask.cached(key, lambda: _additive_mask_per_head(q, mask, S))
    # With beta=0, baddbmm ignores the addend.
    addend, beta = (q.new_empty(1), 0) if additive is None else (additive, 1)
    keys = k.reshape(B * H, S, D).transpose(1, 2)
    scores = torch.baddbmm(addend, q.reshape(B * H, T, D), keys, beta=beta, alpha=scale)
    if bias is not None:
        scores = (scores.view(B, H, T, S) + bias).view(B * H, T, S)
    weights = scores.softmax(-1)
    weights = drop(weights, dropout) if dropout else weights
    context = torch.bmm(weights, v.reshape(B * H, S, V)).view(B, H, T, V)
    if additive is None:
        return context
    masked_rows = mask.cached(("any fully masked", T, S), lambda: _fully_masked_rows(mask, T, S, q.device))
    return context if masked_rows is None else context.masked_fill(masked_rows, 0.0)


def _additive_mask_per_head(q: Tensor, mask: Mask, S: int) -> Tensor | None:
    """Return the additive mask expanded to (B · H, T, S), as baddbmm needs it."""
    B, H, T, _ = q.shape
    allowed = None if T == 1 and mask.only_causal else mask.dense(T, S, q.device)
    if allowed is None:
        return None
    additive = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device)
    return additive.masked_fill_(~allowed, torch.finfo(q.dtype).min).expand(B, H, T, S).reshape(B * H, T, S)


def _fully_masked_rows(mask: Mask, T: int, S: int, device: torch.device) -> Tensor | None:
    """Return which queries are fully masked, or None if there are none."""
    masked_rows = mask.fully_masked(T, S, device)
    return None if masked_rows is None or not bool(masked_rows.any()) else masked_rows


def _decode(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend by a Triton kernel for few queries and many keys, as in decoding; forward only."""
    V = v.shape[-1]
    q, k, v = equal_widths(q, k, v)
    if bias is not None or dropout or not dispatch.decode_attention_applies(q, k, v, mask):
        raise ValueError(
            "implementation='decode' supports few queries on a GPU without gradients, dropout, bias or windows"
        )
    return decode_attention(q, k, v, mask, scale)[..., :V]


def _padded(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Pad a packed batch, attend, and pack the result."""
    queries, keys = packed_layouts(mask)
    if bias is not None:
        raise ValueError("implementation='padded' supports no bias")
    padded_mask = mask.cached(("padded",), lambda: pad_packed_mask(mask))
    query_index = mask.cached(("query index",), partial(PaddedIndex.of, queries))
    key_index = query_index if keys is queries else mask.cached(("key index",), partial(PaddedIndex.of, keys))
    q, k, v = pad_packed(q, query_index), pad_packed(k, key_index), pad_packed(v, key_index)
    context = attend(q, k, v, padded_mask, scale=scale, dropout=dropout)
    return pack_padded(context, query_index)


def _flash_varlen(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend within a packed batch by PyTorch's varlen_attn: CUDA and half precision only, without dropout."""
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = packed_layouts(mask)
    V = v.shape[-1]
    q, k, v = equal_widths(q, k, v, range(8, 257, 8))
    if bias is not None or mask.allowed is not None or dropout or not dispatch.flash_varlen_applies(q, v):
        raise ValueError(
            "implementation='flash_varlen' supports heads of up to 256 features in half precision on a GPU, without "
            "bias, dense mask or dropout"
        )
    q_THD, k_SHD, v_SHD = (x[0].transpose(0, 1) for x in (q, k, v))
    offsets, lengths = (queries.offsets, keys.offsets), (queries.longest, keys.longest)
    before, after = (-1 if limit is None else limit for limit in mask.reach)
    context = varlen_attn(q_THD, k_SHD, v_SHD, *offsets, *lengths, scale=scale, window_size=(before, after))
    assert isinstance(context, Tensor)
    return context.transpose(0, 1)[None, ..., :V]


def _triton_varlen(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float, dropout: float, bias: Bias) -> Tensor:
    """Attend within a packed batch of short sequences by Triton kernels whose tiles hold several sequences."""
    packed_layouts(mask)
    V = v.shape[-1]
    q, k, v = equal_widths(q, k, v)
    if bias is not None or mask.allowed is not None or not dispatch.attention_kernels_apply(q, k, v):
        raise ValueError(
            "implementation='triton_varlen' supports heads of up to 128 features on a GPU, without bias or dense mask"
        )
    return attend_key_ranges(q, k, v, key_ranges(mask), scale, dropout)[..., :V]


def key_ranges(mask: Mask) -> KeyRanges:
    """Return the key range of every query of a packed batch."""
    return mask.cached(("key ranges",), lambda: KeyRanges.of(mask))


def equal_widths(
    q: Tensor, k: Tensor, v: Tensor, widths: Iterable[int] = dispatch.HEAD_WIDTHS
) -> tuple[Tensor, Tensor, Tensor]:
    """Pad q, k and v with zeros to the narrowest of these widths, for kernels that support no others.

    Zeros change neither the scores nor the other features of the context. Heads wider than all widths stay as they are.
    """
    widest = max(q.shape[-1], v.shape[-1])
    width = next((w for w in widths if w >= widest), None)
    if width is None or q.shape[-1] == v.shape[-1] == width:
        return q, k, v
    q, k, v = (F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
    return q, k, v


Implementation = Callable[[Tensor, Tensor, Tensor, Mask, float, float, Bias], Tensor]
IMPLEMENTATIONS: dict[AttentionImplementation, Implementation] = {
    "reference": _reference,
    "sdpa": _sdpa,
    "matmul": _matmul,
    "decode": _decode,
    "padded": _padded,
    "flash_varlen": _flash_varlen,
    "triton_varlen": _triton_varlen,
}
