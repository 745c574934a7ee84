"""Fused blocks for training on a GPU: the same blocks as in `regard.layers`, as one sequence of kernels each.

Three fusions cross the boundaries of modules, which is why whole blocks are reimplemented here:

- The kernel of Add & Norm also adds the bias of the sublayer's last linear layer and applies dropout to its output.
- In post-norm blocks, a linear layer and Add & Norm read the residual stream. The linear layer passes x on to Add &
  Norm (`linear_pass_on`, `feed_forward_pass_on`) and adds the gradients of both in its own matmul.
- In pre-norm blocks, the kernel that adds the output of a sublayer also computes the norm of the next sublayer.

`tests/contracts/test_fused.py` compares every block with its plain `forward`. `REGARD_FUSED=0` disables fused blocks.
Blocks are passed as `Any` because ops must not import `regard.layers`.

Shapes: B batch, T tokens, S source tokens, W width. A packed batch is a single row (B = 1) holding all tokens.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from regard.ops import dispatch
from regard.ops.add_norm import sum_and_norm
from regard.ops.dropout import drop
from regard.ops.embedding import embed
from regard.ops.linear import Linear, LinearSlice, linear
from regard.ops.linear_backward import (
    Activation,
    add_matmul_,
    linear_and_saved,
    matmul,
    matmul_activation_backward,
    mixed_precision_linear,
    round_to,
    sum_columns,
)


def encoder_block(block: Any, x: Tensor, mask: Any, positions: Tensor | None) -> Tensor:
    """`EncoderBlock.forward`, (B, T, W) to (B, T, W)."""
    if block.pre_norm:
        x, y = sum_and_norm(x, None, block.norm1)
        context, _ = _self_attention(block.attention, y, mask, positions)
        x, y = _add_and_norm_next(block, x, context, block.attention.out, block.scale1, block.norm2)
        return _add(block, x, _feed_forward(block.feed_forward, y), block.scale2)
    context, x = _self_attention(block.attention, x, mask, positions)
    x = _add_norm(block, x, context, block.attention.out, block.norm1)
    return _feed_forward_add_norm(block, x, block.norm2)


def decoder_block(
    block: Any,
    x: Tensor,
    source: Tensor,
    mask: Any,
    source_mask: Any,
    positions: Tensor | None,
    source_positions: Tensor | None,
) -> Tensor:
    """`DecoderBlock.forward` without a cache, (B, T, W) to (B, T, W)."""
    rotary = {"mask": source_mask, "positions": positions, "source_positions": source_positions}
    if block.pre_norm:
        x, y = sum_and_norm(x, None, block.norm1)
        context, _ = _self_attention(block.attention, y, mask, positions)
        x, y = _add_and_norm_next(block, x, context, block.attention.out, block.scale1, block.norm2)
        context, _ = _cross_attention(block.cross, y, source, rotary)
        x, y = _add_and_norm_next(block, x, context, block.cross.out, block.scale2, block.norm3)
        return _add(block, x, _feed_forward(block.feed_forward, y), block.scale3)
    context, x = _self_attention(block.attention, x, mask, positions)
    x = _add_norm(block, x, context, block.attention.out, block.norm1)
    context, x = _cross_attention(block.cross, x, source, rotary)
    x = _add_norm(block, x, context, block.cross.out, block.norm2)
    return _feed_forward_add_norm(block, x, block.norm3)


def swin_block(block: Any, x: Tensor, windows: Any, mask: Any) -> Tensor:
    """`SwinBlock.forward`, (B, N, W) to (B, N, W)."""
    x, y = sum_and_norm(x, None, block.norm1)
    x = _add(block, x, windows.join(block.attention(windows.split(y), mask=mask)), None)
    x, y = sum_and_norm(x, None, block.norm2)
    return _add(block, x, _feed_forward(block.feed_forward, y), None)


def class_token_block(block: Any, x: Tensor, mask: Any, positions: Tensor | None) -> Tensor:
    """`EncoderBlock.class_token` of a pre-norm block, (B, T, W) to (B, 1, W)."""
    first_position = None if positions is None else positions[:, :1]
    rotary = {"mask": mask, "positions": first_position, "source_positions": positions}
    x, y = sum_and_norm(x, None, block.norm1)
    context, _ = _cross_attention(block.attention, y[:, :1], y, rotary)
    x, y = _add_and_norm_next(block, x[:, :1], context, block.attention.out, block.scale1, block.norm2)
    return _add(block, x, _feed_forward(block.feed_forward, y), block.scale2)


def embedding(
    embedding: Any, tokens: Tensor, positions: Tensor, longest: int, dtype: torch.dtype | None = None
) -> Tensor:
    """`Embedding.forward`, (B, T) to (B, T, W)."""
    table = None if embedding.positions is None else embedding.positions.up_to(longest)
    dropout = embedding.dropout.p if embedding.training else 0.0
    return embed(tokens, embedding.weight, embedding.scale, positions, table, dropout, dtype)


# Sublayers and residual connections


def _self_attention(attention: Any, x: Tensor, mask: Any, positions: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the context of all heads, which is the input of the output projection, and x passed on."""
    qkv, x = linear_pass_on(x, attention.qkv)
    return attention.self_context(qkv, mask=mask, positions=positions), x


