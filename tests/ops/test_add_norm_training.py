"""Every number of the kernels of Add & Norm in training against the formula in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.multi_head import Attention
from regard.layers import DecoderBlock, EncoderBlock, FeedForward, Residual
from regard.ops import add_norm as norms
from regard.ops import dispatch
from regard.ops import linear_training as learning_products
from regard.ops.add_norm_training import add_norm, kept, sum_and_norm
from regard.ops.linear import Linear

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
EPS = 1e-5


def tensors(rows: int, width: int, *dtypes: torch.dtype) -> list[Tensor]:
    """x, what is added, weight and bias."""
    source = torch.Generator().manual_seed(rows)
    x, added = (torch.randn(1, rows, width, generator=source) * size for size in (3.0, 1.0))
    drawn = x, added, torch.rand(width, generator=source) + 0.5, torch.randn(width, generator=source)
    kinds = (*dtypes, torch.float32, torch.float32)
    return [tensor.to(DEVICE, dtype).requires_grad_() for tensor, dtype in zip(drawn, kinds, strict=True)]


def with_gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return [y, *torch.autograd.grad(y, inputs, upstream)]


def by_formula(inputs: list[Tensor], left: Tensor | None = None, dropout: float = 0.0) -> list[Tensor]:
    x, added, weight, bias, *more = wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    added = added + more[0] if more else added
    dropped = added if left is None else added * left / (1 - dropout)
    return with_gradients(F.layer_norm(x + dropped, weight.shape, weight, bias, EPS), wide)


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float = 2e-6) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        size = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double(), theirs, atol=tolerance * size, rtol=0)


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 24), (70, 32), (9, 512), (2, 3000)])
def test_any_size(rows: int, width: int) -> None:
    inputs = tensors(rows, width, torch.float32, torch.float32)
    got = with_gradients(add_norm(*inputs, EPS, 0.0), inputs)
    assert_close(got, by_formula(inputs), 1e-5)


def test_what_is_dropped_forward_is_dropped_backward() -> None:
    inputs = [*tensors(40, 48, torch.float32, torch.float32), torch.randn(48, device=DEVICE, requires_grad=True)]
    torch.manual_seed(7)
    got = with_gradients(add_norm(*inputs[:4], EPS, 0.4, inputs[4]), inputs)
    torch.manual_seed(7)
    left = kept(torch.randint(2**31 - 1, (1,), device=DEVICE), 40, 48, 0.4)
    assert left.float().mean().item() == pytest.approx(0.6, abs=0.05)
    assert_close(got, by_formula(inputs, left, 0.4))


@pytest.mark.parametrize(
    ("stream", "products", "tolerance"),
    [
        (torch.float32, torch.float16, 2e-3),
        (torch.float16, torch.float16, 4e-3),
        pytest.param(torch.float32, torch.bfloat16, 1e-2, marks=on_gpu),
        pytest.param(torch.bfloat16, torch.bfloat16, 3e-2, marks=on_gpu),
    ],
)
def test_half_precision_stays_within_its_rounding(stream: torch.dtype, products: torch.dtype, tolerance: float) -> None:
    inputs = tensors(50, 64, stream, products)
    got = with_gradients(add_norm(*inputs, EPS, 0.0), inputs)
    assert [y.dtype for y in got] == [stream, stream, products, torch.float32, torch.float32]
    assert_close(got, by_formula(inputs), tolerance)


@pytest.mark.parametrize("rows", [1, 70])
def test_a_bias_that_was_left_to_it_is_added_and_learns(rows: int) -> None:
    inputs = [*tensors(rows, 24, torch.float32, torch.float32), torch.randn(24, device=DEVICE, requires_grad=True)]
    assert_close(with_gradients(add_norm(*inputs[:4], EPS, 0.0, inputs[4]), inputs), by_formula(inputs), 1e-5)


def test_programs_that_share_the_rows_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norms.learning, "multiprocessors", lambda device: 3)
    inputs = [*tensors(1000, 16, torch.float32, torch.float32), torch.randn(16, device=DEVICE, requires_grad=True)]
    assert_close(with_gradients(add_norm(*inputs[:4], EPS, 0.0, inputs[4]), inputs), by_formula(inputs), 1e-5)


@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize("read", ["both", "norm", "sum"])
def test_a_sum_flows_on_beside_its_norm_and_passes_gradients(adds: bool, read: str) -> None:
    x, added, weight, bias = tensors(70, 24, torch.float32, torch.float32)
    inputs = [x, weight, bias, *([added, torch.randn(24, device=DEVICE, requires_grad=True)] if adds else [])]

    def outputs(total: Tensor, y: Tensor) -> Tensor:
        return torch.cat({"both": [total, y], "norm": [y], "sum": [total]}[read], 1)

    mine = outputs(
        *sum_and_norm(x, added if adds else None, weight, bias, EPS, 0.0, inputs[-1] if adds else None, x.dtype)
    )
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    total = wide[0] + wide[3] + wide[4] if adds else wide[0]
    plain = outputs(total, F.layer_norm(total, (24,), wide[1], wide[2], EPS))
    upstream = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    found = torch.autograd.grad(mine, inputs, upstream, materialize_grads=True)
    expected = torch.autograd.grad(plain, wide, upstream.double(), materialize_grads=True)
    assert_close([mine, *found], [plain, *expected], 1e-5)


def learn_by_kernel(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    def applies(*given: object) -> bool:
        return wanted and torch.is_grad_enabled() and not torch.compiler.is_compiling()

    monkeypatch.setattr(dispatch, "add_norm_kernel_applies", applies)


def test_compiled_it_is_the_formula_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    learn_by_kernel(monkeypatch, True)
    torch.manual_seed(0)
    residual, last = Residual(32, "post").to(DEVICE), Linear(32, 32).to(DEVICE)
    x = torch.randn(2, 5, 32, device=DEVICE, requires_grad=True)
    wanted = [x, *residual.parameters(), *last.parameters()]

    def twice(x: Tensor) -> Tensor:
        return residual(residual(x, last, last), last, last)

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    mine = with_gradients(compiled(x), wanted)
    learn_by_kernel(monkeypatch, False)
    for one, other in zip(mine, with_gradients(twice(x), wanted), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("last", [True, False])
def test_a_residual_connection_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch, last: bool) -> None:
    torch.manual_seed(0)
    residual, linear = Residual(32, "post").to(DEVICE), Linear(32, 32).to(DEVICE)
    x = torch.randn(2, 5, 32, device=DEVICE, requires_grad=True)
    wanted = [x, *residual.parameters(), *linear.parameters()]
    learn_by_kernel(monkeypatch, False)
    plain = with_gradients(residual(x, linear, linear if last else None), wanted)
    learn_by_kernel(monkeypatch, True)
    joined = with_gradients(residual(x, linear, linear if last else None), wanted)
    assert_close(joined, [y.double() for y in plain], 1e-5)
    assert linear.biased


def test_blocks_leave_their_biases_to_their_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block = DecoderBlock(Attention(32, 2), Attention(32, 2), FeedForward(32, 64)).to(DEVICE)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)  # biases, too, which begin at zero
    x, memory = (torch.randn(2, 5, 32, device=DEVICE, requires_grad=True) for _ in range(2))
    wanted = [x, memory, *block.parameters()]
    learn_by_kernel(monkeypatch, False)
    plain = with_gradients(block(x, memory), wanted)
    learn_by_kernel(monkeypatch, True)
    used: list[Tensor | None] = []
    usual = norms.learning.add_norm
    monkeypatch.setattr(norms.learning, "add_norm", lambda *given: (used.append(given[6]), usual(*given))[1])
    assert_close(with_gradients(block(x, memory), wanted), [y.double() for y in plain], 1e-5)
    lasts = [block.attention.out, block.cross.out, block.feed_forward.outer]
    assert all(bias is last.bias for bias, last in zip(used, lasts, strict=True))


def test_products_add_to_the_gradients_that_norms_pass_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    block = DecoderBlock(Attention(32, 2), Attention(32, 2), FeedForward(32, 64)).to(DEVICE)
    x, memory = (torch.randn(2, 5, 32, device=DEVICE, requires_grad=True) for _ in range(2))
    wanted = [x, memory, *block.parameters()]
    learn_by_kernel(monkeypatch, False)
    plain = with_gradients(block(x, memory), wanted)
    learn_by_kernel(monkeypatch, True)
    monkeypatch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float32)
    holders: list[int] = []
    usual = learning_products.count_holders
    monkeypatch.setattr(learning_products, "count_holders", lambda x: (holders.append(usual(x)), holders[-1])[1])
    assert_close(with_gradients(block(x, memory), wanted), [y.double() for y in plain], 1e-5)
    assert holders == [1, 1, 1], "each of the three sublayers could add in place"


@pytest.mark.parametrize("given", [{}, {"layer_scale": 0.5}, {"drop_path": 0.5}], ids=["plain", "scaled", "dropped"])
@pytest.mark.parametrize("count", [None, 2])
def test_with_norms_before_sublayers_a_block_is_the_same_either_way(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, float], count: int | None
) -> None:
    torch.manual_seed(0)
    block = EncoderBlock(Attention(32, 2), FeedForward(32, 64, "gelu"), "pre", **given).to(DEVICE)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    x = torch.randn(6, 5, 32, device=DEVICE, requires_grad=True)
    wanted = [x, *block.parameters()]
    learn_by_kernel(monkeypatch, False)
    torch.manual_seed(1)  # by which paths are dropped
    plain = with_gradients(block(x, count=count), wanted)
    learn_by_kernel(monkeypatch, True)
    torch.manual_seed(1)
    calls: list[Tensor | None] = []
    usual = norms.learning.sum_and_norm
    monkeypatch.setattr(norms.learning, "sum_and_norm", lambda *given: (calls.append(given[1]), usual(*given))[1])
    assert_close(with_gradients(block(x, count=count), wanted), [y.double() for y in plain], 1e-5)
    scaled = "layer_scale" in given
    assert [added is None for added in calls] == [True, scaled], "the second norm adds, unless there is more to do"


def test_factors_multiply_what_is_added_to_the_rows_of_an_image() -> None:
    inputs = tensors(12, 24, torch.float32, torch.float32)
    of_added = torch.randn(24, device=DEVICE, requires_grad=True)
    factors = torch.tensor([0.0, 2.0, 1.5], device=DEVICE)
    total, y = sum_and_norm(*inputs, EPS, 0.0, of_added, torch.float32, factors)
    got = with_gradients(torch.cat((total, y), 1), [*inputs, of_added])
    wide = [tensor.detach().double().requires_grad_() for tensor in (*inputs, of_added)]
    total = wide[0] + (wide[1] + wide[4]) * factors.double().repeat_interleave(4)[None, :, None]
    expected = torch.cat((total, F.layer_norm(total, (24,), wide[2], wide[3], EPS)), 1)
    assert_close(got, with_gradients(expected, wide), 1e-5)
    assert not got[2][0, :4].any() and got[2][0, 4:].all()


def test_what_a_block_drops_is_drawn_where_it_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    learn_by_kernel(monkeypatch, True)
    residual, linear = Residual(16, "pre", dropout=0.5).to(DEVICE), Linear(16, 16).to(DEVICE)
    x = torch.randn(1, 40, 16, device=DEVICE)
    left = residual.open(x, linear, linear)
    assert not isinstance(left, Tensor)
    assert (left.dropout, left.bias) == (0.5, linear.bias)
    total, _ = residual._normalise(left)
    share = ((total - x).abs() < 1e-6).float().mean().item()
    assert share == pytest.approx(0.5, abs=0.06)
    residual.eval()
    assert residual.open(x, linear, linear).dropout == 0


def test_attention_that_drops_its_output_keeps_its_bias() -> None:
    assert Attention(32, 2, projection_dropout=0.1).last is None


@on_gpu
def test_a_gpu_takes_the_kernels_in_training_only() -> None:
    x, _, _, _ = tensors(5, 16, torch.float32, torch.bfloat16)
    norm = torch.nn.LayerNorm(16).to(DEVICE)
    assert dispatch.add_norm_kernel_applies(x, norm)
    with torch.no_grad():
        assert not dispatch.add_norm_kernel_applies(x, norm)
