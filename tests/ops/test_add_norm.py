"""Add & Norm by kernel against the formula in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.ops import add_norm as module
from regard.ops import dispatch
from regard.ops.add_norm import add_norm, add_norm_inference_kernel, sum_and_norm
from tests.kernel_references import kernel_drop_mask, use_add_norm_reference

needs_triton = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
EPS = 1e-5


@pytest.fixture(params=[pytest.param(True, marks=needs_triton, id="kernel"), pytest.param(False, id="reference")])
def use_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run `sum_and_norm` by its kernels, or by their reference formulas."""
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    if not request.param:
        use_add_norm_reference(monkeypatch)
    return bool(request.param)


def draw_norm(width: int) -> nn.LayerNorm:
    torch.manual_seed(width)
    norm = nn.LayerNorm(width, EPS)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias)
    return norm.to(DEVICE)


def draw_inputs(
    rows: int, width: int, x_dtype: torch.dtype = torch.float32, update_dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x, an update and the bias of the update."""
    generator = torch.Generator().manual_seed(rows)
    x = 3 * torch.randn(1, rows, width, generator=generator)
    update = torch.randn(1, rows, width, generator=generator)
    bias = torch.randn(width, generator=generator)
    tensors = x.to(DEVICE, x_dtype), update.to(DEVICE, update_dtype), bias.to(DEVICE)
    return tuple(tensor.requires_grad_() for tensor in tensors)  # type: ignore[return-value]


def with_gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, inputs, upstream, materialize_grads=True)]


def double(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, EPS)


def assert_close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 24), (70, 32), (9, 512), (2, 3000)])
def test_sum_and_norm_equals_formula(use_kernel: bool, rows: int, width: int) -> None:
    norm, inputs = draw_norm(width), draw_inputs(rows, width)
    x, update, bias = inputs
    parameters = [*inputs, norm.weight, norm.bias]
    found = with_gradients(torch.cat(sum_and_norm(x, update, norm, update_bias=bias)), parameters)
    wide = double(*parameters)
    total = wide[0] + wide[1] + wide[2]
    assert_close(found, with_gradients(torch.cat((total, layer_norm(total, *wide[3:]))), wide))


@pytest.mark.parametrize("read", ["sum", "norm"])
@pytest.mark.parametrize("add", [True, False])
def test_gradients_if_only_one_output_is_read(use_kernel: bool, read: str, add: bool) -> None:
    norm, (x, update, _) = draw_norm(24), draw_inputs(70, 24)
    inputs = [x, update, norm.weight, norm.bias]
    index = ("sum", "norm").index(read)
    found = with_gradients(sum_and_norm(x, update if add else None, norm)[index], inputs)
    wide = double(*inputs)
    total = wide[0] + wide[1] if add else wide[0]
    assert_close(found, with_gradients((total, layer_norm(total, *wide[2:]))[index], wide))


def test_dropout_uses_the_same_mask_in_both_passes(use_kernel: bool) -> None:
    norm, inputs = draw_norm(48), draw_inputs(40, 48)
    x, update, bias = inputs
    parameters = [*inputs, norm.weight, norm.bias]
    torch.manual_seed(7)
    y = sum_and_norm(x, update, norm, update_bias=bias, dropout=0.4)[1]
    torch.manual_seed(7)
    keep = ~kernel_drop_mask(torch.randint(2**31 - 1, (1,), device=DEVICE), 1, 40, 48, 0.4)[0]
    assert keep.float().mean().item() == pytest.approx(0.6, abs=0.05)
    wide = double(*parameters)
    expected = layer_norm(wide[0] + (wide[1] + wide[2]) * keep / 0.6, *wide[3:])
    assert_close(with_gradients(y, parameters), with_gradients(expected, wide))


def test_scales_apply_to_equal_shares_of_the_rows(use_kernel: bool) -> None:
    norm, inputs = draw_norm(24), draw_inputs(12, 24)
    x, update, bias = inputs
    scales = torch.tensor([0.0, 2.0, 1.5], device=DEVICE)
    found = with_gradients(
        torch.cat(sum_and_norm(x, update, norm, update_bias=bias, scales=scales)), [*inputs, norm.weight, norm.bias]
    )
    wide = double(*inputs, norm.weight, norm.bias)
    total = wide[0] + (wide[1] + wide[2]) * scales.double().repeat_interleave(4)[None, :, None]
    assert_close(found, with_gradients(torch.cat((total, layer_norm(total, *wide[3:]))), wide))
    assert not found[2][0, :4].any()


def test_gradients_are_newly_allocated(use_kernel: bool) -> None:
    """Fused blocks overwrite the gradient of x."""
    norm, (x, update, _) = draw_norm(16), draw_inputs(5, 16)
    y = sum_and_norm(x, update, norm, dtype=x.dtype)[1]
    upstream = torch.randn_like(y)
    dx, dupdate = torch.autograd.grad(y, [x, update], upstream)
    storages = {tensor.untyped_storage().data_ptr() for tensor in (dx, dupdate, upstream, x, update)}
    assert len(storages) == 5


@needs_triton
@pytest.mark.parametrize(
    ("x_dtype", "update_dtype", "tolerance"),
    [
        (torch.float32, torch.float16, 2e-3),
        (torch.float16, torch.float16, 4e-3),
        pytest.param(torch.float32, torch.bfloat16, 1e-2, marks=needs_gpu),
        pytest.param(torch.bfloat16, torch.bfloat16, 3e-2, marks=needs_gpu),
    ],
)
def test_half_precision(
    x_dtype: torch.dtype, update_dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    norm, (x, update, _) = draw_norm(64), draw_inputs(50, 64, x_dtype, update_dtype)
    inputs = [x, update, norm.weight, norm.bias]
    found = with_gradients(sum_and_norm(x, update, norm, dtype=x_dtype)[1], inputs)
    assert [tensor.dtype for tensor in found] == [x_dtype, x_dtype, update_dtype, torch.float32, torch.float32]
    wide = double(*inputs)
    assert_close(found, with_gradients(layer_norm(wide[0] + wide[1], *wide[2:]), wide), tolerance)


@needs_triton
def test_several_programs_process_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(module, "multiprocessors", lambda device: 3)
    norm, (x, update, _) = draw_norm(16), draw_inputs(1000, 16)
    inputs = [x, update, norm.weight, norm.bias]
    wide = double(*inputs)
    expected = with_gradients(layer_norm(wide[0] + wide[1], *wide[2:]), wide)
    assert_close(with_gradients(sum_and_norm(x, update, norm)[1], inputs), expected)


@needs_triton
@pytest.mark.parametrize("width", [1, 16, 48, 513])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_inference_kernel_equals_formula(width: int, dtype: torch.dtype) -> None:
    norm, (x, update, _) = draw_norm(width).to(dtype), draw_inputs(6, width, dtype, dtype)
    expected = layer_norm((x + update).double(), norm.weight.double(), norm.bias.double())
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    found = add_norm_inference_kernel(x, update, norm)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def test_add_norm_equals_norm_of_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, (x, update, _) = draw_norm(16), draw_inputs(5, 16)
    expected = norm(x + update)
    torch.testing.assert_close(add_norm(x, update, norm), expected)
    if dispatch.KERNELS_ENABLED:
        monkeypatch.setattr(dispatch, "INTERPRETED", True)
        torch.testing.assert_close(add_norm(x, update, norm), expected)
        with torch.no_grad():
            torch.testing.assert_close(add_norm(x, update, norm), expected)


def test_add_norm_keeps_the_dtype_of_the_residual_stream() -> None:
    norm, (x, update, _) = draw_norm(16), draw_inputs(5, 16, torch.bfloat16, torch.bfloat16)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert add_norm(x, update, norm).dtype == torch.bfloat16


def test_compiled_add_norm_is_one_graph() -> None:
    norm, (x, update, _) = draw_norm(16), draw_inputs(5, 16)
    compiled = torch.compile(lambda x, update: add_norm(x, update, norm), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, update), norm(x + update))


@needs_gpu
def test_training_kernel_applies_in_grad_mode_only() -> None:
    norm, (x, _, _) = draw_norm(16), draw_inputs(5, 16)
    assert dispatch.add_norm_kernel_applies(x, norm)
    with torch.no_grad():
        assert not dispatch.add_norm_kernel_applies(x, norm)
