"""CroCo: parameter counts, dependencies between patches, and heads."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.layers import patchify, unpatchify
from regard.models.croco import CroCo, CroCoConfig, DenseHead, DoubleResolution
from regard.models.folder import load_model, save_model

MILLIONS = {"small": 120.08, "base": 200.27, "large": 417.92}
VISIBLE = torch.tensor([[0, 5, 7], [3, 1, 11]])


def tiny(**changes: object) -> CroCo:
    torch.manual_seed(0)
    sizes = {"patch": 4, "width": 16, "heads": 2, "layers": 2, "decoder_width": 24, "decoder_heads": 2}
    model = CroCo(CroCoConfig.micro(**sizes | {"decoder_layers": 2} | changes)).eval()
    for parameter in model.parameters():
        if parameter.dim() < 2:  # biases of 0 and weights of 1 would hide errors
            nn.init.normal_(parameter, 0.3, 0.3)
    return model


def view(seed: int, height: int = 12, width: int = 16, batch: int = 2) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("preset", MILLIONS)
def test_presets_have_the_published_numbers_of_parameters(preset: str) -> None:
    with torch.device("meta"):
        model = CroCo(getattr(CroCoConfig, preset)())
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == MILLIONS[preset]


def test_bias_and_scale_of_all_attentions_can_be_set() -> None:
    model = tiny(qkv_bias=False, qk_scale=0.2)
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    assert len(attentions) == 2 + 2 * 2
    assert {attention.qkv.bias for attention in attentions} == {None}
    assert {attention.kind for attention in attentions} == {Full(scale=0.2)}
    with probe(model, ["decoder.1.cross"], record=["scores", "q", "k"]) as seen:
        model(view(1), view(2))
    record = seen["decoder.1.cross"]
    assert torch.allclose(record.scores, 0.2 * record.q @ record.k.transpose(-2, -1), atol=1e-5)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_gradient_of_a_blank_second_view_is_not_large(precision: torch.dtype) -> None:
    torch.manual_seed(0)
    model = CroCo(CroCoConfig.micro(patch=4, layers=4))

    def gradient_norm(second: Tensor) -> float:
        model.zero_grad()
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            prediction = model(view(1), second, VISIBLE)
        prediction.float().square().mean().backward()
        return float(nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))

    assert gradient_norm(torch.full_like(view(2), model.config.mean)) < 5 * gradient_norm(view(2))


def test_encoder_processes_visible_patches_and_decoder_all() -> None:
    model = tiny()
    with probe(model) as seen, torch.no_grad():
        prediction = model(view(1), view(2), VISIBLE)
    assert prediction.shape == (2, 12, 48)
    # The encoder processes the first view last.
    assert seen["encoder.0.attention"].weights.shape == (2, 2, 3, 3)
    assert seen["decoder.0.attention"].weights.shape == (2, 2, 12, 12)
    assert seen["decoder.1.cross"].weights.shape == (2, 2, 12, 12)


@pytest.mark.parametrize("positions", ["rotary", "sincos"])
@torch.no_grad()
def test_output_depends_on_visible_patches_only(positions: str) -> None:
    model = tiny(positions=positions)
    one, other = view(1), view(2)
    before = model(one, other, VISIBLE)
    patches = patchify(one, (4, 4))
    masked = torch.ones(2, 12, dtype=torch.bool).scatter(1, VISIBLE, False)
    hidden = unpatchify(torch.where(masked[..., None], 1 - patches, patches), (3, 4), (4, 4))
    changed = unpatchify(torch.where(masked[..., None], patches, 1 - patches), (3, 4), (4, 4))
    assert torch.equal(model(hidden, other, VISIBLE), before)
    for different in (model(changed, other, VISIBLE), model(one, view(3), VISIBLE)):
        assert (different - before).abs().amax(-1).min() > 1e-4  # at every patch


@pytest.mark.parametrize("positions", ["rotary", "sincos"])
@torch.no_grad()
def test_output_depends_on_positions_in_the_other_view(positions: str) -> None:
    model = tiny(positions=positions, layers=1)
    shifted = unpatchify(patchify(view(2), (4, 4)).roll(1, 1), (3, 4), (4, 4))
    assert not torch.allclose(model(view(1), view(2), VISIBLE), model(view(1), shifted, VISIBLE), atol=1e-4)


@torch.no_grad()
def test_output_does_not_depend_on_the_order_of_visible_patches() -> None:
    model = tiny()
    assert torch.allclose(model(view(1), view(2), VISIBLE), model(view(1), view(2), VISIBLE.flip(1)), atol=1e-5)


@torch.no_grad()
def test_output_does_not_depend_on_the_rest_of_the_batch() -> None:
    model = tiny()
    both, alone = model(view(1), view(2), VISIBLE), model(view(1)[1:], view(2)[1:], VISIBLE[1:])
    assert torch.allclose(both[1:], alone, atol=1e-5)


@torch.no_grad()
def test_features_of_one_view_and_of_a_pair() -> None:
    model = tiny()
    assert model.embed(view(1)).shape == (2, 12, 16)
    assert model.decode_views(view(1), view(2)).shape == (2, 12, 24)
    assert model.decode_views(view(1), view(2, 8, 24)).shape == (2, 12, 24)  # the other view may have another size
    assert not torch.allclose(model.decode_views(view(1), view(2)), model.decode_views(view(1), view(3)), atol=1e-3)


@torch.no_grad()
def test_every_decoder_block_normalises_the_second_view() -> None:
    model = tiny()
    before = model(view(1), view(2))
    assert not torch.equal(model.decoder[0].source_norm.weight, model.decoder[1].source_norm.weight)
    for block in model.decoder:
        block.source_norm.weight.zero_()
    without = model(view(1), view(2))
    assert not torch.allclose(before, without)
    assert torch.allclose(without, model(view(1), view(3)), atol=1e-5)  # only the bias of the norm is left


def test_stochastic_depth_increases_over_each_stack() -> None:
    model = tiny(drop_path=0.3, decoder_layers=4)
    rates = [[block.drop_path.rate for block in stack] for stack in (model.encoder, model.decoder)]
    assert rates == [pytest.approx([0, 0.3]), pytest.approx([0, 0.1, 0.2, 0.3])]


@pytest.mark.parametrize("changes", [{}, {"positions": "sincos"}, {"head": "dense"}], ids=str)
def test_every_parameter_has_a_gradient(changes: dict[str, object]) -> None:
    model = tiny(**changes).train()
    model(view(1), view(2), VISIBLE).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


def test_target_patches_have_zero_mean_and_unit_variance() -> None:
    model, image = tiny(), view(1) * 0.5 + 0.2
    targets = model.normalised_patches(image)
    assert torch.allclose(targets.mean(-1), torch.zeros(2, 12), atol=1e-5)
    assert torch.allclose(targets.std(-1), torch.ones(2, 12), atol=0.02)
    assert torch.allclose(model.unnormalise_patches(targets, image), image, atol=1e-5)
    assert model.normalised_patches(torch.full((1, 3, 12, 16), 0.3)).abs().max() < 1e-2  # no noise


@torch.no_grad()
def test_dense_head_has_outputs_for_every_pixel() -> None:
    model = tiny(head="dense", outputs=2)
    assert model(view(1), view(2)).shape == (2, 2, 12, 16)
    with pytest.raises(UserError, match="needs a patch size that is a power of 2, not 12"):
        CroCoConfig.micro(head="dense", patch=12)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 1, 5), (1, 2, 6, 3)], ids=str)
def test_doubled_resolution_is_bilinear_interpolation(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    found, expected = DoubleResolution()(x), F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_dense_head_halves_the_width_at_each_doubling_of_the_resolution() -> None:
    head = tiny(head="dense", patch=16, head_width=6, decoder_width=24).head
    assert isinstance(head, DenseHead)
    layers = [head.first, *(step[1] for step in head.steps), head.last]
    # Twice the width at half the resolution, but at most the width of the decoder.
    assert [layer.in_channels for layer in layers] == [24, 24, 24, 24, 12, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 90, "heads": 4}, "width 90 is not divisible by heads 4"),
        ({"decoder_width": 90, "decoder_heads": 4}, "decoder_width 90 is not divisible by decoder_heads 4"),
        ({"width": 60, "heads": 10}, "head width divisible by 4, not 6"),
        ({"positions": "sincos", "decoder_width": 30, "decoder_heads": 2}, "decoder_width divisible by 4, not 30"),
        ({"depth": 3}, "unknown key depth"),
    ],
)
def test_invalid_settings_are_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CroCoConfig.micro(**changes)


def test_views_of_invalid_size_are_rejected() -> None:
    with pytest.raises(
        UserError, match=r"13×16 pixels cannot be divided into patches of 4×4; 12×16 or 16×16 would fit"
    ):
        tiny()(view(1, 13), view(2))


@torch.no_grad()
def test_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = tiny(positions="sincos")
    save_model(tmp_path, model, {})
    loaded, _ = load_model(tmp_path)
    assert torch.equal(loaded(view(1), view(2), VISIBLE), model(view(1), view(2), VISIBLE))
