"""`ablate` and `scale_heads`: a model with some of its heads switched off, or counting for more or less."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from regard.attention.multi_head import use_head_scales
from regard.inspection.attentions import check_heads, find_attentions


@contextmanager
def ablate(model: nn.Module, heads: Mapping[str, Collection[int]]) -> Iterator[None]:
    """Switches heads off while the block runs: `ablate(model, {"decoder.3.cross": [0, 5]})`.

    The output projection gets zeros in place of what these heads made, as if its columns for them were zero. Holds for
    whatever uses the model meanwhile: training, translation with caches and beams, probes.

    Raises:
        UserError: the model has no such attention, or the attention no such head.
    """
    with scale_heads(model, {name: dict.fromkeys(off, 0.0) for name, off in heads.items()}):
        yield


@contextmanager
def scale_heads(model: nn.Module, factors: Mapping[str, Mapping[int, float]]) -> Iterator[None]:
    """Multiplies what heads make by a factor while the block runs: `{"decoder.3.cross": {0: 0.5}}`; others stay.

    One within another multiplies with it.

    Raises:
        UserError: the model has no such attention, or the attention no such head.
    """
    scales = {}
    for name, attention in find_attentions(model, list(factors)).items():
        check_heads(name, attention, factors[name].keys())
        scale = torch.ones(attention.heads, device=attention.out.weight.device)
        for head, factor in factors[name].items():
            scale[head] = factor
        scales[attention] = scale
    with use_head_scales(scales):
        yield
