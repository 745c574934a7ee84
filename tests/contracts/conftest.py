"""What the contracts run over. A new model, a new kind of attention or a new path is one more line here."""

from collections.abc import Callable
from itertools import product
from typing import TypeVar

import pytest
import torch
from torch import nn

from regard.attention.core import Full
from regard.attention.kind import Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.routing import Routing
from regard.models.nat import NATransformer, NATransformerConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import EncoderDecoder, Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

Model = TypeVar("Model", bound=nn.Module)

VOCAB = 13
SIZE = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}


def transformer(**changes: object) -> Callable[[], Transformer]:
    return lambda: Transformer(TransformerConfig.base(VOCAB, **SIZE | changes))


def parallel(**changes: object) -> Callable[[], NATransformer]:
    """One of the ordinary words of these tests is the mask, so that canvases are partly known."""
    return lambda: NATransformer(NATransformerConfig.base(VOCAB, **SIZE | {"bos": 5} | changes))


# Models that write one token after another, to which the contract of causality applies.
STEPWISE: dict[str, Callable[[], Transformer]] = {
    **{
        f"transformer-{norm}-{positions}-{tie}": transformer(norm=norm, positions=positions, tie=tie)
        for norm, positions, tie in product(
            ("post", "pre"), ("sinusoidal", "learned", "rotary"), ("all", "target", "none")
        )
    },
    "transformer-swiglu-plain": transformer(activation="swiglu", qkv_bias=False, qk_scale=0.5, heads=1),
    "transformer-local": transformer(attention={"kind": "local", "window": [2, 1]}, positions="rotary"),
    "transformer-local-sparse": transformer(
        attention={"kind": "local", "window": 1, "dilation": 2, "global_tokens": 1}
    ),
    "transformer-linear": transformer(attention="linear", qk_scale=0.3),
    "transformer-linear-random": transformer(attention={"kind": "linear", "features": "random"}, positions="rotary"),
    "transformer-linear-plain": transformer(attention={"kind": "linear", "features": "plain"}, norm="pre"),
    "transformer-routing": transformer(attention={"kind": "routing", "clusters": 2}),
}

# Models that read a source and write a target: (source, target, source_layout, target_layout) -> logits. In those that
# write all tokens at once, a later token may of course change an earlier output.
TRANSLATORS: dict[str, Callable[[], EncoderDecoder]] = {
    **STEPWISE,
    "nat-classifier-post-sinusoidal": parallel(length="classifier"),
    "nat-end-pre-learned-target": parallel(length="end", norm="pre", positions="learned", tie="target"),
    "nat-ctc-pre-rotary-none": parallel(length="ctc", norm="pre", positions="rotary", tie="none"),
    "nat-ctc-local": parallel(length="ctc", attention={"kind": "local", "window": [2, 1]}),
}


def vit(**changes: object) -> Callable[[], ViT]:
    sizes = {"image": 16, "width": 16, "heads": 2, "hidden": 24, "layers": 2}
    return lambda: ViT(ViTConfig.mini(5, **sizes | changes))


def swin(**changes: object) -> Callable[[], Swin]:
    return lambda: Swin(SwinConfig.mini(5, **{"width": 8, "layers": (2, 2), "heads": (2, 4)} | changes))


# Models that read images: (images) -> logits.
SEEING: dict[str, Callable[[], ViT | Swin]] = {
    **{
        f"vit-{pooling}-{positions}": vit(pooling=pooling, positions=positions)
        for pooling, positions in product(("class", "mean"), ("learned", "sincos", "rotary"))
    },
    "vit-registers-scaled": vit(pooling="class", registers=2, layer_scale=0.1, qkv_bias=False, qk_scale=0.3),
    "vit-convolutions": vit(stem="convolutions", positions="rotary"),
    "vit-local": vit(attention={"kind": "local", "window": 2}),
    "vit-local-sparse": vit(
        attention={"kind": "local", "window": 1, "dilation": 2, "global_tokens": 1}, pooling="class"
    ),
    "vit-linear": vit(attention="linear"),
    "vit-linear-random": vit(attention={"kind": "linear", "features": "random"}, positions="rotary"),
    "vit-linear-plain": vit(attention={"kind": "linear", "features": "plain"}),
    "vit-routing": vit(attention={"kind": "routing", "clusters": 2}),
    "swin": swin(),
    "swin-odd-windows": swin(window=(3, 2), qkv_bias=False, qk_scale=0.3),
}

# Kinds of attention for padded batches, and for packed ones. Those of the first list look at all that a mask allows.
HEADS, HEAD_WIDTH = 2, 8
torch.manual_seed(0)
WIDE_KINDS: dict[str, Kind] = {
    "full": Full(),
    "full-reference": Full(path="reference"),
    "full-sdpa": Full(path="sdpa"),
    "full-matmul": Full(path="matmul"),
    "local-wide": Local(9, 9),
    "linear": Linear(HEAD_WIDTH),
    "linear-random": Linear(HEAD_WIDTH, "random"),
    "linear-plain": Linear(HEAD_WIDTH, "plain"),
    "linear-quadratic": Linear(HEAD_WIDTH, path="quadratic"),
    "routing-one": Routing(HEADS, HEAD_WIDTH, 1).eval(),
}
NARROW_KINDS: dict[str, Kind] = {
    "local": Local(1, 1),
    "local-reference": Local(1, 1, path="reference"),
    "local-sparse": Local(1, 1, dilation=2, global_tokens=1),
    "routing": Routing(HEADS, HEAD_WIDTH, 2).eval(),
    "routing-reference": Routing(HEADS, HEAD_WIDTH, 2, path="reference").eval(),
}
KINDS = WIDE_KINDS | NARROW_KINDS
PACKED_KINDS: dict[str, Kind] = {**KINDS, "full-padded": Full(path="padded")}


@pytest.fixture(params=TRANSLATORS)
def translator(request: pytest.FixtureRequest) -> EncoderDecoder:
    return lively(TRANSLATORS[request.param]())


@pytest.fixture(params=STEPWISE)
def stepwise(request: pytest.FixtureRequest) -> Transformer:
    return lively(STEPWISE[request.param]())


@pytest.fixture(params=SEEING)
def seeing(request: pytest.FixtureRequest) -> ViT | Swin:
    return lively(SEEING[request.param]())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=PACKED_KINDS)
def packed_kind(request: pytest.FixtureRequest) -> Kind:
    return PACKED_KINDS[request.param]


@pytest.fixture(params=NARROW_KINDS)
def narrow_kind(request: pytest.FixtureRequest) -> Kind:
    return NARROW_KINDS[request.param]


@pytest.fixture(params=WIDE_KINDS)
def wide_kind(request: pytest.FixtureRequest) -> Kind:
    return WIDE_KINDS[request.param]


def lively(model: Model) -> Model:
    """The model with random numbers in every parameter, so that no zero bias and no unit norm hides a mistake."""
    source = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=source) * (0.3 if p.dim() > 1 else 0.5) + (p.dim() == 1) * 0.5
    return model.eval()
