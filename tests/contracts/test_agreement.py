"""Contract 2: reference, fused, packed, cached and compiled implementations agree within the tolerance of the dtype."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from regard.attention.kinds import Full, Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.multi_head import Attention
from regard.attention.routing import Routing
from regard.masks import Mask, Packed, Padded
from regard.models.swin import Swin
from regard.models.transformer import EncoderDecoder, Transformer, TransformerConfig
from regard.models.vit import ViT
from tests.contracts.batches import (
    CLOSE,
    LOGITS,
    SOURCE_LENGTHS,
    VOCAB,
    assert_same,
    images,
    make_pair,
    pack,
    packed_logits,
    pad,
    padded_logits,
    qkv,
    sentences,
)

# Packed and padded


def test_packed_and_padded_logits_agree(encoder_decoder: EncoderDecoder) -> None:
    sources, targets = make_pair()
    assert_same(packed_logits(encoder_decoder, sources, targets), padded_logits(encoder_decoder, sources, targets))


def test_packed_and_padded_encoder_outputs_agree(encoder_decoder: EncoderDecoder) -> None:
    rows = sentences(SOURCE_LENGTHS)
    (padded, layout), (packed, offsets) = pad(rows), pack(rows)
    expected = encoder_decoder.encode(padded, layout)[layout.real()]
    torch.testing.assert_close(encoder_decoder.encode(packed, offsets)[0], expected, **CLOSE)


def test_packed_and_padded_gradients_agree(encoder_decoder: EncoderDecoder) -> None:
    encoder_decoder.double()
    sources, targets = make_pair()
    gradients = []
    for logits in (padded_logits, packed_logits):
        encoder_decoder.zero_grad()
        torch.cat(logits(encoder_decoder, sources, targets)).sin().sum().backward()
        grads = {name: p.grad.clone() for name, p in encoder_decoder.named_parameters() if p.grad is not None}
        gradients.append(grads)
    padded, packed = gradients
    # The length classifier of NAT models does not contribute to the logits.
    names = {name for name, _ in encoder_decoder.named_parameters() if not name.startswith(("length.", "transitions."))}
    assert padded.keys() == packed.keys() == names
    for name in padded:
        torch.testing.assert_close(packed[name], padded[name], atol=1e-9, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


# Reference and fused


def use_reference(attention: Attention) -> None:
    kind = attention.kind
    if isinstance(kind, Full | Local):
        attention.kind = replace(kind, implementation="reference")
    elif isinstance(kind, Linear):
        kind.implementation = "quadratic"
    else:
        assert isinstance(kind, Routing)
        kind.implementation = "reference"


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_selected_implementations_agree_with_the_reference(encoder_decoder: EncoderDecoder, layout: str) -> None:
    logits = LOGITS[layout]
    sources, targets = make_pair()
    selected = logits(encoder_decoder, sources, targets)
    for module in encoder_decoder.modules():
        if isinstance(module, Attention):
            use_reference(module)
    assert_same(logits(encoder_decoder, sources, targets), selected)


@torch.no_grad()
def test_vision_models_agree_with_the_reference(vision_model: ViT | Swin, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = vision_model(images(2))
    monkeypatch.setattr("regard.attention.core.select_attention", lambda *_: "reference")
    torch.testing.assert_close(vision_model(images(2)), expected, **CLOSE)


@pytest.mark.parametrize("width", [3, 20])
def test_values_may_have_another_width_than_keys(kind: Kind, width: int) -> None:
    for queries in (1, 3, 16, 20):
        q, k, _ = qkv(queries, 20)
        v = torch.randn(2, 2, 20, width, generator=torch.Generator().manual_seed(1))
        for mask in (Mask(), Mask(causal=True), Mask(keys=Padded.of([20, 2]))):
            torch.testing.assert_close(kind(q, k, v, mask), kind.weights(q, k, mask) @ v, **CLOSE)


@pytest.mark.parametrize("width", [3, 20])
def test_packed_values_may_have_another_width_than_keys(packed_kind: Kind, width: int) -> None:
    layout = Packed.of([7, 1, 12])
    q, k, _ = qkv(20, 20, batch=1)
    v = torch.randn(1, 2, 20, width, generator=torch.Generator().manual_seed(1))
    for causal in (False, True):
        mask = Mask(queries=layout, keys=layout, causal=causal)
        torch.testing.assert_close(packed_kind(q, k, v, mask), packed_kind.weights(q, k, mask) @ v, **CLOSE)


# Invalid inputs are rejected with the same error by every kind


@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8)], ids=str)
def test_inputs_without_four_dimensions_are_rejected(kind: Kind, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    with pytest.raises(ValueError, match="q, k and v must have four dimensions"):
        kind(x, x, x, Mask())


def test_masks_that_do_not_fit_are_rejected(kind: Kind) -> None:
    q, k, v = qkv(4, 5)
    with pytest.raises(TypeError, match="mask must be a Mask, not a Tensor"):
        kind(q, k, v, torch.ones(4, 5, dtype=torch.bool))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the dense part of the mask must be broadcastable"):
        kind(q, k, v, Mask(allowed=torch.ones(5, 4, dtype=torch.bool)))
    with pytest.raises(ValueError, match=r"the mask is for \(batch, queries, keys\) = \(2, 4, 4\)"):
        kind(q, k, v, Mask(keys=Padded.of([4, 3])))


# Functional calls


@torch.no_grad()
def test_functional_calls_use_and_restore_parameters(encoder_decoder: EncoderDecoder) -> None:
    sources, targets = make_pair()
    (source, source_layout), (target, target_layout) = pad(sources), pad(targets)
    before = dict(encoder_decoder.named_parameters(remove_duplicate=False))
    expected = encoder_decoder(source, target, source_layout, target_layout)
    doubled = {name: 2 * p for name, p in encoder_decoder.named_parameters()}
    arguments = (source, target, source_layout, target_layout)
    assert not torch.allclose(torch.func.functional_call(encoder_decoder, doubled, arguments), expected)
    for name, p in encoder_decoder.named_parameters(remove_duplicate=False):
        assert p is before[name], name
    torch.testing.assert_close(encoder_decoder(*arguments), expected)


# Cached


@pytest.mark.parametrize("width", [8, 3])
@torch.no_grad()
def test_caches_agree_with_causal_attention(kind: Kind, width: int) -> None:
    q, k, v = (x.detach()[..., :n] for x, n in zip(qkv(20, 20), (8, 8, width), strict=True))
    cache = kind.start_cache()
    steps = [cache.attend(*(x[:, :, t : t + 1] for x in (q, k, v)), Mask(causal=True)) for t in range(20)]
    torch.testing.assert_close(torch.cat(steps, 2), kind(q, k, v, Mask(causal=True)), **CLOSE)


@torch.no_grad()
def test_cached_steps_agree_with_a_forward_pass(autoregressive: Transformer) -> None:
    (source, layout), (target, _) = pad(sentences(SOURCE_LENGTHS)), pad(sentences([6] * 4, seed=1))
    encoder_output = autoregressive.encode(source, layout)
    state = autoregressive.start(encoder_output, layout)
    steps = torch.cat([autoregressive.step(token, state) for token in target.split(1, 1)], 1)
    expected = autoregressive.logits(autoregressive.decode(target, encoder_output, None, layout))
    torch.testing.assert_close(steps, expected, **CLOSE)


@torch.no_grad()
def test_reordered_hypotheses_agree_with_forward_passes(autoregressive: Transformer) -> None:
    (source, layout), K = pad(sentences(SOURCE_LENGTHS)), 3
    encoder_output = autoregressive.encode(source, layout)
    state = autoregressive.start(encoder_output, layout, K)
    generator = torch.Generator().manual_seed(1)
    remaining = torch.arange(len(source))  # sentences that are still decoded
    targets = torch.full((len(remaining) * K, 1), 5)
    for step in range(6):
        logits = autoregressive.step(targets[:, -1].view(-1, K), state).flatten(0, 1)
        sentence = remaining.repeat_interleave(K)
        source_layout = Padded(layout.lengths[sentence], layout.size)
        decoded = autoregressive.decode(targets, encoder_output[sentence], None, source_layout)
        torch.testing.assert_close(logits, autoregressive.logits(decoded[:, -1]), **CLOSE)
        first_rows = K * torch.arange(len(remaining))[:, None]
        parents = torch.randint(K, (len(remaining), K), generator=generator) + first_rows
        if step == 3:
            remaining, parents = remaining[1:], parents[1:]
        rows = parents.flatten()
        state = state.select(rows)
        targets = torch.cat((targets[rows], torch.randint(3, 12, (len(rows), 1), generator=generator)), 1)


# Precision and compilation


@pytest.mark.parametrize("layout", ["padded", "packed"])
@torch.no_grad()
def test_half_precision_agrees_within_rounding(encoder_decoder: EncoderDecoder, layout: str) -> None:
    if encoder_decoder.config.attention.kind == "routing":
        pytest.skip("rounding may change the cluster of a token")
    logits = LOGITS[layout]
    sources, targets = make_pair()
    exact = torch.cat(logits(encoder_decoder.double(), sources, targets))
    rounded = torch.cat(logits(encoder_decoder.bfloat16(), sources, targets)).double()
    assert ((rounded - exact).norm() / exact.norm()).item() < 0.03


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(
    ("attention", "backend"),  # generated C++ takes 20 s to compile, so that only one kind is compiled to machine code
    [("full", "inductor"), ("local", "aot_eager"), ("linear", "aot_eager"), ("routing", "aot_eager")],
)
@torch.no_grad()
def test_compiled_models_agree(attention: str, backend: str) -> None:
    torch.manual_seed(0)
    small = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(TransformerConfig.base(VOCAB, **small, attention=attention)).eval()
    sources, targets = sentences([5, 2, 4]), sentences([3, 6, 1], seed=1)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_same(padded_logits(compiled, sources, targets), padded_logits(model, sources, targets))


@pytest.mark.parametrize("vision_model", ["vit-class-rotary", "swin"], indirect=True)
@torch.no_grad()
def test_compiled_vision_models_agree(vision_model: ViT | Swin) -> None:
    compiled = torch.compile(vision_model, backend="aot_eager")
    result: Tensor = compiled(images(2))
    torch.testing.assert_close(result, vision_model(images(2)), **CLOSE)
