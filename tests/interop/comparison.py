"""Helpers to compare models of other libraries with regard models."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.models.swin import Swin, SwinConfig
from regard.models.vit import ViT, ViTConfig

CLOSE = {"atol": 1e-5, "rtol": 0.0}
SMALL = {"image": 32, "patch": 8, "width": 48, "layers": 2, "heads": 4, "hidden": 96, "classes": 7}


def randomise(model: nn.Module) -> nn.Module:
    """Set all parameters to random values, so that zero biases and unit norms cannot hide errors."""
    rng = torch.Generator().manual_seed(0)
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=rng)
        p.data = noise * 0.05 if p.dim() > 1 else p.data.nan_to_num(0) * 0.5 + noise * 0.1
    return model.eval()


def build_model(config: ViTConfig | SwinConfig, tensors: dict[str, Tensor]) -> Any:
    if isinstance(config, SwinConfig):
        model: nn.Module = Swin(config)
        model.load_state_dict(tensors)
    else:
        with torch.device("meta"):  # initialising a large model takes long
            model = ViT(config)
        model.load_state_dict(tensors, assign=True)
    return model.eval()


def random_images(size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def assert_same_weights(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
