"""The Vision Transformer: parameter counts, shapes, positions and options."""

import pytest
import torch
from torch import nn

from regard.attention.multi_head import grid_positions
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.layers import Sinusoidal2D
from regard.models.vit import ViT, ViTConfig

PARAMETERS = {
    "tiny": 5_717_416,
    "small": 22_050_664,
    "base": 86_567_656,
    "large": 304_326_632,
    "huge": 632_045_800,
}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def build(**changes: object) -> ViT:
    torch.manual_seed(0)
    sizes = {"classes": 5, "image": 16, "width": 32, "layers": 2, "heads": 2, "hidden": 48}
    return ViT(ViTConfig.mini(**sizes | changes)).eval()


def images(batch: int = 2, height: int = 16, width: int = 16, channels: int = 3) -> torch.Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("preset", PARAMETERS)
def test_presets_have_the_published_numbers_of_parameters(preset: str) -> None:
    with torch.device("meta"):
        assert count(ViT(getattr(ViTConfig, preset)(classes=1000))) == PARAMETERS[preset]


def test_sizes_of_the_small_presets() -> None:
    with torch.device("meta"):
        assert count(ViT(ViTConfig.mini(10))) <= 6_000_000
        assert count(ViT(ViTConfig.micro(10))) <= 1_000_000


def test_shapes_of_the_base_model(capsys: pytest.CaptureFixture[str]) -> None:
    config = ViTConfig.base(layers=1)
    model = ViT(config).eval()
    x = images(1, 224, 224)
    patches = model.patches(x)
    with probe(model) as seen, torch.no_grad():
        tokens = model.tokens(x)
    weights = seen["encoder.0.attention"].weights
    inner, outer = model.encoder[0].feed_forward.inner, model.encoder[0].feed_forward.outer
    shapes = {
        "image": tuple(x.shape),
        "pixels per patch": model.patches.weight[0].numel(),
        "patches": tuple(patches.shape),
        "tokens": tuple(tokens.shape),
        "positions": tuple(model.positions.shape),
        "attention": tuple(weights.shape),
        "head width": config.width // config.heads,
        "feed-forward": (inner.in_features, inner.out_features, outer.out_features),
        "logits": tuple(model(x).shape),
    }
    with capsys.disabled():
        print("\n" + "\n".join(f"  {name}: {shape}" for name, shape in shapes.items()))
    assert shapes == {
        "image": (1, 3, 224, 224),
        "pixels per patch": 768,
        "patches": (1, 196, 768),
        "tokens": (1, 197, 768),
        "positions": (197, 768),
        "attention": (1, 12, 197, 197),
        "head width": 64,
        "feed-forward": (768, 3072, 768),
        "logits": (1, 1000),
    }


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
@pytest.mark.parametrize("pooling", ["class", "mean", "sequence"])
@pytest.mark.parametrize("registers", [0, 3])
def test_logits_are_the_head_of_the_pooled_tokens(positions: str, pooling: str, registers: int) -> None:
    model = build(positions=positions, pooling=pooling, registers=registers, image=(16, 24))
    x = images(3, 16, 24)
    tokens = model.tokens(x)
    assert tokens.shape == (3, (pooling == "class") + registers + 24, 32)
    torch.testing.assert_close(model.embed(x), model.pool(tokens))
    torch.testing.assert_close(model(x), model.head(model.pool(tokens)))
    expected = tokens[:, 0] if pooling == "class" else tokens[:, registers:].mean(1)
    if model.pool_scores is not None:
        scores = [tokens[:, i] @ model.pool_scores.weight[0] for i in range(registers, tokens.shape[1])]
        weights = torch.stack(scores, 1).softmax(1)
        expected = torch.einsum("bn,bnw->bw", weights, tokens[:, registers:])
    torch.testing.assert_close(model.pool(tokens), expected)


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary", "registers": 2, "layer_scale": 0.5}, {"layers": 1}])
def test_last_block_computes_the_class_token_only(changes: dict[str, object]) -> None:
    model, x = build(pooling="class", **changes), images(3)
    sizes = []
    model.encoder[-1].feed_forward.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[1]))
    one_token, all_tokens = model(x), model.head(model.pool(model.tokens(x)))
    assert sizes == [1, 1 + model.config.registers + 16]
    torch.testing.assert_close(one_token, all_tokens)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(logits.square().sum(), parameters) for logits in (one_token, all_tokens)]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_probe_sees_all_tokens_of_the_last_block() -> None:
    model = build(pooling="class")
    with probe(model) as seen:
        model(images())
    assert seen["encoder.1.attention"].weights.shape == (2, 2, 17, 17)


