"""GELU after LayerNorm by kernel against the formula in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.vit import ConvolutionalStem
from regard.ops import dispatch
from regard.ops import norm_gelu as module
from regard.ops.norm_gelu import norm_gelu_kernel

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


def draw(rows: int, width: int) -> tuple[Tensor, nn.LayerNorm, Tensor]:
    """Return x, a norm and a bias of x."""
    torch.manual_seed(rows)
    norm = nn.LayerNorm(width, 1e-6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return torch.randn(rows, width).to(DEVICE) * 3 + 1, norm.to(DEVICE), torch.randn(width, device=DEVICE)


def with_gradients(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, inputs, upstream)]


def assert_equals_formula(x: Tensor, norm: nn.LayerNorm, bias: Tensor, tolerance: float) -> list[Tensor]:
    inputs = [x.requires_grad_(), bias.requires_grad_(), norm.weight, norm.bias]
    found = with_gradients(norm_gelu_kernel(x, norm, bias), *inputs)
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    normalised = F.layer_norm(wide[0] + wide[1], norm.normalized_shape, wide[2], wide[3], norm.eps)
    for one, other in zip(found, with_gradients(F.gelu(normalised), *wide), strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, atol=tolerance * scale, rtol=0)
    return found


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 24), (100, 64), (9, 256), (2, 1500)])
def test_kernel_equals_formula(rows: int, width: int) -> None:
    assert_equals_formula(*draw(rows, width), 1e-5)


def test_several_programs_process_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(module, "PROGRAMS", 3)
    assert_equals_formula(*draw(1000, 16), 1e-5)


def test_half_precision() -> None:
    x, norm, bias = draw(50, 64)
    found = assert_equals_formula(x.to(HALF), norm, bias, 4e-3 if HALF is torch.float16 else 3e-2)
    assert [tensor.dtype for tensor in found] == [HALF, HALF, torch.float32, torch.float32, torch.float32]


def test_convolutional_stem_is_the_same_with_and_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # tf32 rounds more than the tolerance
    torch.manual_seed(0)
    stem = ConvolutionalStem(3, (4, 4), 32, 1e-6, depth=2).to(DEVICE)
    images = torch.randn(2, 3, 8, 12, device=DEVICE, requires_grad=True)
    inputs = [images, *stem.parameters()]
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", False)
    plain = with_gradients(stem(images), *inputs)
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", True)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    for one, other in zip(with_gradients(stem(images), *inputs), plain, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
