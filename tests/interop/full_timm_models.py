"""Full-size models of timm and torchvision.

`make test` runs this file in a separate process with both libraries in a separate folder: a torchvision built for CUDA
cannot load its operators with a CPU build of torch, and transformers fails if it finds such a torchvision. The models
do not need these operators, only some of their names.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from regard.interop.timm import from_timm, infer_timm, to_timm
from regard.interop.torchvision import from_torchvision, to_torchvision
from regard.models.swin import SwinConfig
from regard.models.vit import ViT, ViTConfig
from tests.interop.comparison import CLOSE, SMALL, assert_same_weights, build_model, random_images, randomise

OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
SPEC = find_spec("torchvision")
assert SPEC is not None and SPEC.origin is not None
try:
    torch.ops.load_library(str(next(Path(SPEC.origin).parent.glob("_C.*"))))
except OSError:
    for operator in ("nms", "qnms"):
        OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
timm, torchvision, layers, swin_transformer = (
    import_module(name) for name in ("timm", "torchvision", "timm.layers", "timm.models.swin_transformer")
)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("vit_base_patch16_224", ViTConfig.base()),
        ("swin_tiny_patch4_window7_224", SwinConfig.tiny()),
        ("vit_small_patch16_224", ViTConfig.small()),
    ],
)
@torch.no_grad()
def test_full_size_models_of_timm(name: str, config: ViTConfig | SwinConfig) -> None:
    foreign = randomise(timm.create_model(name, pretrained=False))
    model = build_model(config, from_timm(foreign.state_dict(), config))
    x = random_images(224, 1)
    torch.testing.assert_close(model(x), foreign(x), **CLOSE)
    torch.testing.assert_close(model.tokens(x).flatten(), foreign.forward_features(x).flatten(), **CLOSE)
    assert_same_weights(to_timm(model.state_dict(), config), foreign.state_dict())


@pytest.mark.parametrize("size", [(28, 28), (34, 50), (16, 32)], ids=str)
@torch.no_grad()
def test_swin_pads_incomplete_windows_like_timm(size: tuple[int, int]) -> None:
    sizes = {"patch_size": 2, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
    foreign = randomise(swin_transformer.SwinTransformer(img_size=size, num_classes=7, **sizes))
    config = infer_timm(foreign.state_dict(), {"image": size})
    model = build_model(config, from_timm(foreign.state_dict(), config))
    x = torch.randn(4, 3, *size, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), foreign(x), **CLOSE)


@torch.no_grad()
def test_full_size_vit_of_torchvision() -> None:
    foreign = randomise(torchvision.models.vit_b_16())
    config = ViTConfig.base()
    model = build_model(config, from_torchvision(foreign.state_dict(), config))
    torch.testing.assert_close(model(random_images(224, 1)), foreign(random_images(224, 1)), **CLOSE)
    assert_same_weights(to_torchvision(model.state_dict(), config), foreign.state_dict())


@pytest.mark.parametrize("size", [48, 16])
def test_positions_are_resized_like_in_timm(size: int) -> None:
    model = ViT(ViTConfig(**SMALL))
    resized = model.resized(size).positions
    expected = layers.resample_abs_pos_embed(
        model.positions[None], [size // 8, size // 8], [4, 4], num_prefix_tokens=1
    )[0]
    torch.testing.assert_close(resized, expected.detach(), atol=1e-6, rtol=0)
