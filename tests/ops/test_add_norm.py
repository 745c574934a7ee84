"""Add & Norm in one kernel."""

import pytest
import torch
from torch import nn

from regard.ops import dispatch
from regard.ops.add_norm import add_norm, add_norm_by_kernel

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def drawn(width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, nn.LayerNorm]:
    torch.manual_seed(width)
    norm = nn.LayerNorm(width, eps=1e-3)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x, added = (torch.randn(2, 3, width).to(DEVICE, dtype) for _ in range(2))
    return 5 * x + 3, added, norm.to(DEVICE, dtype)


@pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")
@pytest.mark.parametrize("width", [1, 16, 48, 513])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_kernel_gives_what_norm_gives(width: int, dtype: torch.dtype) -> None:
    x, added, norm = drawn(width, dtype)
    expected = norm.double()((x + added).double())
    norm.to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(add_norm_by_kernel(x, added, norm).double(), expected, atol=tolerance, rtol=tolerance)


def test_gradients_are_those_of_the_norm() -> None:
    x, added, norm = drawn(16, torch.float32)
    x.requires_grad_()
    y = add_norm(x, added, norm)
    torch.testing.assert_close(y, norm(x + added))
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
