"""Contract 1: True means "may attend", and fully masked rows give zeros and zero gradients on every path."""

import pytest
import torch
from torch import Tensor

from regard.attention.kinds import Kind
from regard.masks import Mask, Packed, Padded
from regard.models.transformer import EncoderDecoder
from tests.contracts.batches import CLOSE, LOGITS, qkv, seeded, sentences


def assert_fully_masked(kind: Kind, mask: Mask, inputs: list[Tensor], rows: Tensor) -> None:
    """Check that the context and the weights of these queries, (B, T), are zero, and that they send no gradient."""
    q, k, v = inputs
    context = kind(q, k, v, mask)
    assert context.isfinite().all()
    rows = rows[:, None].expand(context.shape[:3])
    assert (context[rows] == 0).all()
    assert (context[~rows] != 0).any()
    for grad in torch.autograd.grad(context[rows].sum(), inputs, retain_graph=True):
        assert (grad == 0).all()
    for grad in torch.autograd.grad(context.sum(), inputs):
        assert grad.isfinite().all()
    assert (kind.weights(q, k, mask)[rows] == 0).all()


def test_queries_over_padding_give_zeros(kind: Kind) -> None:
    assert_fully_masked(kind, Mask(keys=Padded.of([4, 0])), qkv(3, 4), torch.tensor([[False] * 3, [True] * 3]))


def test_causal_queries_before_all_keys_give_zeros(kind: Kind) -> None:
    assert_fully_masked(kind, Mask(causal=True), qkv(5, 3), torch.tensor([[True, True, False, False, False]] * 2))


def test_queries_excluded_by_a_dense_mask_give_zeros(kind: Kind) -> None:
    allowed = torch.tensor([[True, False, True], [False, False, False]])
    assert_fully_masked(kind, Mask(allowed=allowed), qkv(2, 3), torch.tensor([[False, True]] * 2))


def test_packed_queries_without_keys_give_zeros(packed_kind: Kind) -> None:
    mask = Mask(queries=Packed.of([2, 1, 2]), keys=Packed.of([3, 0, 1]))
    assert_fully_masked(packed_kind, mask, qkv(5, 4, batch=1), torch.tensor([[False, False, True, False, False]]))


def test_packed_causal_queries_before_all_keys_give_zeros(packed_kind: Kind) -> None:
    mask = Mask(queries=Packed.of([3, 2]), keys=Packed.of([1, 3]), causal=True)
    assert_fully_masked(packed_kind, mask, qkv(5, 4, batch=1), torch.tensor([[True, True, False, False, False]]))


def test_dense_kinds_give_weight_to_exactly_the_allowed_keys(dense_kind: Kind) -> None:
    allowed = torch.rand(2, 2, 4, 5, generator=seeded()) < 0.5
    q, k, _ = qkv(4, 5)
    assert torch.equal(dense_kind.weights(q, k, Mask(allowed=allowed)) != 0, allowed)


def test_sparse_kinds_give_weight_to_some_allowed_keys_only(sparse_kind: Kind) -> None:
    allowed = torch.rand(2, 2, 4, 5, generator=seeded()) < 0.5
    q, k, _ = qkv(4, 5)
    weighted = sparse_kind.weights(q, k, Mask(allowed=allowed)) != 0
    assert not (weighted & ~allowed).any()
    assert weighted.any()
    assert not torch.equal(weighted, allowed)


def test_excluded_keys_do_not_change_the_context(kind: Kind) -> None:
    allowed = torch.rand(4, 5, generator=seeded()) < 0.6
    q, k, v = qkv(4, 5)
    mask = Mask(allowed=allowed)
    context = kind(q, k, v, mask)
    for s in range(5):
        keys, values = k.detach().clone(), v.detach().clone()
        keys[:, :, s], values[:, :, s] = 9.0, -9.0
        changed = (kind(q, keys, values, mask) != context).any(-1).any(0).any(0)
        assert not (changed & ~allowed[:, s]).any()


def test_every_allowed_key_changes_the_context_of_dense_kinds(dense_kind: Kind) -> None:
    q, k, v = qkv(4, 5)
    context = dense_kind(q, k, v, Mask())
    for s in range(5):
        values = v.detach().clone()
        values[:, :, s] = -9.0
        assert (dense_kind(q, k, values, Mask()) != context).any(-1).all()


def test_context_is_the_weighted_mean_of_the_values(kind: Kind) -> None:
    q, k, v = qkv(5, 5)
    for mask in (Mask(), Mask(causal=True), Mask(keys=Padded.of([5, 2]))):
        torch.testing.assert_close(kind(q, k, v, mask), kind.weights(q, k, mask) @ v, **CLOSE)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_sentences_with_an_empty_source_have_finite_logits_and_no_encoder_gradient(
    encoder_decoder: EncoderDecoder, layout: str
) -> None:
    sources, targets = sentences([4, 0, 2]), sentences([3, 2, 4], seed=1)
    logits = LOGITS[layout](encoder_decoder, sources, targets)
    assert all(row.isfinite().all() for row in logits)
    logits[1].sum().backward()
    grads = {name: p.grad for name, p in encoder_decoder.named_parameters() if p.grad is not None}
    assert grads
    assert all(grad.isfinite().all() for grad in grads.values())
    assert all((grad == 0).all() for name, grad in grads.items() if name.startswith("encoder"))
