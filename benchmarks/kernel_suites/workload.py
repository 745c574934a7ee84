"""A packed batch of translation: its lengths, masks, and projections."""

import math

import torch
from torch import Tensor

from regard.attention.masks import Mask, Packed

from .bench import WIDTH, Bench


def draw_lengths(tokens: int, middle: float, spread: float, seed: int = 0) -> list[int]:
    """Lognormal, until there are so many tokens."""
    source = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    left = tokens
    while left > 0:
        length = round(math.exp(math.log(middle) + spread * torch.randn((), generator=source).item()))
        lengths.append(min(left, max(1, length)))
        left -= lengths[-1]
    return lengths


def make_mask(bench: Bench, kind: str, middle: float = 22, spread: float = 0.6) -> Mask:
    lengths = draw_lengths(bench.tokens, middle, spread)
    queries = Packed.of(lengths, bench.device)
    if kind != "cross":
        return Mask(queries=queries, keys=queries, causal=kind == "causal")
    source = torch.Generator().manual_seed(1)
    factors = torch.exp(0.25 * torch.randn(len(lengths), generator=source)).tolist()
    keys = [max(1, round(n * factor)) for n, factor in zip(lengths, factors, strict=True)]
    return Mask(queries=queries, keys=Packed.of(keys, bench.device))


def make_inputs(bench: Bench, mask: Mask, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Views of projections, as attention gets them."""
    assert isinstance(mask.queries, Packed)
    assert isinstance(mask.keys, Packed)
    torch.manual_seed(0)
    dtype = dtype or bench.dtype
    W = bench.heads * WIDTH
    if mask.queries is mask.keys:
        parts = torch.randn(1, mask.keys.size, 3 * W, device=bench.device).to(dtype).chunk(3, -1)
    else:
        of_keys = torch.randn(1, mask.keys.size, 2 * W, device=bench.device).to(dtype)
        parts = (torch.randn(1, mask.queries.size, W, device=bench.device).to(dtype), *of_keys.chunk(2, -1))
    return [x.view(1, -1, bench.heads, WIDTH).transpose(1, 2).requires_grad_() for x in parts]
