"""Contract 7: attention weights are materialised only under `probe`, which does not change outputs beyond rounding."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.inspection.probe import probe
from regard.models.swin import Swin
from regard.models.transformer import EncoderDecoder
from regard.models.vit import ViT, ViTConfig
from tests.contracts.batches import CLOSE, images, make_pair, padded_logits


def forbid_weights(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            monkeypatch.setattr(type(module.kind), "weights", lambda *_: pytest.fail("weights were materialised"))


def attention_names(model: nn.Module) -> set[str]:
    return {name for name, module in model.named_modules() if isinstance(module, Attention)}


@torch.no_grad()
def test_probe_does_not_change_logits(encoder_decoder: EncoderDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, targets = make_pair()

    def run() -> Tensor:
        return torch.cat(padded_logits(encoder_decoder, sources, targets))

    expected = run()
    with probe(encoder_decoder) as seen:
        torch.testing.assert_close(run(), expected, **CLOSE)
    assert seen.keys() == attention_names(encoder_decoder)
    forbid_weights(encoder_decoder, monkeypatch)
    torch.testing.assert_close(run(), expected, **CLOSE)


@torch.no_grad()
def test_probe_does_not_change_results_of_images(vision_model: ViT | Swin, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = vision_model(images(2))
    with probe(vision_model) as seen:
        torch.testing.assert_close(vision_model(images(2)), expected, **CLOSE)
    assert seen.keys() == attention_names(vision_model)
    assert len(seen) == (4 if isinstance(vision_model, Swin) else 2)
    forbid_weights(vision_model, monkeypatch)
    torch.testing.assert_close(vision_model(images(2)), expected, **CLOSE)


@torch.no_grad()
def test_probed_softmax_weights_sum_to_one(vision_model: ViT | Swin) -> None:
    with probe(vision_model) as seen:
        vision_model(images(2))
    for name, record in seen.items():
        assert record.weights.isfinite().all()
        if not isinstance(vision_model.config, ViTConfig) or vision_model.config.attention.kind in ("full", "local"):
            sums = record.weights.sum(-1)
            torch.testing.assert_close(sums, (record.weights != 0).any(-1).to(sums), msg=name)
