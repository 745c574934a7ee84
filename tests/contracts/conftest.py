"""The models and attention kinds that the contracts are tested with. Add a new one here.

The contracts of the design, one file each:

1. Masks: test_masks.py
2. Agreement of all implementations: test_agreement.py
3. Causality: test_causality.py
4. Batch invariance: test_batch_invariance.py
5. Resume: test_resume.py
6. Model folder: test_folder.py, and test_vision.py for vision models
7. Weights on demand: test_weights_on_demand.py
8. Errors: test_errors.py
"""

from collections.abc import Callable
from itertools import product
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from regard.attention.core import attention_scores
from regard.attention.kinds import Full, Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.routing import Routing
from regard.masks import Mask
from regard.models.nat import NATransformer, NATransformerConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import EncoderDecoder, Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig

Model = TypeVar("Model", bound=nn.Module)

VOCAB = 13
SIZE = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}


def transformer(**changes: object) -> Callable[[], Transformer]:
    return lambda: Transformer(TransformerConfig.base(VOCAB, **SIZE | changes))


def nat(**changes: object) -> Callable[[], NATransformer]:
    """The mask token is one of the random tokens of the tests, so that NAT targets are partly known."""
    return lambda: NATransformer(NATransformerConfig.base(VOCAB, **SIZE | {"bos": 5} | changes))


# Autoregressive models, to which the contract of causality applies.
AUTOREGRESSIVE: dict[str, Callable[[], Transformer]] = {
    **{
        f"transformer-{norm}-{positions}-{tie}": transformer(norm=norm, positions=positions, tie=tie)
        for norm, positions, tie in product(
            ("post", "pre"), ("sinusoidal", "learned", "rotary"), ("all", "target", "none")
        )
    },
    "transformer-diagonal": transformer(positions="diagonal"),
    "transformer-diagonal-scaled": transformer(positions="diagonal-scaled", norm="pre"),
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

# Models with the signature (source, target, source_layout, target_layout) -> logits.
ENCODER_DECODERS: dict[str, Callable[[], EncoderDecoder]] = {
    **AUTOREGRESSIVE,
    "nat-classifier-post-sinusoidal": nat(length="classifier"),
    "nat-end-pre-learned-target": nat(length="end", norm="pre", positions="learned", tie="target"),
    "nat-ctc-pre-rotary-none": nat(length="ctc", norm="pre", positions="rotary", tie="none"),
    "nat-ctc-diagonal": nat(length="ctc", positions="diagonal", width=32),
    "nat-dag": nat(length="dag", upsample_ratio=3),
    "nat-ctc-layer-predictions": nat(length="ctc", upsample_mode="mask", layer_predictions=True),
    "nat-ctc-local": nat(length="ctc", attention={"kind": "local", "window": [2, 1]}),
}


def vit(**changes: object) -> Callable[[], ViT]:
    sizes = {"image": 16, "width": 16, "heads": 2, "hidden": 24, "layers": 2}
    return lambda: ViT(ViTConfig.mini(5, **sizes | changes))


def swin(**changes: object) -> Callable[[], Swin]:
    return lambda: Swin(SwinConfig.mini(5, **{"width": 8, "layers": (2, 2), "heads": (2, 4)} | changes))


# Models with the signature (images) -> logits.
VISION_MODELS: dict[str, Callable[[], ViT | Swin]] = {
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

# Kinds of attention. Dense kinds attend to all keys that a mask allows, sparse kinds to some of them.
HEADS, HEAD_WIDTH = 2, 8
torch.manual_seed(0)


class FromScores(Kind):
    """A kind that defines only its scores, as an extension does."""

    def scores(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        return attention_scores(q, k, mask)


DENSE_KINDS: dict[str, Kind] = {
    "from-scores": FromScores(),
    "full": Full(),
    "full-reference": Full(implementation="reference"),
    "full-sdpa": Full(implementation="sdpa"),
    "full-matmul": Full(implementation="matmul"),
    "local-all": Local(9, 9),
    "linear": Linear(HEAD_WIDTH),
    "linear-random": Linear(HEAD_WIDTH, "random"),
    "linear-plain": Linear(HEAD_WIDTH, "plain"),
    "linear-quadratic": Linear(HEAD_WIDTH, implementation="quadratic"),
    "routing-one": Routing(HEADS, HEAD_WIDTH, 1).eval(),
}
SPARSE_KINDS: dict[str, Kind] = {
    "local": Local(1, 1),
    "local-reference": Local(1, 1, implementation="reference"),
    "local-sparse": Local(1, 1, dilation=2, global_tokens=1),
    "routing": Routing(HEADS, HEAD_WIDTH, 2).eval(),
    "routing-reference": Routing(HEADS, HEAD_WIDTH, 2, implementation="reference").eval(),
}
KINDS = DENSE_KINDS | SPARSE_KINDS
PACKED_KINDS: dict[str, Kind] = {**KINDS, "full-padded": Full(implementation="padded")}


@pytest.fixture(params=ENCODER_DECODERS)
def encoder_decoder(request: pytest.FixtureRequest) -> EncoderDecoder:
    return randomise(ENCODER_DECODERS[request.param]())


@pytest.fixture(params=AUTOREGRESSIVE)
def autoregressive(request: pytest.FixtureRequest) -> Transformer:
    return randomise(AUTOREGRESSIVE[request.param]())


@pytest.fixture(params=VISION_MODELS)
def vision_model(request: pytest.FixtureRequest) -> ViT | Swin:
    return randomise(VISION_MODELS[request.param]())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=PACKED_KINDS)
def packed_kind(request: pytest.FixtureRequest) -> Kind:
    return PACKED_KINDS[request.param]


@pytest.fixture(params=SPARSE_KINDS)
def sparse_kind(request: pytest.FixtureRequest) -> Kind:
    return SPARSE_KINDS[request.param]


@pytest.fixture(params=DENSE_KINDS)
def dense_kind(request: pytest.FixtureRequest) -> Kind:
    return DENSE_KINDS[request.param]


def randomise(model: Model) -> Model:
    """Randomise every parameter, so that zero biases and unit norms hide no error."""
    generator = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) * (0.3 if p.dim() > 1 else 0.5) + (p.dim() == 1) * 0.5
    return model.eval()
