"""Batch invariance: a translation does not depend on the other sentences of the batch."""

import random

import pytest
import torch
from torch import Tensor, nn

from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import linear as linear_module
from regard.ops.linear import Precision, prepack, supports

VOCAB, COUNT = 60, 100


def peaked_model() -> Transformer:
    """Return a model with random weights and peaked predictions, which rounding errors do not change."""
    torch.manual_seed(2)
    config = TransformerConfig(
        source_vocab=VOCAB, target_vocab=VOCAB, width=32, heads=4, encoder_layers=2, decoder_layers=2, hidden=64
    )
    model = Transformer(config).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            # With random signs, the tied output embedding does not make every word repeat itself.
            module.weight.normal_().sign_()
    last = model.decoder[-1].norm3
    last.weight.mul_(3)
    last.bias.add_(2 * model.target_embedding.weight[config.eos])
    return model


MODEL = peaked_model()
DRAW = random.Random(5)
SENTENCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(1, 12))] for _ in range(COUNT)]


def translate(order: list[int], batch: int, beam: int, precision: Precision = "float32") -> list[list[int]]:
    """Return the best hypothesis of every sentence, searched in the given order and batch size."""
    prepack(MODEL, precision)
    stepper = TransformerStepper(MODEL)
    settings = SearchSettings(beam=beam, max_ratio=1.5, max_extra=3)
    results: list[list[int]] = [[] for _ in order]
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        for i, best in zip(members, search_tokens(stepper, [SENTENCES[i] for i in members], settings), strict=True):
            results[i] = best[0].tokens
    return results


@pytest.mark.parametrize("min_size", [linear_module.MIN_FLOAT32_SIZE, 0], ids=["plain weights", "packed weights"])
@pytest.mark.parametrize("beam", [1, 4])
def test_batch_size_and_order_do_not_change_translations(
    beam: int, min_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "MIN_FLOAT32_SIZE", min_size)
    shuffled = random.Random(7).sample(range(COUNT), COUNT)
    by_length = sorted(range(COUNT), key=lambda i: len(SENTENCES[i]))
    alone = translate(shuffled, 1, beam)
    for order in (shuffled, by_length):
        for batch in (7, 64):
            assert translate(order, batch, beam) == alone
    assert len({len(tokens) for tokens in alone}) >= 10
    assert len({tuple(tokens) for tokens in alone}) >= COUNT // 2


def count_changes(beam: int, precision: Precision) -> int:
    """Return the number of sentences whose translation differs between a batch and a single sentence."""
    order = list(range(COUNT))
    alone, together = translate(order, 1, beam, precision), translate(order, 64, beam, precision)
    assert len({tuple(tokens) for tokens in alone}) >= COUNT // 2
    return sum(a != b for a, b in zip(alone, together, strict=True))


def test_batch_does_not_change_translations_in_bfloat16() -> None:
    if not supports("bfloat16"):
        pytest.skip("this CPU does not support bfloat16")
    assert count_changes(1, "bfloat16") == 0


def test_batch_hardly_changes_translations_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each vector has its own scale. Rounding of float32 attention may still change a quantised value."""
    if not supports("int8"):
        pytest.skip("this CPU does not support int8")
    assert count_changes(1, "int8") <= 1

    def pack_with_one_scale_per_batch(weight: Tensor) -> linear_module.PackedLinear:
        packed = linear_module._quantise_rows(weight)

        def multiply(rows: Tensor, bias: Tensor | None) -> Tensor:
            y: Tensor = torch.ops.quantized.linear_dynamic(rows, packed)
            return y if bias is None else y + bias

        return multiply

    monkeypatch.setattr(linear_module, "_pack_int8", pack_with_one_scale_per_batch)
    assert count_changes(1, "int8") >= 15
