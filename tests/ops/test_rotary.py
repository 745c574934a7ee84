"""Tests of the kernel of rotary embeddings in training, against the modules."""

import pytest
import torch
from torch import Tensor

from regard.attention.multi_head import Attention, Rotary, Rotary2D, grid_positions
from regard.ops import dispatch
from regard.ops.rotary import rotate_qkv

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, T = 3, 12


def make_positions(kind: str, rows: int) -> Tensor:
    """Return positions, shared by all rows or different in each."""
    generator = torch.Generator().manual_seed(3)
    if kind == "grid":
        grid = grid_positions(3, 4)[None].expand(rows, -1, -1)
        return (grid + torch.randint(5, (rows, 1, 2), generator=generator)).to(DEVICE)
    return torch.randint(4000, (rows, T), generator=generator).to(DEVICE)


def attention(kind: str, heads: int, width: int) -> Attention:
    torch.manual_seed(0)
    rotary = Rotary2D(width) if kind == "grid" else Rotary(width)
    return Attention(heads * width, heads, rotary=rotary).to(DEVICE)


def run(module: Attention, x: Tensor, positions: Tensor) -> list[Tensor]:
    y = module(x, positions=positions)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], upstream)]


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize(("kind", "heads", "width"), [("line", 2, 8), ("line", 1, 6), ("grid", 2, 16), ("grid", 3, 12)])
def test_kernel_agrees_with_the_formula(
    monkeypatch: pytest.MonkeyPatch, kind: str, heads: int, width: int, rows: int
) -> None:
    module, positions = attention(kind, heads, width), make_positions(kind, rows)
    x = torch.randn(B, T, heads * width, device=DEVICE, requires_grad=True)
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", False)
    plain = run(module, x, positions)
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", True)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    for mine, theirs in zip(run(module, x, positions), plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-4)


def test_gradients_may_have_any_strides() -> None:
    qkv = torch.randn(B, T, 3 * 32, device=DEVICE, requires_grad=True)
    positions, frequency = make_positions("line", 1), Rotary(16).to(DEVICE).frequency
    rotated = rotate_qkv(qkv, positions, frequency, 2)
    upstream = [torch.randn(2, T, 16, B, device=DEVICE).permute(3, 0, 1, 2) for _ in rotated]
    (got,) = torch.autograd.grad(rotated, qkv, upstream)
    leaf = qkv.detach().requires_grad_()
    q, k, v = leaf.view(B, T, 3, 2, 16).permute(2, 0, 3, 1, 4)
    rotary = Rotary(16).to(DEVICE)
    (expected,) = torch.autograd.grad((rotary(q, positions), rotary(k, positions), v), leaf, upstream)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_formula_is_used_on_cpu() -> None:
    assert not dispatch.training_kernels_apply(torch.randn(1, 2, 6, requires_grad=True))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
def test_half_precision_agrees_within_rounding() -> None:
    module, positions = attention("grid", 4, 64), make_positions("grid", 1)
    x = torch.randn(B, T, 256, device=DEVICE, requires_grad=True)
    exact = run(module, x, positions)
    with torch.autocast("cuda", torch.bfloat16):
        for mine, theirs in zip(run(module, x, positions), exact, strict=True):
            assert (mine - theirs).abs().max() < 3e-2 * theirs.abs().max()
