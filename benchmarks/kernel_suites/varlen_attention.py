"""Attention of packed sequences: errors, times, tile sizes, and the lengths for which each kernel is faster."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.core import attend, attention_weights
from regard.attention.packing import pack_padded, pad_packed, pad_packed_mask
from regard.masks import Mask, Packed
from regard.ops.key_ranges import KeyRanges, find_by_formula, find_by_kernel
from regard.ops.varlen_attention import PLANS, Plan, Tiles, split_projections

from .bench import WIDTH, Bench, Row, attention_errors, relative_error

MASKS = ("self", "causal", "cross")
IMPLEMENTATIONS = ("triton_varlen", "flash_varlen", "padded")
SLOTS = (16, 24, 32, 40, 48, 64)


# Batches


def draw_lengths(tokens: int, median_length: float, spread: float) -> list[int]:
    """Draw lognormal lengths with the given number of tokens in total."""
    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = []
    remaining = tokens
    while remaining > 0:
        length = round(math.exp(math.log(median_length) + spread * torch.randn((), generator=generator).item()))
        lengths.append(min(remaining, max(1, length)))
        remaining -= lengths[-1]
    return lengths


def make_mask(bench: Bench, kind: str, median_length: float = 22, spread: float = 0.6) -> Mask:
    lengths = draw_lengths(bench.tokens, median_length, spread)
    queries = Packed.of(lengths, bench.device)
    if kind != "cross":
        return Mask(queries=queries, keys=queries, causal=kind == "causal")
    generator = torch.Generator().manual_seed(1)
    ratios = torch.exp(0.25 * torch.randn(len(lengths), generator=generator)).tolist()
    keys = [max(1, round(length * ratio)) for length, ratio in zip(lengths, ratios, strict=True)]
    return Mask(queries=queries, keys=Packed.of(keys, bench.device))


def packed_layouts(mask: Mask) -> tuple[Packed, Packed]:
    assert isinstance(mask.queries, Packed)
    assert isinstance(mask.keys, Packed)
    return mask.queries, mask.keys


def make_inputs(bench: Bench, mask: Mask, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Return queries, keys and values as views of fused projections, like in a model."""
    queries, keys = packed_layouts(mask)
    torch.manual_seed(0)
    dtype = dtype or bench.dtype
    W = bench.heads * WIDTH
    if queries is keys:
        parts = torch.randn(1, keys.size, 3 * W, device=bench.device).to(dtype).chunk(3, -1)
    else:
        keys_values = torch.randn(1, keys.size, 2 * W, device=bench.device).to(dtype)
        parts = (torch.randn(1, queries.size, W, device=bench.device).to(dtype), *keys_values.chunk(2, -1))
    return [x.view(1, -1, bench.heads, WIDTH).transpose(1, 2).requires_grad_() for x in parts]


# Measurements


def measure_agreement(bench: Bench) -> None:
    """Relative errors of the output and the gradients."""
    for kind in MASKS:
        mask = make_mask(bench, kind)
        inputs = make_inputs(bench, mask)
        grad = torch.randn_like(inputs[0])
        exact = _compute_exact(inputs, mask, grad)
        for implementation in IMPLEMENTATIONS:
            call = partial(attend, mask=mask, implementation=implementation)
            measure = partial(attention_errors, call, inputs, grad, exact)
            bench.measure("agreement", f"{kind}, {implementation}", measure)


def _compute_exact(inputs: list[Tensor], mask: Mask, grad: Tensor) -> list[Tensor]:
    """Return the output and the gradients in float64, computed with padding."""
    q, k, v = doubles = [x.detach().double().requires_grad_() for x in inputs]
    queries, keys = packed_layouts(mask)
    weights = attention_weights(pad_packed(q, queries), pad_packed(k, keys), pad_packed_mask(mask))
    context = pack_padded(weights @ pad_packed(v, keys), queries)
    return [context.detach(), *torch.autograd.grad(context, doubles, grad.double())]


def measure_workload(bench: Bench) -> None:
    """Times of all paths for a packed batch of translation."""
    for kind in MASKS:
        mask = make_mask(bench, kind)
        inputs = make_inputs(bench, mask)
        for implementation in IMPLEMENTATIONS:
            call = partial(attend, mask=mask, implementation=implementation)
            bench.time_gradients("workload", f"{kind}, {implementation}", call, inputs)
    mask = make_mask(bench, "causal")
    inputs, inputs_float32 = make_inputs(bench, mask), make_inputs(bench, mask, torch.float32)
    for implementation in ("triton_varlen", "padded"):
        with_dropout = partial(attend, mask=mask, dropout=0.1, implementation=implementation)
        bench.time_gradients("workload", f"causal, dropout 0.1, {implementation}", with_dropout, inputs)
        call = partial(attend, mask=mask, implementation=implementation)
        bench.time_gradients("workload", f"causal, float32, {implementation}", call, inputs_float32)
    projected = torch.randn(1, bench.tokens, 3 * bench.heads * WIDTH, device=bench.device).to(bench.dtype)
    projected.requires_grad_()

    def attend_projected(x: Tensor, implementation: Any) -> Tensor:
        q, k, v = (part.view(1, -1, bench.heads, WIDTH).transpose(1, 2) for part in x.chunk(3, -1))
        return attend(q, k, v, mask, implementation=implementation)

    for implementation in ("triton_varlen", "flash_varlen"):
        call = partial(attend_projected, implementation=implementation)
        bench.time_gradients("workload", f"causal, one projection, {implementation}", call, [projected])
    bench.measure("workload", "key ranges of a mask", lambda: bench.times("once", lambda: KeyRanges.of(mask)))


