"""Tests of the attention kinds on a GPU: agreement with the CPU, and no synchronisation with the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from regard.attention.kinds import Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.routing import Routing
from regard.masks import Mask, Packed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

H, D = 2, 16
CUDA = torch.device("cuda")
LENGTHS = [300, 1, 77]
KINDS: dict[str, Callable[[], Kind]] = {
    "local": lambda: Local(20, 5),
    "local-dilated": lambda: Local(8, 8, dilation=2),
    "local-global": lambda: Local(8, 8, global_tokens=2),
    "linear": lambda: Linear(D),
    "linear-random": lambda: Linear(D, "random"),
}


def tensors(batch: int, length: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(length)
    return [torch.randn(batch, H, length, D, generator=source) for _ in range(3)]


def masks(device: torch.device, causal: bool) -> dict[str, tuple[Mask, list[Tensor]]]:
    """Return a packed batch, and a batch without layouts."""
    layout = Packed.of(LENGTHS, device)
    return {
        "packed": (Mask(queries=layout, keys=layout, causal=causal), tensors(1, sum(LENGTHS))),
        "no layout": (Mask(causal=causal), tensors(2, 301)),
    }


def run(kind: Kind, mask: Mask, inputs: list[Tensor]) -> list[Tensor]:
    """Return the context and the gradients of the inputs."""
    context = kind(*inputs, mask)
    return [context, *torch.autograd.grad(context, inputs, torch.ones_like(context))]


@contextmanager
def forbid_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    """Compare within the rounding error of half precision."""
    for mine, theirs in zip(got, expected, strict=True):
        assert ((mine.float().cpu() - theirs.float().cpu()).norm() / theirs.float().norm().cpu()).item() < 0.03


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("layout", ["packed", "no layout"])
@pytest.mark.parametrize("name", KINDS)
def test_half_precision_agrees_with_the_cpu_without_synchronisation(name: str, layout: str, causal: bool) -> None:
    torch.manual_seed(0)
    kind = KINDS[name]()
    mask, inputs = masks(torch.device("cpu"), causal)[layout]
    half = [x.bfloat16() for x in inputs]
    expected = run(kind, mask, [x.float().requires_grad_() for x in half])
    kind = kind.to(CUDA) if isinstance(kind, nn.Module) else kind
    mask, _ = masks(CUDA, causal)[layout]
    inputs = [x.to(CUDA).requires_grad_() for x in half]
    run(kind, mask, inputs)  # the first call compiles kernels
    with forbid_synchronisation():
        got = run(kind, mask, inputs)
    assert_close(got, expected)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_attention_within_clusters_agrees_with_the_cpu(causal: bool) -> None:
    torch.manual_seed(0)
    inputs = tensors(2, 301)
    kind = Routing(H, D, 5, implementation="clusters").double().eval()
    expected = run(kind, Mask(causal=causal), [x.double().requires_grad_() for x in inputs])
    got = run(kind.to(CUDA), Mask(causal=causal), [x.to(CUDA, torch.float64).requires_grad_() for x in inputs])
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("layout", ["packed", "no layout"])
def test_clusters_in_half_precision_agree_with_the_reference(layout: str) -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, 5).to(CUDA).eval()
    mask, inputs = masks(CUDA, True)[layout]
    half = [x.to(CUDA, torch.bfloat16).requires_grad_() for x in inputs]
    kind.implementation = "reference"
    expected = run(kind, mask, half)
    kind.implementation = "clusters"
    assert_close(run(kind, mask, half), expected)
