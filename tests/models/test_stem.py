"""The convolutional stem of a ViT."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import UserError
from regard.interop.huggingface_vision import to_huggingface
from regard.interop.timm import to_timm
from regard.interop.torchvision import to_torchvision
from regard.models.folder import CONFIG, load_model, save_model
from regard.models.vit import ConvolutionalStem, ViT, ViTConfig
from regard.training.tasks.classification.recipe import ClassificationRecipe
from regard.training.tasks.registry import load_recipe
from tests.conftest import Command
from tests.images import TINY

SMALL = {"image": 16, "width": 32, "layers": 2, "heads": 2, "hidden": 48, "stem": "convolutions"}


def build(**changes: object) -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig.mini(5, **SMALL | changes)).eval()


def images(batch: int = 2, height: int = 16, width: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def reference(stem: ConvolutionalStem, x: Tensor) -> Tensor:
    """The formula of the paper with channels first and a final 1×1 convolution."""
    for step, (convolution, norm) in enumerate(zip(stem.convolutions, stem.norms, strict=True)):
        x = F.conv2d(x, convolution.weight, convolution.bias, stride=2 if step else 1, padding=1)
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
        x = (x - mean) / (variance + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
        x = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    x = F.conv2d(x, stem.projection.weight[:, :, None, None], stem.projection.bias)
    return x.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_stem_equals_the_formula_of_the_paper(patch: int) -> None:
    stem = build(patch=patch).patches
    assert isinstance(stem, ConvolutionalStem)
    for tensor in stem.parameters():
        torch.nn.init.normal_(tensor, std=0.3)
    x = images(2, 16, 24)
    torch.testing.assert_close(stem(x), reference(stem, x), atol=1e-4, rtol=1e-4)
    assert stem(x).shape == (2, 16 * 24 // patch**2, 32)


def test_channels_double_up_to_the_width() -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig.mini(10, stem="convolutions"))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.patches.state_dict().items() if tensor.dim() > 1}
    assert shapes == {
        "convolutions.0.weight": (64, 3, 3, 3),
        "convolutions.1.weight": (128, 64, 3, 3),
        "convolutions.2.weight": (256, 128, 3, 3),
        "projection.weight": (256, 256),
    }
    assert count(model) == 5_985_290  # stated in docs/vision.md


def test_stem_depth_is_the_number_of_convolutions_per_resolution() -> None:
    model = ViT(ViTConfig.mini(10, width=32, layers=1, stem="convolutions", stem_depth=2))
    sizes = [(c.in_channels, c.out_channels, c.stride[0]) for c in model.patches.convolutions]
    assert sizes == [(3, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1)]
    assert model.tokens(torch.rand(2, 3, 32, 40)).shape == (2, 80, 32)
    with pytest.raises(UserError, match="stem_depth is the depth of a convolutional stem; set stem=convolutions"):
        ViTConfig.mini(10, stem_depth=2)


def test_cifar10_recipe_has_a_small_model_with_a_convolutional_stem() -> None:
    recipe = load_recipe(Path("cifar10"))
    assert isinstance(recipe, ClassificationRecipe)
    config = recipe.model_settings(10, 3)
    assert isinstance(config, ViTConfig)
    assert config.stem == "convolutions"
    with torch.device("meta"):
        assert count(ViT(config)) <= 6_000_000


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_grid_of_tokens_equals_that_of_patches(positions: str) -> None:
    options = {"positions": positions, "pooling": "class", "registers": 2}
    model, patches = build(**options), build(**options, stem="patches")
    for x in (images(3), images(1, 24, 12)):
        assert model.patches.grid(x) == patches.patches.grid(x)
        assert model.tokens(x).shape == patches.tokens(x).shape
    x = images(1, 24, 12)
    torch.testing.assert_close(model.resized((24, 12))(x), model(x))
    keep = torch.tensor([[0, 5, 9], [1, 2, 15]])
    assert model.tokens(images(), keep).shape == (2, 3 + 3, 32)


def test_token_depends_on_its_patch_and_the_pixels_around_it() -> None:
    stem = build().patches
    x = images(1, 32, 32)
    changed = x.clone()
    changed[:, :, 15, 15] += 1  # the last pixel of patch (3, 3)
    differs = (stem(changed) != stem(x)).any(-1).view(8, 8).nonzero().tolist()
    assert differs == [[3, 3], [3, 4], [4, 3], [4, 4]]


def test_every_parameter_of_the_stem_has_a_gradient() -> None:
    model = build(patch_dropout=0.5).train()
    assert model.tokens(images()).shape[1] == 8
    F.cross_entropy(model(images(8)), torch.arange(8) % 5).backward()
    for name, p in model.patches.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


def test_gradients_of_nearly_uniform_images_are_not_large() -> None:
    stem = build().patches
    norms = []
    for x in (1e-3 * images(), images()):
        stem.zero_grad()
        (stem(x) * torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(2))).sum().backward()
        norms.append(stem.convolutions[0].bias.grad.norm().item())
    assert norms[0] < 30 * norms[1]


def test_output_does_not_depend_on_the_rest_of_the_batch() -> None:
    model = build().train()  # a batch norm would depend on the batch in training
    x = images(4)
    torch.testing.assert_close(torch.cat([model(image[None]) for image in x]), model(x), atol=1e-5, rtol=1e-5)


INVALID = {
    "not a power of two": (
        {"patch": 6, "image": 24, "width": 48},
        "needs a square patch of 2, 4, 8, 16, ... .* not 6×6",
    ),
    "not square": ({"patch": (4, 8)}, "needs a square patch of 2, 4, 8, 16, ... .* not 4×8"),
    "one pixel": ({"patch": 1}, "needs a square patch of 2, 4, 8, 16, ... .* not 1×1"),
    "not a multiple": ({"width": 34}, "for a patch of 4, not 34 but 32 or 36 would fit"),
    "narrow": (
        {"patch": 16},
        "at least 4 times the patch size and divisible by it; for a patch of 16, not 32 but 64 would fit",
    ),
    "unknown": ({"stem": "convolution"}, "stem"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_are_rejected(case: str) -> None:
    changes, message = INVALID[case]
    with pytest.raises(UserError, match=message):
        build(**changes)


def test_images_of_invalid_size_are_rejected() -> None:
    with pytest.raises(UserError, match="18×16 pixels cannot be divided into patches of 4×4; 16×16 or 20×16 would fit"):
        build()(images(1, 18, 16))
    with pytest.raises(UserError, match="1 channels, but the model expects 3"):
        build()(images(1, channels=1))


@pytest.mark.parametrize("convert", [to_timm, to_huggingface, to_torchvision])
def test_stem_cannot_be_converted_to_other_libraries(convert: object) -> None:
    model = build(pooling="class")
    with pytest.raises(UserError, match=r"patches\.convolutions\.0\.weight: the other library has no such parameter"):
        convert(model.state_dict(), model.config)  # type: ignore[operator]


def test_config_without_a_stem_is_accepted(tmp_path: Path) -> None:
    model = build(stem="patches")
    save_model(tmp_path, model, {})
    config = json.loads((tmp_path / CONFIG).read_text())
    assert config["model"].pop("stem") == "patches"
    (tmp_path / CONFIG).write_text(json.dumps(config))
    loaded, _ = load_model(tmp_path)
    torch.testing.assert_close(loaded(images()), model(images()))


def test_training_with_a_convolutional_stem(painted: Path, tmp_path: Path, command: Command) -> None:
    settings = TINY | {"model.stem": "convolutions", "model.patch_dropout": 0.25, "data.images": painted}
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    result = command("train", "--out", tmp_path / "run", *changes)
    assert result.code == 0, result.err
    (scores,) = (tmp_path / "run" / "best").glob("scores.json")
    assert json.loads(scores.read_text())["validation"]["accuracy"] == 100
    error = command("export", tmp_path / "run", tmp_path / "out", "--to", "huggingface").error
    assert "the ViT of transformers has stem patches, but this model has convolutions" in error
    assert not (tmp_path / "out").exists()
