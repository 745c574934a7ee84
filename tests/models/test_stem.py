"""A ViT that begins with convolutions: the tokens of patches, made in small steps."""

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
from regard.models.stem import ConvolutionalStem
from regard.models.vit import ViT, ViTConfig
from regard.training.recipe import Recipe
from regard.training.tasks.classification.recipe import ClassificationRecipe
from tests.conftest import Command
from tests.images import TINY

SMALL = {"image": 16, "width": 32, "layers": 2, "heads": 2, "hidden": 48, "stem": "convolutions"}


def small(**changes: object) -> ViT:
    torch.manual_seed(0)
    return ViT(ViTConfig.mini(5, **SMALL | changes)).eval()


def images(batch: int = 2, height: int = 16, width: int = 16, channels: int = 3) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def reference(stem: ConvolutionalStem, x: Tensor) -> Tensor:
    """The paper's form, channels before pixels: norm, GELU, and a convolution of 1×1 at the end."""
    for step, (convolution, norm) in enumerate(zip(stem.convolutions, stem.norms, strict=True)):
        x = F.conv2d(x, convolution.weight, convolution.bias, stride=2 if step else 1, padding=1)
        mean, variance = x.mean(1, keepdim=True), x.var(1, keepdim=True, correction=0)
        x = (x - mean) / (variance + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
        x = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    x = F.conv2d(x, stem.projection.weight[:, :, None, None], stem.projection.bias)
    return x.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("patch", [2, 4, 8])
def test_the_stem_is_what_the_paper_draws(patch: int) -> None:
    stem = small(patch=patch).patches
    assert isinstance(stem, ConvolutionalStem)
    for tensor in stem.parameters():
        torch.nn.init.normal_(tensor, std=0.3)
    x = images(2, 16, 24)
    torch.testing.assert_close(stem(x), reference(stem, x), atol=1e-4, rtol=1e-4)
    assert stem(x).shape == (2, 16 * 24 // patch**2, 32)


def test_channels_double_from_convolution_to_convolution_up_to_the_width() -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig.mini(10, stem="convolutions"))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.patches.state_dict().items() if tensor.dim() > 1}
    assert shapes == {
        "convolutions.0.weight": (64, 3, 3, 3),
        "convolutions.1.weight": (128, 64, 3, 3),
        "convolutions.2.weight": (256, 128, 3, 3),
        "projection.weight": (256, 256),
    }
    assert count(model) == 5_985_290  # as docs/vision.md says


def test_a_deeper_stem_has_more_convolutions_at_each_size() -> None:
    model = ViT(ViTConfig.mini(10, width=32, layers=1, stem="convolutions", stem_depth=2))
    sizes = [(one.in_channels, one.out_channels, one.stride[0]) for one in model.patches.convolutions]
    assert sizes == [(3, 8, 1), (8, 8, 1), (8, 16, 2), (16, 16, 1), (16, 32, 2), (32, 32, 1)]
    assert model.tokens(torch.rand(2, 3, 32, 40)).shape == (2, 80, 32)
    with pytest.raises(UserError, match="stem_depth is the depth of a convolutional stem; set stem=convolutions"):
        ViTConfig.mini(10, stem_depth=2)


def test_the_recipe_cifar10_begins_with_convolutions_and_stays_small() -> None:
    recipe = Recipe.load(Path("cifar10"))
    assert isinstance(recipe, ClassificationRecipe)
    config = recipe.model_config_for(10, 3)
    assert isinstance(config, ViTConfig) and config.stem == "convolutions"
    with torch.device("meta"):
        assert count(ViT(config)) <= 6_000_000


@pytest.mark.parametrize("positions", ["learned", "sincos", "rotary"])
def test_tokens_and_grid_are_those_of_the_patches(positions: str) -> None:
    options = {"positions": positions, "pooling": "class", "registers": 2}
    model, patches = small(**options), small(**options, stem="patches")
    for x in (images(3), images(1, 24, 12)):
        assert model.patches.grid(x) == patches.patches.grid(x)
        assert model.tokens(x).shape == patches.tokens(x).shape
    x = images(1, 24, 12)
    torch.testing.assert_close(model.resized((24, 12))(x), model(x))
    keep = torch.tensor([[0, 5, 9], [1, 2, 15]])
    assert model.tokens(images(), keep).shape == (2, 3 + 3, 32)


