"""Recorded vectors between the sublayers of models."""

import pytest
import torch
from torch import nn

from regard.inspection.flow import record_flow
from regard.layers import ResidualBlock
from regard.models.croco import CroCo, CroCoConfig
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.vit import ViT, ViTConfig


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_steps_of_a_transformer_lead_from_its_embedding_to_its_logits(norm: str) -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig.tiny(vocab=20, width=16, heads=2, norm=norm)).eval()
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])
    with torch.no_grad():
        expected = model(source, target)
        with record_flow(model) as flow:
            logits = model(source, target)
    assert torch.equal(logits, expected)
    blocks = flow.blocks()
    assert blocks == [f"{stack}.{layer}" for stack in ("encoder", "decoder") for layer in range(4)]
    assert torch.equal(flow.input("encoder.0"), flow.output("source_embedding"))
    for block in blocks:
        steps = flow.steps(block)
        sublayers = (
            ["attention", "cross", "feed_forward"] if block.startswith("decoder") else ["attention", "feed_forward"]
        )
        assert [step.sublayer for step in steps] == sublayers
        stream, module = flow.input(block), flow.module(block)
        for number, step in enumerate(steps, 1):
            stream = stream + step.update
            if norm == "post":
                stream = getattr(module, f"norm{number}")(stream)
            torch.testing.assert_close(step.output, stream, atol=1e-5, rtol=1e-4)
            stream = step.output
    with torch.no_grad():
        torch.testing.assert_close(model.logits(flow.output("decoder_norm")), expected[0])


@pytest.mark.parametrize("model", [ViT(ViTConfig.micro(3)), Swin(SwinConfig.mini(3))], ids=["vit", "swin"])
def test_steps_of_image_models_are_recorded(model: nn.Module) -> None:
    with torch.no_grad(), record_flow(model.eval()) as flow:
        model(torch.rand(1, 3, 32, 32))
    assert len(flow.blocks()) == sum(isinstance(module, ResidualBlock) for module in model.modules())
    for block in flow.blocks():
        last = flow.steps(block)[-1]
        assert torch.equal(last.output, flow.output(block))
        assert last.update.abs().max() > 0


def test_calls_with_the_same_weights_are_kept_apart() -> None:
    model = CroCo(CroCoConfig.micro()).eval()
    with torch.no_grad(), record_flow(model) as flow:
        model.decode_views(torch.zeros(1, 3, 64, 64), torch.rand(1, 3, 64, 64))
    second, first = (flow.steps("encoder.0", call)[0].output for call in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(flow.input("encoder.1", 1), flow.output("encoder.0", 1))


def test_hooks_are_removed_after_an_error() -> None:
    model = ViT(ViTConfig.micro(3))
    with pytest.raises(ZeroDivisionError), record_flow(model):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in model.modules())