def _cross_attention(attention: Any, x: Tensor, source: Tensor, rotary: dict[str, Any]) -> tuple[Tensor, Tensor]:
    q_layer, kv_layer = attention.q_and_kv_layers()
    q, x = linear_pass_on(x, q_layer)
    return attention.cross_context(q, kv_layer(source), **rotary), x


def _add_norm(block: Any, x: Tensor, hidden: Tensor, last: Linear, norm: nn.LayerNorm) -> Tensor:
    """Return norm(x + dropout(last(hidden))); the kernel of Add & Norm adds the bias of the last layer."""
    update = linear(hidden, last.weight, None, last.half_copy)
    return sum_and_norm(x, update, norm, update_bias=last.bias, dropout=_dropout(block), dtype=x.dtype)[1]


def _feed_forward(layer: Any, x: Tensor) -> Tensor:
    if feed_forward_pass_on_applies(layer, x):
        return feed_forward_pass_on(layer, x, layer.outer.bias)[0]
    y: Tensor = layer(x)
    return y


def _feed_forward_add_norm(block: Any, x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Return norm(x + dropout(feed_forward(x)))."""
    layer = block.feed_forward
    if not feed_forward_pass_on_applies(layer, x):
        return _add_norm(block, x, layer.hidden(x), layer.outer, norm)
    update, x = feed_forward_pass_on(layer, x, None)
    return sum_and_norm(x, update, norm, update_bias=layer.outer.bias, dropout=_dropout(block), dtype=x.dtype)[1]


def _add_and_norm_next(
    block: Any, x: Tensor, hidden: Tensor, last: Linear, scale: Tensor | None, next_norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """Return x plus the output of a sublayer, last(hidden), and the norm of the sum for the next sublayer."""
    if scale is not None:
        return sum_and_norm(_add(block, x, last(hidden), scale), None, next_norm)
    update = linear(hidden, last.weight, None, last.half_copy)
    drops_paths = block.training and block.drop_path.rate
    scales = block.drop_path.draw(update).flatten() if drops_paths else None
    return sum_and_norm(x, update, next_norm, update_bias=last.bias, dropout=_dropout(block), scales=scales)


def _add(block: Any, x: Tensor, update: Tensor, scale: Tensor | None) -> Tensor:
    """Return x + branch(update), with stochastic depth in the same operation as the sum."""
    if not (block.training and block.drop_path.rate) or update.dtype != x.dtype:
        y: Tensor = x + block.branch(update, scale)
        return y
    update = block.dropout(update)
    update = update if scale is None else update * scale
    return torch.addcmul(x, update, block.drop_path.draw(update))


def _dropout(block: Any) -> float:
    return block.dropout.p if block.training else 0.0


# Linear layers that pass on their input


def linear_pass_on(x: Tensor, layer: Linear | LinearSlice) -> tuple[Tensor, Tensor]:
    """Return layer(x), and x, to be read by the residual connection in place of the argument.

    Only the backward pass differs from `layer(x), x`: the layer adds its gradient of x to that of the second output in
    the matmul, which saves the addition of autograd. The sum overwrites the gradient of the second output, so that only
    one op may read it, whose backward pass returns a newly allocated gradient, such as `sum_and_norm`. Without mixed
    precision, or if the layer has to round x first, the second output is x itself; see `MixedPrecisionLinear`.
    """
    if not dispatch.mixed_precision_training(x):
        return layer(x), x
    y, passed_on = mixed_precision_linear(x, layer.weight, layer.bias, layer.half_copy)
    return y, _passed_on(x, passed_on)


def feed_forward_pass_on_applies(feed_forward: Any, x: Tensor) -> bool:
    """Return whether `feed_forward_pass_on` supports the layer: ReLU, or GELU without dropout.

    The gradient of dropout after ReLU follows from the dropped output, which is zero; after GELU a mask is needed.
    """
    supported = feed_forward.activation == "relu" or (feed_forward.activation == "gelu" and not _dropout(feed_forward))
    return supported and dispatch.mixed_precision_training(x)


def feed_forward_pass_on(feed_forward: Any, x: Tensor, outer_bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return feed_forward(x) with this bias of the outer layer, and x passed on as by `linear_pass_on`."""
    inner, outer = feed_forward.inner, feed_forward.outer
    rows = x.to(dispatch.matmul_dtype(x)).reshape(-1, x.shape[-1])
    inner_half, outer_half = inner.half_copy or (None, None), outer.half_copy or (None, None)
    y, passed_on = _FeedForward.apply(  # type: ignore[no-untyped-call]
        rows, inner.weight, inner.bias, outer.weight, outer_bias, *inner_half, *outer_half,
        feed_forward.activation, feed_forward.dropout.p if feed_forward.training else 0.0,
    )  # fmt: skip
    return y.view(*x.shape[:-1], len(outer.weight)), _passed_on(x, passed_on)


def _passed_on(x: Tensor, rows: Tensor) -> Tensor:
    return rows.view(x.shape) if x.requires_grad and x.dtype == rows.dtype else x


class _FeedForward(torch.autograd.Function):
    """Two linear layers with an activation in between, and x passed on as by `MixedPrecisionLinear`.

    In one function, the gradient of the hidden features is multiplied by the derivative of the activation before it is
    stored.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        inner: Tensor,
        inner_bias: Tensor,
        outer: Tensor,
        outer_bias: Tensor | None,
        half_inner: Tensor | None,
        half_inner_bias: Tensor | None,
        half_outer: Tensor | None,
        half_outer_bias: Tensor | None,
        activation: Activation,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [None if p is None else p.dtype for p in (inner, inner_bias, outer, outer_bias)]
        inner, outer = round_to(inner, x.dtype, half_inner), round_to(outer, x.dtype, half_outer)
        hidden, saved = linear_and_saved(x, inner, round_to(inner_bias, x.dtype, half_inner_bias), activation)
        if dropout:
            hidden = saved = drop(hidden, dropout)
        ctx.save_for_backward(x, inner, outer, hidden, saved)
        ctx.activation, ctx.scale = activation, 1 / (1 - dropout)
        return F.linear(hidden, outer, round_to(outer_bias, x.dtype, half_outer_bias)), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, passed_on: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return passed_on, *(None,) * 10
        x, inner, outer, hidden, saved = ctx.saved_tensors
        inner_dtype, inner_bias_dtype, outer_dtype, outer_bias_dtype = ctx.dtypes
        needs_x, needs_inner, needs_inner_bias, needs_outer, needs_outer_bias, *_ = ctx.needs_input_grad
        dx = dinner = dinner_bias = douter = douter_bias = None
        with torch.autocast(x.device.type, enabled=False):
            if needs_outer_bias:
                douter_bias = sum_columns(grad).to(outer_bias_dtype)
            if needs_outer:
                douter = matmul(grad.t(), hidden, outer_dtype)
            if needs_x or needs_inner or needs_inner_bias:
                grad, column_sums = matmul_activation_backward(grad, outer, saved, ctx.activation, ctx.scale)
                dinner_bias = column_sums.to(inner_bias_dtype)
            if needs_x:
                dx = add_matmul_(passed_on, grad, inner)
            if needs_inner:
                dinner = matmul(grad.t(), x, inner_dtype)
        return dx, dinner, dinner_bias, douter, douter_bias, *(None,) * 6