def test_a_token_knows_of_the_pixels_around_its_patch_and_of_no_others() -> None:
    stem = small().patches
    x = images(1, 32, 32)
    changed = x.clone()
    changed[:, :, 15, 15] += 1  # the last pixel of patch (3, 3)
    differs = (stem(changed) != stem(x)).any(-1).view(8, 8).nonzero().tolist()
    assert differs == [[3, 3], [3, 4], [4, 3], [4, 4]]


def test_every_part_of_the_stem_learns() -> None:
    model = small(patch_dropout=0.5).train()
    assert model.tokens(images()).shape[1] == 8
    F.cross_entropy(model(images(8)), torch.arange(8) % 5).backward()
    for name, p in model.patches.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().max() > 0, name


def test_images_of_next_to_nothing_but_the_mean_colour_send_no_large_gradients() -> None:
    stem = small().patches
    sizes = []
    for x in (1e-3 * images(), images()):
        stem.zero_grad()
        (stem(x) * torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(2))).sum().backward()
        sizes.append(stem.convolutions[0].bias.grad.norm().item())
    assert sizes[0] < 30 * sizes[1]


def test_one_image_alone_is_seen_as_in_company() -> None:
    model = small().train()  # in training too, where a norm over the batch would differ
    x = images(4)
    torch.testing.assert_close(torch.cat([model(image[None]) for image in x]), model(x), atol=1e-5, rtol=1e-5)


WRONG = {
    "no power of two": ({"patch": 6, "image": 24, "width": 48}, "needs a square patch of 2, 4, 8, 16, ... .* not 6×6"),
    "no square": ({"patch": (4, 8)}, "needs a square patch of 2, 4, 8, 16, ... .* not 4×8"),
    "one pixel": ({"patch": 1}, "needs a square patch of 2, 4, 8, 16, ... .* not 1×1"),
    "no multiple": ({"width": 34}, "for a patch of 4, not 34 but 32 or 36 would fit"),
    "narrow": (
        {"patch": 16},
        "at least 4 times the patch size and divisible by it; for a patch of 16, not 32 but 64 would fit",
    ),
    "unknown": ({"stem": "convolution"}, "stem"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_stem_has_is_refused(case: str) -> None:
    changes, said = WRONG[case]
    with pytest.raises(UserError, match=said):
        small(**changes)


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="18×16 pixels cannot be divided into patches of 4×4; 16×16 or 20×16 would fit"):
        small()(images(1, 18, 16))
    with pytest.raises(UserError, match="1 channels, but the model expects 3"):
        small()(images(1, channels=1))


@pytest.mark.parametrize("give", [to_timm, to_huggingface, to_torchvision])
def test_other_libraries_have_no_place_for_it(give: object) -> None:
    model = small(pooling="class")
    with pytest.raises(UserError, match=r"patches\.convolutions\.0\.weight: the other library has no such parameter"):
        give(model.state_dict(), model.config)  # type: ignore[operator]


def test_a_folder_from_before_there_were_stems_is_read(tmp_path: Path) -> None:
    model = small(stem="patches")
    save_model(tmp_path, model, {})
    about = json.loads((tmp_path / CONFIG).read_text())
    assert about["model"].pop("stem") == "patches"
    (tmp_path / CONFIG).write_text(json.dumps(about))
    again, _ = load_model(tmp_path)
    torch.testing.assert_close(again(images()), model(images()))


def test_a_recipe_takes_it_by_one_line(painted: Path, tmp_path: Path, command: Command) -> None:
    settings = TINY | {"model.stem": "convolutions", "model.patch_dropout": 0.25, "data.images": painted}
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    answer = command("train", "--out", tmp_path / "run", *changes)
    assert answer.code == 0, answer.err
    (scores,) = (tmp_path / "run" / "best").glob("scores.json")
    assert json.loads(scores.read_text())["validation"]["accuracy"] == 100
    refusal = command("export", tmp_path / "run", tmp_path / "out", "--to", "huggingface").error
    assert "the ViT of transformers has stem patches, but this model has convolutions" in refusal
    assert not (tmp_path / "out").exists()