def measure_lengths(bench: Bench) -> None:
    """Times by sequence length, for the choice between the two kernels."""
    for length in (64, 128, 256, 512, 1024):
        mask = make_mask(bench, "causal", length, 0.2)
        inputs = make_inputs(bench, mask)
        for implementation in ("triton_varlen", "flash_varlen"):
            call = partial(attend, mask=mask, implementation=implementation)
            bench.time_gradients("lengths", f"about {length}, {implementation}", call, inputs)


TILES = {
    "forward": [
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (64, 128, 4, 1), (64, 128, 8, 1), (32, 64, 4, 1),
        (32, 64, 2, 1), (32, 32, 2, 2),
    ],
    "backward_sequences": [
        (64, 64, 4, 1, 168), (64, 64, 4, 1), (64, 64, 4, 1, 128), (64, 64, 4, 2, 168), (64, 64, 8, 1),
        (64, 64, 8, 1, 128), (32, 64, 4, 1), (128, 128, 8, 1),
    ],
    "backward_queries": [
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 32, 4, 2), (64, 128, 8, 1), (32, 64, 4, 1), (32, 64, 2, 1), (32, 32, 2, 2),
    ],
    "backward_keys": [
        (64, 64, 4, 2), (64, 64, 4, 1), (64, 64, 8, 1), (32, 64, 4, 2), (128, 64, 8, 1), (64, 32, 4, 1), (32, 32, 2, 2),
    ],
}  # fmt: skip


def measure_tiles(bench: Bench, kernel: str) -> None:
    """Times of one kernel with other tile sizes; the two kernels of the tiled backward pass are timed together."""
    default = PLANS[WIDTH]
    forward, backward = torch.ops.regard.attend_key_ranges, torch.ops.regard.attend_key_ranges_backward
    for kind in ("causal", "self"):
        mask = make_mask(bench, kind)
        inputs = [x.detach() for x in make_inputs(bench, mask)]
        ranges = KeyRanges.of(mask) if kernel == "backward_sequences" else _without_programs(mask)
        options = (*ranges, None, None, None, WIDTH**-0.5, 0.0)
        run = partial(forward, *inputs, *options)
        if "backward" in kernel:
            context, lse = run()
            run = partial(backward, torch.randn_like(context), *inputs, context, lse, *options)
        for tiles in TILES[kernel]:
            PLANS[WIDTH] = Plan(**(default._asdict() | {kernel: Tiles(*tiles)}))
            bench.time_op("tiles", f"{kind}, {kernel} {tiles}", run)
        PLANS[WIDTH] = default


def _without_programs(mask: Mask) -> KeyRanges:
    """Return key ranges with which the backward pass uses tiles of the row instead of whole sequences."""
    return KeyRanges.of(mask)._replace(programs=None)


def measure_slots(bench: Bench) -> None:
    """The backward pass by whole sequences in slots, next to tiles of the row; and the key ranges of both."""
    forward, backward = torch.ops.regard.attend_key_ranges, torch.ops.regard.attend_key_ranges_backward
    for kind, dropout in ((kind, dropout) for dropout in (0.0, 0.1) for kind in MASKS):
        mask = make_mask(bench, kind)
        inputs = [x.detach() for x in make_inputs(bench, mask)]
        seed = torch.tensor([1], device=bench.device) if dropout else None
        options = (None, None, seed, WIDTH**-0.5, dropout)
        tiled = _without_programs(mask)
        context, lse = forward(*inputs, *tiled, *options)
        grad = torch.randn_like(context)
        reference = split_projections(backward(grad, *inputs, context, lse, *tiled, *options))
        variants = {"tiles of the row": tiled} | {f"slots of {slot}": KeyRanges.of(mask, slot) for slot in SLOTS}
        for name, ranges in variants.items():
            run = partial(backward, grad, *inputs, context, lse, *ranges, *options)
            measure = partial(_compare_backward, bench, run, reference)
            bench.measure("slots", f"{kind}, dropout {dropout}, {name}", measure)
    for kind in MASKS:
        mask = make_mask(bench, kind)
        queries, keys = packed_layouts(mask)
        for find in (find_by_formula, find_by_kernel):
            run = partial(find, queries, keys, mask.reach)
            bench.measure("slots", f"{kind}, {find.__name__}", partial(bench.times, "once", run))


def _compare_backward(bench: Bench, run: Callable[[], list[Tensor]], reference: Sequence[Tensor]) -> Row:
    """Return the time of a backward pass, and its differences from a reference."""
    gradients = zip(("dq", "dk", "dv"), split_projections(run()), reference, strict=True)
    return {name: relative_error(actual, exact) for name, actual, exact in gradients} | bench.times("backward", run)
