"""GELU of a norm: every number of the kernels against the formula in float64."""

import pytest
import torch
from torch import Tensor, nn

from regard.models.stem import ConvolutionalStem
from regard.ops import dispatch
from regard.ops import norm_gelu as activated
from regard.ops.norm_gelu import norm_gelu, norm_gelu_by_kernel

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16


def drawn(rows: int, width: int) -> tuple[Tensor, nn.LayerNorm, Tensor]:
    torch.manual_seed(rows)
    norm = nn.LayerNorm(width, 1e-6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return torch.randn(rows, width).to(DEVICE) * 3 + 1, norm.to(DEVICE), torch.randn(width, device=DEVICE)


def with_gradients(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, inputs, upstream)]


def both(x: Tensor, norm: nn.LayerNorm, bias: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    mine = [x.requires_grad_(), bias.requires_grad_(), norm.weight, norm.bias]
    got = with_gradients(norm_gelu_by_kernel(x, norm, bias), *mine)
    wide = nn.LayerNorm(norm.normalized_shape, norm.eps).to(DEVICE).double()
    wide.load_state_dict(norm.state_dict())
    theirs = [x.detach().double().requires_grad_(), bias.detach().double().requires_grad_()]
    return got, with_gradients(norm_gelu(theirs[0], wide, theirs[1]), *theirs, wide.weight, wide.bias)


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        size = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double(), theirs, atol=tolerance * size, rtol=0)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 24), (100, 64), (9, 256), (2, 1500)])
def test_any_size(rows: int, width: int) -> None:
    got, expected = both(*drawn(rows, width))
    assert_close(got, expected, 1e-5)


def test_programs_that_share_the_rows_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activated, "multiprocessors", lambda device: 1)
    monkeypatch.setattr(activated, "PROGRAMS", 3)
    got, expected = both(*drawn(1000, 16))
    assert_close(got, expected, 1e-5)


def test_half_precision_stays_within_its_rounding() -> None:
    x, norm, bias = drawn(50, 64)
    got, expected = both(x.to(HALF), norm, bias)
    assert [y.dtype for y in got] == [HALF, HALF, torch.float32, torch.float32, torch.float32]
    assert_close(got, expected, 4e-3 if HALF is torch.float16 else 3e-2)


def test_a_stem_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which would make much of a rounding more or less
    torch.manual_seed(0)
    layers = ConvolutionalStem(3, (4, 4), 32, 1e-6, depth=2).to(DEVICE)
    images = torch.randn(2, 3, 8, 12, device=DEVICE, requires_grad=True)
    learned = [images, *layers.parameters()]
    monkeypatch.setattr(dispatch, "add_norm_kernel_applies", lambda x, norm: False)
    plain = with_gradients(layers(images), *learned)
    monkeypatch.setattr(dispatch, "add_norm_kernel_applies", lambda x, norm: torch.is_grad_enabled())
    for mine, theirs in zip(with_gradients(layers(images), *learned), plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
def test_a_stem_that_learns_on_a_gpu_is_joined() -> None:
    assert dispatch.add_norm_kernel_applies(torch.randn(2, 8, device=DEVICE), nn.LayerNorm(8).to(DEVICE))
