"""Which of PyTorch's kernels attention may go to while something is learned."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from regard.attention import core
from regard.attention.core import attend
from regard.attention.masks import Mask
from regard.ops.dispatch import cudnn_gradients_are_unreliable

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("queries, keys", [(64, 64), (192, 192), (1, 128), (197, 197)])
def test_gradients_are_numbers_where_all_scores_are_far_below_zero(queries: int, keys: int, device: str) -> None:
    """As it comes to be while a model learns, since weights do not depend on what all scores have in common."""
    q, k, v = (torch.randn(8, 4, rows, 64, device=device) * 0.1 for rows in (queries, keys, keys))
    q[..., 0], k[..., 0] = 1.0, -120 * 8.0
    given = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    grads = torch.autograd.grad(attend(*given, path="sdpa").sum(), given)
    exact = [x.detach().double().requires_grad_() for x in given]
    right = torch.autograd.grad(attend(*exact, path="reference").sum(), exact)
    for found, wanted in zip(grads, right, strict=True):
        assert found.isfinite().all()
        # What all scores have in common is a difference of large numbers, of which half precision leaves nothing.
        found, wanted = found[..., 1:].double(), wanted[..., 1:]
        assert (found - wanted).norm() < 0.05 * wanted.norm()


@pytest.mark.parametrize("queries, keys, errs", [(64, 64, True), (1, 128, True), (197, 197, False), (65, 256, True)])
def test_cudnn_is_left_out_only_where_its_gradients_may_be_none(queries: int, keys: int, errs: bool) -> None:
    q, k = torch.ones(1, 1, queries, 8, requires_grad=True), torch.ones(1, 1, keys, 8)
    assert cudnn_gradients_are_unreliable(q, k, k) is errs
    with torch.no_grad():
        assert not cudnn_gradients_are_unreliable(q, k, k)
    assert not cudnn_gradients_are_unreliable(q.detach(), k, k)


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True)])
def test_what_may_go_to_cudnn_goes_by_the_choice_of_backends(monkeypatch: pytest.MonkeyPatch, mask: Mask) -> None:
    asked = []

    def choose(*given: Tensor) -> AbstractContextManager[None]:
        asked.append(len(given))
        return nullcontext()

    monkeypatch.setattr(core, "_reliable_backends", choose)
    attend(*(torch.randn(2, 2, 64, 4) for _ in range(3)), mask, path="sdpa")
    assert asked == [3]
