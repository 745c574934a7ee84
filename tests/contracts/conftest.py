"""What the contracts run over. A new model, a new kind of attention or a new path is one more line here."""

from collections.abc import Callable
from itertools import product
from typing import TypeVar

import pytest
import torch
from torch import nn

from regard.attention import Full, Kind
from regard.models.transformer import Transformer, TransformerConfig

Model = TypeVar("Model", bound=nn.Module)

VOCAB = 13
SIZE = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}


def transformer(**changes: object) -> Callable[[], Transformer]:
    return lambda: Transformer(TransformerConfig.base(VOCAB, **SIZE | changes))


# Models that read a source and write a target: (source, target, source_layout, target_layout) -> logits.
TRANSLATORS: dict[str, Callable[[], Transformer]] = {
    **{
        f"transformer-{norm}-{positions}-{tie}": transformer(norm=norm, positions=positions, tie=tie)
        for norm, positions, tie in product(
            ("post", "pre"), ("sinusoidal", "learned", "rotary"), ("all", "target", "none")
        )
    },
    "transformer-swiglu-plain": transformer(activation="swiglu", qkv_bias=False, qk_scale=0.5, heads=1),
}

# Kinds of attention for padded batches, and for packed ones.
KINDS: dict[str, Kind] = {
    "full": Full(),
    "full-reference": Full(path="reference"),
    "full-fused": Full(path="fused"),
    "full-few": Full(path="few"),
}
PACKED_KINDS: dict[str, Kind] = {**KINDS, "full-unpacked": Full(path="unpacked")}


@pytest.fixture(params=TRANSLATORS)
def translator(request: pytest.FixtureRequest) -> Transformer:
    return lively(TRANSLATORS[request.param]())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=PACKED_KINDS)
def packed_kind(request: pytest.FixtureRequest) -> Kind:
    return PACKED_KINDS[request.param]


def lively(model: Model) -> Model:
    """The model with random numbers in every parameter, so that no zero bias and no unit norm hides a mistake."""
    source = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=source) * (0.3 if p.dim() > 1 else 0.5) + (p.dim() == 1) * 0.5
    return model.eval()
