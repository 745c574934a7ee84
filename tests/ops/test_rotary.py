"""Rotary positions in training: what the kernel turns, against the formula."""

import pytest
import torch
from torch import Tensor

from regard.attention.multi_head import Attention
from regard.attention.positions import Rotary, Rotary2D, grid_positions
from regard.ops import dispatch
from regard.ops.rotary import rotate_qkv

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
B, T = 3, 12


def placed(kind: str, rows: int) -> Tensor:
    """Positions of every token, the same in all rows or others in each."""
    source = torch.Generator().manual_seed(3)
    if kind == "grid":
        grid = grid_positions(3, 4)[None].expand(rows, -1, -1)
        return (grid + torch.randint(5, (rows, 1, 2), generator=source)).to(DEVICE)
    return torch.randint(4000, (rows, T), generator=source).to(DEVICE)


def attention(kind: str, heads: int, width: int) -> Attention:
    torch.manual_seed(0)
    rotary = Rotary2D(width) if kind == "grid" else Rotary(width)
    return Attention(heads * width, heads, rotary=rotary).to(DEVICE)


def learned(module: Attention, x: Tensor, positions: Tensor) -> list[Tensor]:
    y = module(x, positions=positions)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], upstream)]


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize(("kind", "heads", "width"), [("line", 2, 8), ("line", 1, 6), ("grid", 2, 16), ("grid", 3, 12)])
def test_attention_is_the_same_either_way(
    monkeypatch: pytest.MonkeyPatch, kind: str, heads: int, width: int, rows: int
) -> None:
    module, positions = attention(kind, heads, width), placed(kind, rows)
    x = torch.randn(B, T, heads * width, device=DEVICE, requires_grad=True)
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", False)
    plain = learned(module, x, positions)
    monkeypatch.setattr(dispatch, "KERNELS_ENABLED", True)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    for mine, theirs in zip(learned(module, x, positions), plain, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-4)


def test_gradients_may_lie_anyhow() -> None:
    together = torch.randn(B, T, 3 * 32, device=DEVICE, requires_grad=True)
    positions, frequency = placed("line", 1), Rotary(16).to(DEVICE).frequency
    made = rotate_qkv(together, positions, frequency, 2)
    upstream = [torch.randn(2, T, 16, B, device=DEVICE).permute(3, 0, 1, 2) for _ in made]
    (got,) = torch.autograd.grad(made, together, upstream)
    both = together.detach().requires_grad_()
    q, k, v = both.view(B, T, 3, 2, 16).permute(2, 0, 3, 1, 4)
    rotary = Rotary(16).to(DEVICE)
    (expected,) = torch.autograd.grad((rotary(q, positions), rotary(k, positions), v), both, upstream)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


def test_on_a_cpu_the_formula_is_used() -> None:
    assert not dispatch.training_kernels_apply(torch.randn(1, 2, 6, requires_grad=True))


@pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
def test_half_precision_stays_within_its_rounding() -> None:
    module, positions = attention("grid", 4, 64), placed("grid", 1)
    x = torch.randn(B, T, 256, device=DEVICE, requires_grad=True)
    exact = learned(module, x, positions)
    with torch.autocast("cuda", torch.bfloat16):
        for mine, theirs in zip(learned(module, x, positions), exact, strict=True):
            assert (mine - theirs).abs().max() < 3e-2 * theirs.abs().max()
