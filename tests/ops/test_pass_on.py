"""`pass_on`: a product adds its gradient to that of whoever reads x next, and nobody can tell but by the time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard import layers
from regard.attention.multi_head import Attention
from regard.layers import DecoderBlock, EncoderBlock, FeedForward
from regard.models import transformer
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import dispatch
from regard.ops import linear as products
from regard.ops.linear import Linear, linear, linear_gelu, linear_relu, pass_on

Grads = tuple[Tensor, ...]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """How often each operator is called while the block runs."""
    found: dict[str, int] = {}

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found[func._opname] = found.get(func._opname, 0) + 1
            return func(*args, **(kwargs or {}))

    with Counting():
        yield found


def both_ways(monkeypatch: pytest.MonkeyPatch, step: Callable[[], Grads]) -> tuple[Grads, Grads]:
    """What a step gives as it is, and where nothing is passed on."""
    mine = step()
    for module in (layers, transformer):
        monkeypatch.setattr(module, "pass_on", lambda x, read: (read(x), x))
    return mine, step()


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (0, 5), (1, 1, 5)], ids=str)
@pytest.mark.parametrize("way", [linear, linear_relu, linear_gelu])
def test_gradients_are_those_of_finite_differences(
    learning: pytest.MonkeyPatch, way: Callable[..., Tensor], shape: tuple[int, ...]
) -> None:
    given = drawn(*shape), drawn(5, 5), drawn(5)

    def twice(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        y, left = pass_on(x, lambda z: way(z, weight, bias))
        assert left is not x and torch.equal(left, x)
        return y * left.sin(), left  # also with no gradient for one of the two

    assert torch.autograd.gradcheck(twice, given)


def test_the_product_adds_to_what_was_passed(learning: pytest.MonkeyPatch) -> None:
    x, weight = drawn(2, 3, 5), drawn(4, 5)
    y, left = pass_on(x, lambda z: linear(z, weight))
    total = y.sum() + left.sin().sum()
    with counting() as found:
        total.backward()
    assert found["addmm_"] == 1 and "add" not in found
    assert x.grad is not None
    torch.testing.assert_close(x.grad, weight.detach().sum(0) + x.detach().cos())


def test_only_the_first_product_of_what_is_read_passes_it_on(learning: pytest.MonkeyPatch) -> None:
    x, first, second = drawn(3, 5), drawn(4, 5), drawn(4, 5)
    made, left = pass_on(x, lambda z: linear(z.cos(), first) * linear(z, first) + linear(z, second))
    expected = F.linear(x.cos(), first) * F.linear(x, first) + F.linear(x, second)
    for one, other in zip(
        torch.autograd.grad((made + left.sum()).sum(), (x, first, second)),
        torch.autograd.grad((expected + x.sum()).sum(), (x, first, second)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_what_is_read_within_what_is_read_is_passed_on_as_well(learning: pytest.MonkeyPatch) -> None:
    x, memory, weight = drawn(3, 5), drawn(3, 5), drawn(5, 5)

    def read(z: Tensor) -> Tensor:
        y, again = pass_on(x, lambda w: linear(w, weight) * linear(z, weight))
        return y + again

    made, left = pass_on(memory, read)
    with counting() as found:
        grads = torch.autograd.grad((made * left.sin()).sum(), (x, memory))
    assert found["addmm_"] == 2
    expected = torch.autograd.grad(
        ((F.linear(x, weight) * F.linear(memory, weight) + x) * memory.sin()).sum(), (x, memory)
    )
    torch.testing.assert_close(grads, expected)


def test_where_nothing_is_to_be_spared_x_stays_what_it_was(learning: pytest.MonkeyPatch) -> None:
    x, weight = drawn(3, 5), drawn(4, 5)

    def is_passed(x: Tensor, read: Callable[[Tensor], Any] = lambda z: linear(z, weight)) -> bool:
        return pass_on(x, read)[1] is not x

    assert is_passed(x)
    assert not is_passed(x.detach()), "that has no gradient"
    assert not is_passed(x.float()), "that is rounded first, and so its gradient is another's"
    assert not is_passed(x, torch.sin), "that no product reads"
    with torch.no_grad():
        assert not is_passed(x)
    learning.undo()
    assert not is_passed(x), "on a CPU"


def test_after_an_error_nothing_is_on_offer(learning: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError):
        pass_on(drawn(3, 5), lambda z: linear(z, drawn(4, 4)))
    assert not products._in_use.offered


@pytest.mark.parametrize(
    "use",
    [
        lambda left: left.sum(),
        lambda left: left[:, :1].square().sum(),
        lambda left: (left.transpose(0, 1) * torch.arange(30.0).view(3, 2, 5)).sum(),
        lambda left: left.cos().sum() + left.sin().sum() + left.mean(1).exp().sum(),
    ],
    ids=["expanded", "cut", "transposed", "several"],
)
def test_gradients_of_any_layout_are_passed(learning: pytest.MonkeyPatch, use: Callable[[Tensor], Tensor]) -> None:
    x, weight = drawn(2, 3, 5), drawn(4, 5)
    y, left = pass_on(x, lambda z: linear(z, weight))
    found = torch.autograd.grad(y.square().sum() + use(left), (x, weight))
    expected = torch.autograd.grad(F.linear(x, weight).square().sum() + use(x), (x, weight))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("keeper", ["nobody", "giver", "asker", "hook", "tensor"])
def test_a_gradient_that_somebody_keeps_is_not_written_to(learning: pytest.MonkeyPatch, keeper: str) -> None:
    x, weight, given = drawn(2, 3, 5), drawn(4, 5), torch.randn(2, 3, 5, dtype=torch.float64)
    y, left = pass_on(x, lambda z: linear(z, weight))
    kept: list[Tensor] = [given] if keeper == "giver" else []
    if keeper == "hook":
        left.register_hook(kept.append)
    elif keeper == "tensor":
        left.retain_grad()
    with counting() as found:
        dx, *asked = torch.autograd.grad(
            [y, left if keeper == "giver" else left * 1],
            [x, left] if keeper == "asker" else x,
            [torch.ones_like(y), given],
        )
    kept += [left.grad] if keeper == "tensor" and left.grad is not None else asked
    torch.testing.assert_close(dx, given + weight.detach().sum(0))
    assert len(kept) == (keeper != "nobody") and all(torch.equal(mine, given) for mine in kept)
    assert found.get("addmm_", 0) == (keeper in ("nobody", "tensor"))  # a tensor keeps a copy


def test_a_gradient_for_which_somebody_waits_is_not_written_to(learning: pytest.MonkeyPatch) -> None:
    """The sum's gradient goes to x's next reader and past it, to somebody who comes after the product."""
    start, weight = drawn(3, 5), drawn(5, 5)

    def step(pass_on: Callable[..., Any]) -> Grads:
        past = start.exp()
        x = start.sin()
        y, left = pass_on(x, lambda z: linear(z, weight))
        total = (past + left).square().sum() + y.cos().sum()
        return torch.autograd.grad(total, (start, weight))

    torch.testing.assert_close(step(pass_on), step(lambda x, read: (read(x), x)))


@pytest.mark.parametrize("leaf", [True, False])
def test_a_way_back_can_be_gone_twice_and_adds_up(learning: pytest.MonkeyPatch, leaf: bool) -> None:
    start, weight = drawn(2, 3, 5), drawn(5, 5)
    y, left = pass_on(start if leaf else start * 1, lambda z: linear(z, weight))
    total = (y * left).sum()
    total.backward(retain_graph=True)
    assert start.grad is not None and weight.grad is not None
    once = [start.grad.clone(), weight.grad.clone()]
    torch.testing.assert_close(
        once, list(torch.autograd.grad((F.linear(start, weight) * start).sum(), (start, weight)))
    )
    total.backward()
    torch.testing.assert_close([start.grad, weight.grad], [2 * grad for grad in once])


def encoder_block(**given: Any) -> EncoderBlock:
    return EncoderBlock(Attention(16, 2), FeedForward(16, 24, given.pop("activation", "relu")), **given)


def decoder_block(**given: Any) -> DecoderBlock:
    return DecoderBlock(Attention(16, 2), Attention(16, 2), FeedForward(16, 24), **given)


@pytest.mark.parametrize(
    "given",
    [{}, {"norm": "pre"}, {"layer_scale": 0.5}, {"context_norm": True}],
    ids=["post", "pre", "scaled", "memory-norm"],
)
def test_a_decoder_block_has_the_same_gradients_either_way(learning: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    block = decoder_block(**given).double()
    x, memory = drawn(2, 4, 16), drawn(2, 3, 16)

    def step() -> Grads:
        return torch.autograd.grad(block(x, memory).square().sum(), (x, memory, *block.parameters()))

    torch.testing.assert_close(*both_ways(learning, step))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "swiglu"])
@pytest.mark.parametrize("count", [None, 2])
def test_an_encoder_block_has_the_same_gradients_either_way(
    learning: pytest.MonkeyPatch, activation: str, count: int | None
) -> None:
    block, x = encoder_block(activation=activation).double(), drawn(2, 4, 16)

    def step() -> Grads:
        return torch.autograd.grad(block(x, count=count).square().sum(), (x, *block.parameters()))

    torch.testing.assert_close(*both_ways(learning, step))


@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16], ids=str)
def test_in_half_precision_a_block_stays_within_its_rounding(
    monkeypatch: pytest.MonkeyPatch, stream: torch.dtype
) -> None:
    monkeypatch.setattr(dispatch, "mixed_precision_training", lambda x: torch.is_grad_enabled())
    torch.manual_seed(0)
    block = encoder_block()
    x = torch.randn(2, 4, 16).to(stream).requires_grad_()

    def step() -> Grads:
        with torch.autocast("cpu", torch.bfloat16):
            y = block(x)
        return torch.autograd.grad(y.float().square().sum(), (x, *block.parameters()))

    mine, plain = both_ways(monkeypatch, step)
    for one, other in zip(mine, plain, strict=True):
        assert one.dtype == other.dtype
        if stream == torch.float32:
            assert torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=0, atol=0.02 * float(other.abs().max()))


def additions_back(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Tensor], wanted: list[Tensor]
) -> tuple[int, int]:
    """How many gradients are added up on the way back as it is, and where nothing is passed on."""
    counts: list[int] = []

    def step() -> Grads:
        total = make().square().sum()
        with counting() as found:
            grads = torch.autograd.grad(total, wanted)
        counts.append(found.get("add", 0) + found.get("add_", 0))
        return grads

    both_ways(monkeypatch, step)
    return counts[0], counts[1]


def test_on_the_way_back_through_a_block_nothing_is_added_up(learning: pytest.MonkeyPatch) -> None:
    block, x = encoder_block().double(), drawn(2, 4, 16)
    assert additions_back(learning, lambda: block(x), [x, *block.parameters()]) == (0, 2)


def test_on_the_way_back_through_a_transformer_nothing_is_added_up(learning: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(
        source_vocab=9, target_vocab=9, width=16, heads=2, encoder_layers=2, decoder_layers=3, hidden=24, tie="none"
    )
    model, tokens = Transformer(config).double(), torch.randint(9, (2, 5))
    in_blocks, of_memory = 2 * 2 + 3 * 3, 3 - 1
    found = additions_back(learning, lambda: model(tokens, tokens), list(model.parameters()))
    assert found == (0, in_blocks + of_memory)


def test_a_transformer_has_the_same_gradients_either_way(learning: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(
        source_vocab=9, target_vocab=9, width=16, heads=2, encoder_layers=2, decoder_layers=3, hidden=24, dropout=0.2
    )
    model, tokens = Transformer(config).double(), torch.randint(9, (2, 5))
    asked = model.encode(tokens)

    def step() -> Grads:
        torch.manual_seed(1)
        logits = model.logits(model.decode(tokens, asked))
        return torch.autograd.grad(logits.square().sum(), (asked, *model.decoder.parameters()), retain_graph=True)

    torch.testing.assert_close(*both_ways(learning, step))


def test_a_module_that_is_watched_on_the_way_back_has_the_same_gradients(learning: pytest.MonkeyPatch) -> None:
    x, usual, watched = drawn(2, 3, 5), Linear(5, 4).double(), Linear(5, 4).double()
    watched.load_state_dict(usual.state_dict())
    watched.register_full_backward_hook(lambda *given: None)  # because of which it reads another tensor than x
    found = [torch.autograd.grad(y.sum() + left.sin().sum(), x) for y, left in (pass_on(x, usual), pass_on(x, watched))]
    torch.testing.assert_close(*found)
