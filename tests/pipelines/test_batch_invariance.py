"""What a sentence becomes does not depend on which sentences are translated beside it."""

import random

import pytest
import torch
from torch import Tensor, nn

from regard.decoding.search import SearchSettings, search
from regard.decoding.stepper import TransformerStepper
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import quantization
from regard.ops.quantization import Precision, prepack, supports

VOCAB, COUNT = 60, 100


def decided_model() -> Transformer:
    """Random weights that leave no near-tie between words, for a rounding error to decide, and that do end."""
    torch.manual_seed(2)
    config = TransformerConfig(
        source_vocab=VOCAB, target_vocab=VOCAB, width=32, heads=4, encoder_layers=2, decoder_layers=2, hidden=64
    )
    model = Transformer(config).eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            # Signs at random: else the embedding, which is also the output, makes every word say itself again.
            module.weight.normal_().sign_()
    last = model.decoder[-1].norm3
    last.weight.mul_(3)
    last.bias.add_(2 * model.target_embedding.weight[config.eos])
    return model


MODEL = decided_model()
DRAW = random.Random(5)
SENTENCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(1, 12))] for _ in range(COUNT)]


def translate(order: list[int], batch: int, beam: int, precision: Precision = "float32") -> list[list[int]]:
    """The best hypothesis of every sentence, searched in this order, in batches of this size."""
    prepack(MODEL, precision)
    stepper = TransformerStepper(MODEL)
    settings = SearchSettings(beam=beam, max_ratio=1.5, max_extra=3)
    results: list[list[int]] = [[] for _ in order]
    for start in range(0, len(order), batch):
        members = order[start : start + batch]
        for i, best in zip(members, search(stepper, [SENTENCES[i] for i in members], settings), strict=True):
            results[i] = best[0].tokens
    return results


@pytest.mark.parametrize("worth", [quantization.MIN_FLOAT32_SIZE, 0], ids=["weights as they are", "weights packed"])
@pytest.mark.parametrize("beam", [1, 4])
def test_batch_size_and_order_change_nothing(beam: int, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization, "MIN_FLOAT32_SIZE", worth)
    shuffled = random.Random(7).sample(range(COUNT), COUNT)
    by_length = sorted(range(COUNT), key=lambda i: len(SENTENCES[i]))
    alone = translate(shuffled, 1, beam)
    for order in (shuffled, by_length):
        for batch in (7, 64):
            assert translate(order, batch, beam) == alone
    assert len({len(tokens) for tokens in alone}) >= 10
    assert len({tuple(tokens) for tokens in alone}) >= COUNT // 2


def count_changes(beam: int, precision: Precision) -> int:
    """How many of the sentences become something else in batches than alone."""
    order = list(range(COUNT))
    alone, together = translate(order, 1, beam, precision), translate(order, 64, beam, precision)
    assert len({tuple(tokens) for tokens in alone}) >= COUNT // 2
    return sum(a != b for a, b in zip(alone, together, strict=True))


def test_company_changes_nothing_in_bfloat16() -> None:
    if not supports("bfloat16"):
        pytest.skip("this processor has no packed products")
    assert count_changes(1, "bfloat16") == 0


def test_company_changes_next_to_nothing_in_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are a vector's own. What is left is the rounding of attention in float32, which may tip a whole number."""
    if not supports("int8"):
        pytest.skip("this processor has no int8")
    assert count_changes(1, "int8") <= 1

    def pack_with_a_scale_for_all(weight: Tensor) -> quantization.PackedLinear:
        packed = quantization._quantise_rows(weight)

        def multiply(rows: Tensor, bias: Tensor | None) -> Tensor:
            y: Tensor = torch.ops.quantized.linear_dynamic(rows, packed)
            return y if bias is None else y + bias

        return multiply

    monkeypatch.setattr(quantization, "_pack_int8", pack_with_a_scale_for_all)
    assert count_changes(1, "int8") >= 15