def test_without_classes_there_is_no_head() -> None:
    model = build(classes=0)
    assert not [name for name in model.state_dict() if name.startswith("head")]
    torch.testing.assert_close(model(images()), model.embed(images()))


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_output_depends_on_the_order_of_patches(positions: str) -> None:
    model = build(positions=positions, pooling="class")
    x = images(1)
    swapped = torch.cat((x[..., 8:], x[..., :8]), -1)
    assert not torch.allclose(model(x), model(swapped), atol=1e-4)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_images_of_another_size_are_accepted(positions: str) -> None:
    model = build(positions=positions, pooling="class", registers=1)
    assert model.tokens(images(2, 24, 12)).shape == (2, 2 + 6 * 3, 32)
    resized = model.resized((24, 12))
    assert resized.config.image == (24, 12)
    torch.testing.assert_close(resized(images(2, 24, 12)), model(images(2, 24, 12)))
    assert ViT(resized.config).load_state_dict(resized.state_dict())


def test_positions_of_patches_are_interpolated_bicubically() -> None:
    model = build(pooling="class")
    plain = model.resized(32, antialias=False).positions
    assert torch.equal(plain[0], model.positions[0])
    grid = model.positions[1:].T.reshape(1, 32, 4, 4)
    expected = nn.functional.interpolate(grid, (8, 8), mode="bicubic", align_corners=False)
    torch.testing.assert_close(plain[1:], expected.flatten(2)[0].T)
    smoothed, aliased = (model.resized(8, antialias=antialias).positions for antialias in (True, False))
    assert not torch.allclose(smoothed, aliased, atol=1e-4)


def test_resizing_does_not_change_the_model() -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.resized(32)
    assert model.config.image == (16, 16)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_sincos_positions_equal_the_published_formula() -> None:
    encoding = Sinusoidal2D(16)(grid_positions(3, 5), 5)
    y, x = 2, 3
    frequency = 10_000 ** (-torch.arange(4, dtype=torch.float64) / 4)
    parts = [(x * frequency).sin(), (x * frequency).cos(), (y * frequency).sin(), (y * frequency).cos()]
    torch.testing.assert_close(encoding[y * 5 + x].double(), torch.cat(parts), atol=1e-6, rtol=0)


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_permuted_patches_give_permuted_tokens(positions: str) -> None:
    model = build(positions=positions, pooling="class", registers=1)
    order = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(n)) for n in range(2)])
    ordered, shuffled = model.tokens(images()), model.tokens(images(), order)
    torch.testing.assert_close(shuffled[:, :2], ordered[:, :2], atol=1e-5, rtol=1e-5)
    for row in range(2):
        torch.testing.assert_close(shuffled[row, 2:], ordered[row, 2:][order[row]], atol=1e-5, rtol=1e-5)


def test_dropped_patches_have_no_influence() -> None:
    model = build(pooling="class")
    keep = torch.tensor([[0, 5, 9], [1, 2, 15]])
    x = images()
    changed = x.clone()
    changed[0, :, 12:, 12:] += 1  # patch 15
    assert model.tokens(x, keep).shape == (2, 4, 32)
    assert torch.equal(model.tokens(changed, keep)[0], model.tokens(x, keep)[0])


def test_patch_dropout_acts_in_training_only() -> None:
    model = build(patch_dropout=0.75)
    assert model.tokens(images()).shape[1] == 16
    assert model.train().tokens(images()).shape[1] == 4


def test_stochastic_depth_increases_with_the_layer() -> None:
    model = build(layers=5, drop_path=0.2)
    rates = [block.drop_path.rate for block in model.encoder]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_every_sublayer_has_a_layer_scale() -> None:
    model = build(layer_scale=1e-5)
    scales = [p for name, p in model.named_parameters() if name.split(".")[-1] in ("scale1", "scale2")]
    assert len(scales) == 4
    assert all(torch.equal(p, torch.full((32,), 1e-5)) for p in scales)


INVALID = {
    "image": ({"image": 30}, "30×30 pixels cannot be divided into patches of 4×4; 28×28 or 32×32 would fit"),
    "heads": ({"heads": 5}, "width 32 is not divisible by heads 5"),
    "rotary": ({"heads": 16, "positions": "rotary"}, "head width divisible by 4, not 2"),
    "sincos": ({"width": 30, "positions": "sincos"}, "width divisible by 4, not 30"),
    "linear": ({"attention": "linear", "attention_dropout": 0.1}, "attention_dropout"),
    "unknown": ({"layer": 3}, "unknown key layer; did you mean layers?"),
    "patch": ({"patch": 0}, "patch"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_are_rejected(case: str) -> None:
    changes, message = INVALID[case]
    with pytest.raises(UserError, match=message):
        build(**changes)


def test_image_size_is_bounded() -> None:
    with pytest.raises(UserError, match=r"image.*65536"):
        ViTConfig.parse({"image": 2**40}, "test")
