"""Linear layers: mixed-precision training, half-precision copies, and prepacked weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.ops import dispatch, fused, linear_backward
from regard.ops.dropout import drop
from regard.ops.linear import HalfWeights, Linear, linear, linear_activation
from regard.ops.linear_backward import Activation, MixedPrecisionLinear

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
both_activations = pytest.mark.parametrize("activation", ["relu", "gelu"])


@pytest.fixture
def mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the functions of mixed-precision training on a CPU; without autocast, in the dtype of the input."""
    monkeypatch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
    torch.manual_seed(0)


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.double, requires_grad=True)


def draw_layer(rows: int, inputs: int, outputs: int) -> list[Tensor]:
    """Return x, weight and bias."""
    torch.manual_seed(0)
    return [draw(rows, inputs), draw(outputs, inputs), draw(outputs)]


def apply(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
    y: Tensor = MixedPrecisionLinear.apply(x, weight, bias, None, None, activation)[0]  # type: ignore[no-untyped-call]
    return y


def assert_same(found: Tensor, expected: Tensor, inputs: list[Tensor], **tolerance: float) -> None:
    """Compare values and gradients."""
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, **tolerance)
    upstream = torch.randn_like(expected)
    gradients = (torch.autograd.grad(y, inputs, upstream) for y in (found, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


# One layer


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("biased", [True, False])
def test_mixed_precision_linear_equals_linear(rows: int, biased: bool) -> None:
    inputs = draw_layer(rows, 5, 4)[: 3 if biased else 2]
    assert_same(apply(*inputs), F.linear(*inputs), inputs)


@both_activations
@pytest.mark.parametrize("biased", [True, False])
def test_mixed_precision_linear_with_activation(activation: Activation, biased: bool) -> None:
    inputs = draw_layer(7, 5, 4)[: 3 if biased else 2]
    expected = getattr(F, activation)(F.linear(*inputs))
    assert_same(apply(*inputs, *[None] * (3 - len(inputs)), activation), expected, inputs)


@pytest.mark.parametrize(
    "function",
    [linear_backward._linear_relu, torch.compile(linear_backward._linear_relu, backend="aot_eager", fullgraph=True)],
    ids=["eager", "compiled"],
)
def test_custom_op_of_linear_and_relu(function: Any) -> None:
    inputs = draw_layer(7, 5, 4)
    assert_same(function(*inputs), F.relu(F.linear(*inputs)), inputs)


def test_custom_op_passes_opcheck() -> None:
    results = torch.library.opcheck(linear_backward._linear_relu, tuple(draw_layer(7, 5, 4)))
    assert len(results) == 4 and set(results.values()) == {"SUCCESS"}


def test_frozen_parameters_get_no_gradient() -> None:
    x, weight, bias = draw_layer(7, 5, 4)
    y = apply(x, weight.detach(), bias.detach(), "relu")
    expected = torch.autograd.grad(F.relu(F.linear(x, weight, bias)).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), expected)


def test_float32_parameters_have_float32_gradients() -> None:
    x, weight, bias = (tensor.detach().float() for tensor in draw_layer(6, 8, 16))
    inputs = [x.bfloat16().requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    y = apply(*inputs, "relu")
    assert y.dtype == torch.bfloat16
    assert [grad.dtype for grad in torch.autograd.grad(y.sum(), inputs)] == [tensor.dtype for tensor in inputs]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_layers_under_autocast(device: str) -> None:
    torch.manual_seed(0)
    layer = Linear(8, 16).to(device)
    x = torch.randn(2, 3, 8, device=device, requires_grad=True)
    inputs = [x, layer.weight, layer.bias]
    with torch.autocast(device, torch.bfloat16):
        pairs = [(layer(x), F.linear(*inputs)), (linear_activation(x, layer, "silu"), F.silu(F.linear(*inputs)))]
        pairs += [(linear_activation(x, layer, name), getattr(F, name)(F.linear(*inputs))) for name in ("relu", "gelu")]
    for found, expected in pairs:
        assert_same(found, expected, inputs, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("bias", [True, False])
def test_split_layers_compute_groups_of_output_features(bias: bool) -> None:
    layer, x = Linear(6, 8, bias=bias).double(), draw(5, 6)
    parts = layer.split([2, 6])
    assert_same(torch.cat([part(x) for part in parts], -1), layer(x), [x, *layer.parameters()])


# Passing x on


@pytest.mark.usefixtures("mixed_precision")
def test_linear_pass_on_adds_the_gradient_of_the_next_reader() -> None:
    layer, x = Linear(5, 4).double(), draw(2, 3, 5)

    def read_twice(x: Tensor) -> Tensor:
        y, passed_on = fused.linear_pass_on(x, layer)
        assert passed_on is not x
        return y.sin().sum(-1) + passed_on.cos().sum(-1)  # the gradient of cos is newly allocated

    torch.autograd.gradcheck(read_twice, x)
    expected = layer(x).sin().sum(-1) + x.cos().sum(-1)
    assert_same(read_twice(x), expected, [x, *layer.parameters()])


@pytest.mark.usefixtures("mixed_precision")
def test_linear_pass_on_with_a_single_reader() -> None:
    layer, x = Linear(5, 4).double(), draw(3, 5)
    y, passed_on = fused.linear_pass_on(x, layer)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), torch.autograd.grad(layer(x).sum(), x))
    assert torch.equal(torch.autograd.grad(passed_on.sum(), x)[0], torch.ones_like(x))


@pytest.mark.usefixtures("mixed_precision")
def test_linear_pass_on_returns_x_itself_if_it_is_rounded_or_has_no_gradient() -> None:
    layer, x = Linear(5, 4), torch.randn(3, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused.linear_pass_on(x, layer)[1] is x
    assert fused.linear_pass_on(x.detach(), layer)[1].grad_fn is None
    with torch.no_grad():
        assert fused.linear_pass_on(x, layer)[1] is x


class FakeFeedForward(torch.nn.Module):
    def __init__(self, activation: Activation, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.outer = Linear(5, 8).double(), Linear(8, 5).double()
        self.activation, self.dropout = activation, torch.nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = drop(getattr(F, self.activation)(F.linear(x, self.inner.weight, self.inner.bias)), self.dropout.p)
        return F.linear(hidden, self.outer.weight, self.outer.bias)


def with_gradients(layer: FakeFeedForward, x: Tensor, function: Callable[[], Tensor]) -> list[Tensor | None]:
    torch.manual_seed(1)
    y = function()
    inputs = [tensor for tensor in (x, *layer.parameters()) if tensor.requires_grad]
    return [y, *torch.autograd.grad(y.sin().sum(), inputs, allow_unused=True)]


@pytest.mark.usefixtures("mixed_precision")
@both_activations
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (0, 5)], ids=str)
@pytest.mark.parametrize("frozen", ["nothing", "x", "inner", "outer"])
def test_feed_forward_pass_on_equals_formula(activation: Activation, shape: tuple[int, ...], frozen: str) -> None:
    layer, x = FakeFeedForward(activation), draw(*shape)
    x = x.detach() if frozen == "x" else x
    layer.inner.requires_grad_(frozen != "inner")
    layer.outer.requires_grad_(frozen != "outer")
    assert fused.feed_forward_pass_on_applies(layer, x)
    found = with_gradients(layer, x, lambda: fused.feed_forward_pass_on(layer, x, layer.outer.bias)[0])
    torch.testing.assert_close(found, with_gradients(layer, x, lambda: layer(x)))


@pytest.mark.usefixtures("mixed_precision")
def test_feed_forward_pass_on_with_dropout_after_relu() -> None:
    layer, x = FakeFeedForward("relu", 0.4), draw(20, 5)
    found = with_gradients(layer, x, lambda: fused.feed_forward_pass_on(layer, x, layer.outer.bias)[0])
    torch.testing.assert_close(found, with_gradients(layer, x, lambda: layer(x)))
    assert not fused.feed_forward_pass_on_applies(FakeFeedForward("gelu", 0.4), x)


@pytest.mark.usefixtures("mixed_precision")
def test_feed_forward_pass_on_adds_the_gradient_of_the_next_reader() -> None:
    layer = FakeFeedForward("gelu")

    def read_twice(x: Tensor) -> Tensor:
        y, passed_on = fused.feed_forward_pass_on(layer, x, None)
        return y.sin() + passed_on.cos()

    assert torch.autograd.gradcheck(read_twice, draw(2, 3, 5))


# Half-precision copies


def count_casts(function: Callable[[], object]) -> int:
    """Count the tensors that are rounded to bfloat16."""

    class Counter(TorchDispatchMode):
        casts = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.casts += (kwargs or {}).get("dtype") == torch.bfloat16
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        function()
    return counter.casts


@pytest.mark.usefixtures("mixed_precision")
def test_half_weights_equal_parameters_rounded_one_by_one() -> None:
    model, other = torch.nn.Sequential(Linear(6, 8), Linear(8, 8)), Linear(8, 4)
    x, half_weights = torch.randn(5, 6), HalfWeights(model)
    parameters = [*model.parameters(), *other.parameters()]
    split = model[1]
    assert isinstance(split, Linear)

    def step() -> list[Tensor]:
        y = model(x)
        first, second = (part(y) for part in split.split([2, 6]))
        total = other(y).sum() + first.square().sum() + second.sin().sum()
        return [total, *torch.autograd.grad(total, parameters)]

    for _ in range(2):  # the copies follow changes of the parameters
        with torch.autocast("cpu", torch.bfloat16):
            expected = step()
            with half_weights:
                casts = count_casts(step)
                found = step()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert casts == 3  # x, and the parameters of the layer that is not part of the model
        assert split.half_copy is None
        with torch.no_grad():
            for parameter in parameters:
                parameter.mul_(1.5)


@pytest.mark.usefixtures("mixed_precision")
def test_a_layer_without_bias_does_not_use_the_half_precision_copy_of_the_bias() -> None:
    layer, x = Linear(6, 8), torch.randn(5, 6)
    torch.nn.init.ones_(layer.bias)
    with torch.autocast("cpu", torch.bfloat16):
        expected = linear(x, layer.weight, None)
        with HalfWeights(layer):
            assert torch.equal(linear(x, layer.weight, None, layer.half_copy), expected)


@needs_gpu
def test_training_functions_can_be_captured() -> None:
    torch.manual_seed(0)
    inner, outer = (Linear(*sizes).cuda() for sizes in ((64, 128), (128, 64)))
    x = torch.randn(300, 64, device="cuda")
    parameters = [*inner.parameters(), *outer.parameters()]

    def step() -> tuple[Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            y = outer(linear_activation(x, inner, "relu"))
        return torch.autograd.grad(y.float().square().sum(), parameters)

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        expected = step()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    torch.testing.assert_close(found, expected)


def test_linear_is_plain_without_autocast() -> None:
    x, weight, bias = draw_layer(7, 5, 4)
    assert torch.equal(linear(x, weight, bias), F.linear(x, weight, bias))
