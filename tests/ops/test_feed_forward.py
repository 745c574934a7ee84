"""`feed_forward` in training on a GPU: one way back through all of it, which gives what the parts would give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import dispatch
from regard.ops import linear_training as learning_products
from regard.ops.dropout import drop
from regard.ops.feed_forward_backward import Activation
from regard.ops.linear import Linear, RoundedWeights, feed_forward, pass_on

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
either = pytest.mark.parametrize("activation", ["relu", "gelu"])


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def layers(width: int = 5, hidden: int = 8) -> tuple[Linear, Linear]:
    inner, outer = Linear(width, hidden), Linear(hidden, width)
    return inner.double(), outer.double()


def plain(x: Tensor, inner: Linear, outer: Linear, activation: Activation, dropout: float = 0.0) -> Tensor:
    hidden = F.linear(x, inner.weight, inner.bias)
    hidden = drop(F.relu(hidden) if activation == "relu" else F.gelu(hidden), dropout)
    return F.linear(hidden, outer.weight, outer.bias if outer.biased else None)


def gradients(way: Callable[..., Tensor], x: Tensor, inner: Linear, outer: Linear, *given: Any) -> list[Tensor | None]:
    """What a way makes of x, and the gradients of all that learns."""
    torch.manual_seed(1)
    y = way(x, inner, outer, *given)
    wanted = [part for part in (x, *inner.parameters(), *outer.parameters()) if part.requires_grad]
    return [y, *torch.autograd.grad(y.sin().sum(), wanted, allow_unused=True)]


def nodes(y: Tensor) -> set[str]:
    """The names of all that a way back goes through."""
    found, left = set(), [y.grad_fn]
    while left:
        node = left.pop()
        if node is not None:
            found.add(node.name())
            left += [following for following, _ in node.next_functions]
    return found


@either
@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (0, 5)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_it_is_its_formula(
    learning: pytest.MonkeyPatch, activation: Activation, shape: tuple[int, ...], biased: bool
) -> None:
    x, (inner, outer) = drawn(*shape), layers()
    outer.biased = biased
    found = gradients(feed_forward, x, inner, outer, activation)
    torch.testing.assert_close(found, gradients(plain, x, inner, outer, activation))
    assert found[0] is not None and "FeedForwardBackward" in nodes(found[0])


@either
def test_what_is_dropped_is_what_would_be(learning: pytest.MonkeyPatch, activation: Activation) -> None:
    x, parts = drawn(20, 5), layers()
    found = gradients(feed_forward, x, *parts, activation, 0.4)
    torch.testing.assert_close(found, gradients(plain, x, *parts, activation, 0.4))
    assert found[0] is not None and ("FeedForwardBackward" in nodes(found[0])) == (activation == "relu")


@either
@pytest.mark.parametrize("frozen", ["x", "inner", "outer", "all but the last"])
def test_only_what_learns_has_a_gradient(learning: pytest.MonkeyPatch, activation: Activation, frozen: str) -> None:
    x, (inner, outer) = drawn(6, 5), layers()
    if frozen != "inner" and frozen != "outer":
        x = x.detach()
    inner.requires_grad_(frozen not in ("inner", "all but the last"))
    outer.requires_grad_(frozen != "outer")
    torch.testing.assert_close(
        gradients(feed_forward, x, inner, outer, activation), gradients(plain, x, inner, outer, activation)
    )


@either
def test_what_is_read_twice_has_the_gradients_of_finite_differences(
    learning: pytest.MonkeyPatch, activation: Activation
) -> None:
    inner, outer = layers()

    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        y, left = pass_on(x, lambda z: feed_forward(z, inner, outer, activation))
        assert left is not x
        return y * left.sin(), left  # also with no gradient for one of the two

    assert torch.autograd.gradcheck(twice, drawn(2, 3, 5))


@pytest.mark.parametrize("keeper", ["nobody", "giver", "hook", "next reader"])
def test_a_gradient_of_both_is_written_to_only_if_nobody_keeps_it(learning: pytest.MonkeyPatch, keeper: str) -> None:
    """A sum hands the same gradient to what the feed-forward made and to what it was made of."""
    x, (inner, outer), factors = drawn(2, 3, 5), layers(), torch.randn(2, 3, 5, dtype=torch.float64)
    y, left = pass_on(x, lambda z: feed_forward(z, inner, outer, "relu"))
    given, kept, in_place = factors.clone(), [], []
    if keeper == "hook":
        y.register_hook(kept.append)
    if keeper == "next reader":
        left.register_hook(kept.append)
    usual = learning_products.count_holders

    def counted(memory: Tensor) -> int:
        found = usual(memory)
        in_place.append(found == 2)
        return found

    learning.setattr(learning_products, "count_holders", counted)
    total = y + left if keeper == "giver" else (y + left) * 1
    (dx,) = torch.autograd.grad(total, x, given)
    torch.testing.assert_close(dx, torch.autograd.grad(plain(x, inner, outer, "relu") + x, x, factors)[0])
    assert in_place == [keeper == "nobody"]
    assert all(torch.equal(mine, factors) for mine in [given, *kept])


def test_weights_that_are_rounded_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
    torch.manual_seed(0)
    model = torch.nn.ModuleList([Linear(6, 8), Linear(8, 6)])
    inner, outer = model
    assert isinstance(inner, Linear) and isinstance(outer, Linear)
    x, rounded, asked = torch.randn(5, 6), RoundedWeights(model), []
    usual = rounded.find
    monkeypatch.setattr(rounded, "find", lambda weight, dtype: asked.append(weight) or usual(weight, dtype))
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(feed_forward, x, inner, outer, "relu")
        with rounded:
            found = gradients(feed_forward, x, inner, outer, "relu")
    assert {id(weight) for weight in asked} == {id(weight) for weight in model.parameters()}
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))  # type: ignore[arg-type]


@on_gpu
@either
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_on_a_gpu_it_is_as_precise_as_its_parts(activation: Activation, dropout: float) -> None:
    torch.manual_seed(0)
    inner, outer = Linear(512, 2048).cuda(), Linear(2048, 512).cuda()
    x = torch.randn(1000, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cuda", torch.bfloat16):
        found = gradients(feed_forward, x, inner, outer, activation, dropout)
        expected = gradients(plain, x, inner, outer, activation, dropout)
    for one, other in zip(found, expected, strict=True):
        assert one is not None and other is not None and one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0, atol=0.03 * float(other.abs().max()))
