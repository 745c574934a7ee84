"""What only a GPU can show of the kinds: its paths mean what the CPU's do, and nobody waits for the device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from regard.attention.kind import Kind
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.masks import Mask, Packed
from regard.attention.routing import Routing

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

H, D = 2, 16
CUDA = torch.device("cuda")
LENGTHS = [300, 1, 77]
KINDS: dict[str, Callable[[], Kind]] = {
    "local": lambda: Local(20, 5),
    "local dilated": lambda: Local(8, 8, dilation=2),
    "local global_tokens": lambda: Local(8, 8, global_tokens=2),
    "linear": lambda: Linear(D),
    "linear random": lambda: Linear(D, "random"),
}


def tensors(batch: int, length: int) -> list[Tensor]:
    source = torch.Generator().manual_seed(length)
    return [torch.randn(batch, H, length, D, generator=source) for _ in range(3)]


def masks(device: torch.device, causal: bool) -> dict[str, tuple[Mask, list[Tensor]]]:
    """One batch in a single row, one without any layout."""
    layout = Packed.of(LENGTHS, device)
    return {
        "packed": (Mask(queries=layout, keys=layout, causal=causal), tensors(1, sum(LENGTHS))),
        "bare": (Mask(causal=causal), tensors(2, 301)),
    }


def run(kind: Kind, mask: Mask, inputs: list[Tensor]) -> list[Tensor]:
    """The context and the gradients."""
    context = kind(*inputs, mask)
    return [context, *torch.autograd.grad(context, inputs, torch.ones_like(context))]


@contextmanager
def never_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_close(got: list[Tensor], expected: list[Tensor]) -> None:
    """Within the rounding of half precision."""
    for mine, theirs in zip(got, expected, strict=True):
        assert ((mine.float().cpu() - theirs.float().cpu()).norm() / theirs.float().norm().cpu()).item() < 0.03


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("layout", ["packed", "bare"])
@pytest.mark.parametrize("name", KINDS)
def test_in_half_precision_a_gpu_means_the_same_and_waits_for_nothing(name: str, layout: str, causal: bool) -> None:
    torch.manual_seed(0)
    kind = KINDS[name]()
    mask, inputs = masks(torch.device("cpu"), causal)[layout]
    half = [x.bfloat16() for x in inputs]
    expected = run(kind, mask, [x.float().requires_grad_() for x in half])
    kind = kind.to(CUDA) if isinstance(kind, nn.Module) else kind
    mask, _ = masks(CUDA, causal)[layout]
    inputs = [x.to(CUDA).requires_grad_() for x in half]
    run(kind, mask, inputs)  # what a kernel's first call makes once
    with never_waiting():
        got = run(kind, mask, inputs)
    assert_close(got, expected)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_clusters_on_a_gpu_mean_the_same(causal: bool) -> None:
    torch.manual_seed(0)
    inputs = tensors(2, 301)
    kind = Routing(H, D, 5, path="clusters").double().eval()
    expected = run(kind, Mask(causal=causal), [x.double().requires_grad_() for x in inputs])
    got = run(kind.to(CUDA), Mask(causal=causal), [x.to(CUDA, torch.float64).requires_grad_() for x in inputs])
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("layout", ["packed", "bare"])
def test_clusters_in_half_precision_stay_close_to_the_reference(layout: str) -> None:
    torch.manual_seed(0)
    kind = Routing(H, D, 5).to(CUDA).eval()
    mask, inputs = masks(CUDA, True)[layout]
    half = [x.to(CUDA, torch.bfloat16).requires_grad_() for x in inputs]
    kind.path = "reference"
    expected = run(kind, mask, half)
    kind.path = "clusters"
    assert_close(run(kind, mask, half), expected)
