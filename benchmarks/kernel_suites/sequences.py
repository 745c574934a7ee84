"""Attention of many short sequences: errors, times, tiles, and up to which lengths it is the better way."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.attention.core import attend, attention_weights
from regard.attention.masks import Mask, Packed
from regard.attention.packing import pack_padded, pad_packed, pad_packed_mask
from regard.ops.key_ranges import KeyRanges, find_by_formula, find_by_kernel
from regard.ops.varlen_attention import PLANS, Plan, Tiles, split_projections

from .bench import WIDTH, Bench, Row, errors
from .workload import make_inputs, make_mask

KINDS = ("self", "causal", "cross")
PATHS = ("triton_varlen", "flash_varlen", "padded")


def measure_agreement(bench: Bench) -> None:
    """Relative errors of the context and the gradients."""
    for kind in KINDS:
        mask = make_mask(bench, kind)
        inputs = make_inputs(bench, mask)
        grad = torch.randn_like(inputs[0])
        exact = _exactly(inputs, mask, grad)
        for path in PATHS:
            call = partial(attend, mask=mask, path=path)
            bench.attempt("agreement", f"{kind}, {path}", partial(errors, call, inputs, grad, exact))


def _exactly(inputs: list[Tensor], mask: Mask, grad: Tensor) -> list[Tensor]:
    """Context and gradients in float64, one sequence a row."""
    q, k, v = wide = [x.detach().double().requires_grad_() for x in inputs]
    queries, keys = mask.queries, mask.keys
    assert isinstance(queries, Packed)
    assert isinstance(keys, Packed)
    context = pack_padded(
        attention_weights(pad_packed(q, queries), pad_packed(k, keys), pad_packed_mask(mask)) @ pad_packed(v, keys),
        queries,
    )
    return [context.detach(), *torch.autograd.grad(context, wide, grad.double())]


def measure_workload(bench: Bench) -> None:
    for kind in KINDS:
        mask = make_mask(bench, kind)
        inputs = make_inputs(bench, mask)
        for path in PATHS:
            bench.compare("workload", f"{kind}, {path}", partial(attend, mask=mask, path=path), inputs)
    mask = make_mask(bench, "causal")
    inputs = make_inputs(bench, mask)
    wide = make_inputs(bench, mask, torch.float32)
    for path in ("triton_varlen", "padded"):
        dropping = partial(attend, mask=mask, dropout=0.1, path=path)
        bench.compare("workload", f"causal, dropout 0.1, {path}", dropping, inputs)
        bench.compare("workload", f"causal, float32, {path}", partial(attend, mask=mask, path=path), wide)
    together = torch.randn(1, bench.tokens, 3 * bench.heads * WIDTH, device=bench.device).to(bench.dtype)
    together.requires_grad_()

    def from_projection(x: Tensor, path: Any) -> Tensor:
        q, k, v = (part.view(1, -1, bench.heads, WIDTH).transpose(1, 2) for part in x.chunk(3, -1))
        return attend(q, k, v, mask, path=path)

    for path in ("triton_varlen", "flash_varlen"):
        bench.compare("workload", f"causal, one projection, {path}", partial(from_projection, path=path), [together])
    bench.attempt(
        "workload", "what follows from the mask, once", lambda: bench.times("once", lambda: KeyRanges.of(mask))
    )


def measure_lengths(bench: Bench) -> None:
    """Up to which lengths the tiles that sequences share are the better ones."""
    for middle in (64, 128, 256, 512, 1024):
        mask = make_mask(bench, "causal", middle, 0.2)
        inputs = make_inputs(bench, mask)
        for path in ("triton_varlen", "flash_varlen"):
            bench.compare("lengths", f"about {middle}, {path}", partial(attend, mask=mask, path=path), inputs)


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
    """One kernel with other tiles; backward's two kernels are timed together, the other as it is."""
    usual = PLANS[WIDTH]
    forward, backward = torch.ops.regard.attend_key_ranges, torch.ops.regard.attend_key_ranges_backward
    for kind in ("causal", "self"):
        mask = make_mask(bench, kind)
        inputs = [x.detach() for x in make_inputs(bench, mask)]
        runs = KeyRanges.of(mask) if kernel == "backward_sequences" else _tiled(mask)
        rest = (*runs, None, None, None, WIDTH**-0.5, 0.0)
        run = partial(forward, *inputs, *rest)
        if "backward" in kernel:
            context, lse = run()
            run = partial(backward, torch.randn_like(context), *inputs, context, lse, *rest)
        for choice in TILES[kernel]:
            PLANS[WIDTH] = Plan(**(usual._asdict() | {kernel: Tiles(*choice)}))
            bench.attempt("tiles", f"{kind}, {kernel} {choice}", partial(bench.times, "op", run))
        PLANS[WIDTH] = usual


def _tiled(mask: Mask) -> KeyRanges:
    """Without slots the way back is by tiles of the row, too."""
    return KeyRanges.of(mask)._replace(programs=None)


def measure_slots(bench: Bench) -> None:
    """The way back by whole sequences, in slots, beside tiles of the row; and what follows from the mask for either."""
    forward, backward = torch.ops.regard.attend_key_ranges, torch.ops.regard.attend_key_ranges_backward
    for kind, dropout in ((kind, dropout) for dropout in (0.0, 0.1) for kind in KINDS):
        mask = make_mask(bench, kind)
        inputs = [x.detach() for x in make_inputs(bench, mask)]
        seed = torch.tensor([1], device=bench.device) if dropout else None
        numbers = (None, None, seed, WIDTH**-0.5, dropout)
        context, lse = forward(*inputs, *_tiled(mask), *numbers)
        grad = torch.randn_like(context)
        exact = split_projections(backward(grad, *inputs, context, lse, *_tiled(mask), *numbers))
        for slot in (None, 16, 24, 32, 40, 48, 64):
            runs = _tiled(mask) if slot is None else KeyRanges.of(mask, slot)
            back = partial(backward, grad, *inputs, context, lse, *runs, *numbers)
            name = f"{kind}, dropout {dropout}, " + ("tiles of the row" if slot is None else f"slots of {slot}")
            bench.attempt("slots", name, partial(_compare, bench, back, exact))
    for kind in KINDS:
        mask = make_mask(bench, kind)
        assert isinstance(mask.queries, Packed)
        assert isinstance(mask.keys, Packed)
        for find in (find_by_formula, find_by_kernel):
            once = partial(find, mask.queries, mask.keys, mask.reach)
            bench.attempt("slots", f"{kind}, {find.__name__}", partial(bench.times, "once", once))


def _compare(bench: Bench, back: Callable[[], list[Tensor]], exact: Sequence[Tensor]) -> Row:
    """The time of a way back, and how far what it makes lies from what another made."""
    found = {
        name: ((mine.double() - theirs.double()).norm() / theirs.double().norm()).item()
        for name, mine, theirs in zip(("dq", "dk", "dv"), split_projections(back()), exact, strict=True)
    }
    return found | bench.times("backward", back)
