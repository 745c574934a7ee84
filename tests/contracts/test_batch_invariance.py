"""Contract 4: a result does not depend on the rest of the batch, on padding or on order."""

import pytest
import torch

from regard.models.swin import Swin
from regard.models.transformer import EncoderDecoder, Transformer
from regard.models.vit import ViT
from tests.contracts.batches import (
    CLOSE,
    LOGITS,
    SOURCE_LENGTHS,
    assert_same,
    images,
    make_pair,
    pad,
    padded_logits,
    sentences,
    single_logits,
)

LAYOUTS = ["padded", "packed"]


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_logits_do_not_depend_on_the_batch(encoder_decoder: EncoderDecoder, layout: str) -> None:
    logits = LOGITS[layout]
    sources, targets = make_pair()
    expected = single_logits(encoder_decoder, sources, targets)
    assert_same(logits(encoder_decoder, sources, targets), expected)
    assert_same(logits(encoder_decoder, sources[:1], targets[:1]), expected[:1])


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_logits_do_not_depend_on_the_order(encoder_decoder: EncoderDecoder, layout: str) -> None:
    logits = LOGITS[layout]
    (sources, targets), order = make_pair(), [2, 0, 3, 1]
    expected = logits(encoder_decoder, sources, targets)
    reordered = logits(encoder_decoder, [sources[i] for i in order], [targets[i] for i in order])
    assert_same(reordered, [expected[i] for i in order])


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_logits_do_not_depend_on_other_sentences(encoder_decoder: EncoderDecoder, layout: str) -> None:
    logits = LOGITS[layout]
    (sources, targets), (other_sources, other_targets) = make_pair(), make_pair(seed=7)
    before = logits(encoder_decoder, sources, targets)
    after = logits(encoder_decoder, other_sources[:2] + sources[2:], other_targets[:2] + targets[2:])
    assert_same(after[2:], before[2:])
    assert not torch.allclose(after[1], before[1], atol=1e-2)


@torch.no_grad()
def test_padding_does_not_change_logits(encoder_decoder: EncoderDecoder) -> None:
    sources, targets = make_pair()
    expected = padded_logits(encoder_decoder, sources, targets)
    assert_same(padded_logits(encoder_decoder, sources, targets, sizes=(12, 11)), expected)
    assert_same(padded_logits(encoder_decoder, sources, targets, sizes=(12, 11), filler=5), expected)


def test_padding_receives_no_gradient(encoder_decoder: EncoderDecoder) -> None:
    sources, targets = make_pair()
    encoder_decoder.zero_grad()
    torch.cat(padded_logits(encoder_decoder, sources, targets, sizes=(12, 11), filler=0)).square().sum().backward()
    table = encoder_decoder.source_embedding.weight.grad
    assert table is not None
    if encoder_decoder.config.tie != "all":  # otherwise the output layer uses every row of the table
        assert (table[:3] == 0).all()
    assert (table[3:] != 0).any()


@torch.no_grad()
def test_decoding_does_not_depend_on_the_batch(autoregressive: Transformer) -> None:
    sources, targets = sentences(SOURCE_LENGTHS), sentences([4] * 4, seed=1)
    (source, layout), (target, _) = pad(sources), pad(targets)
    state = autoregressive.start(autoregressive.encode(source, layout), layout)
    batched = torch.cat([autoregressive.step(part, state) for part in target.split(1, 1)], 1)
    for b, (s, t) in enumerate(zip(sources, targets, strict=True)):
        state = autoregressive.start(autoregressive.encode(s[None]))
        single = torch.cat([autoregressive.step(part, state) for part in t[None].split(1, 1)], 1)
        torch.testing.assert_close(batched[b : b + 1], single, **CLOSE)


@torch.no_grad()
def test_results_of_images_do_not_depend_on_batch_or_order(vision_model: ViT | Swin) -> None:
    x = images(5)
    batched = vision_model(x)
    torch.testing.assert_close(torch.cat([vision_model(image[None]) for image in x]), batched, **CLOSE)
    torch.testing.assert_close(vision_model(x.flip(0)), batched.flip(0), **CLOSE)
    assert batched.std(0).min() > 1e-3, "different images must have different results"
