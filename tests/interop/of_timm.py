"""Models of timm and torchvision by the names that people know them by, whole.

`make test` runs this in a process of its own, with both libraries in a folder of their own: a torchvision that is made
for CUDA cannot load its operators beside a torch that is made for CPUs alone, and transformers stumbles over it. No
model here needs these operators; it is enough that there are some of their names.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from regard.interop.timm import from_timm, to_timm
from regard.interop.torchvision import from_torchvision, to_torchvision
from regard.models.swin import SwinConfig
from regard.models.vit import ViT, ViTConfig
from tests.interop.comparing import CLOSE, SMALL, assert_same_weights, images, lively, ours

NAMES = torch.library.Library("torchvision", "FRAGMENT")
PLACE = find_spec("torchvision")
assert PLACE is not None and PLACE.origin is not None
try:
    torch.ops.load_library(str(next(Path(PLACE.origin).parent.glob("_C.*"))))
except OSError:
    for operator in ("nms", "qnms"):
        NAMES.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
timm, torchvision, layers = (import_module(name) for name in ("timm", "torchvision", "timm.layers"))


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("vit_base_patch16_224", ViTConfig.base()),
        ("swin_tiny_patch4_window7_224", SwinConfig.tiny()),
        ("vit_small_patch16_224", ViTConfig.small()),
    ],
)
@torch.no_grad()
def test_models_of_timm_whole(name: str, config: ViTConfig | SwinConfig) -> None:
    theirs = lively(timm.create_model(name, pretrained=False))
    model = ours(config, from_timm(theirs.state_dict(), config))
    x = images(224, 1)
    torch.testing.assert_close(model(x), theirs(x), **CLOSE)
    torch.testing.assert_close(model.tokens(x).flatten(), theirs.forward_features(x).flatten(), **CLOSE)
    assert_same_weights(to_timm(model.state_dict(), config), theirs.state_dict())


@torch.no_grad()
def test_vit_b_16_of_torchvision_whole() -> None:
    theirs = lively(torchvision.models.vit_b_16())
    config = ViTConfig.base()
    model = ours(config, from_torchvision(theirs.state_dict(), config))
    torch.testing.assert_close(model(images(224, 1)), theirs(images(224, 1)), **CLOSE)
    assert_same_weights(to_torchvision(model.state_dict(), config), theirs.state_dict())


@pytest.mark.parametrize("size", [48, 16])
def test_positions_are_resized_as_timm_resizes_them(size: int) -> None:
    model = ViT(ViTConfig(**SMALL))
    new = model.resized(size).positions
    expected = layers.resample_abs_pos_embed(
        model.positions[None], [size // 8, size // 8], [4, 4], num_prefix_tokens=1
    )[0]
    torch.testing.assert_close(new, expected.detach(), atol=1e-6, rtol=0)
