"""Contract 3: changing token t + 1 changes no output at or before t."""

import pytest
import torch
from torch import Tensor

from regard.attention.kinds import Kind
from regard.masks import Mask
from regard.models.transformer import Transformer
from tests.contracts.batches import (
    LOGITS,
    SOURCE_LENGTHS,
    TARGET_LENGTHS,
    VOCAB,
    make_pair,
    pack,
    pad,
    qkv,
    sentences,
)


def change_after(targets: list[Tensor], t: int) -> list[Tensor]:
    """Replace every token after position t by another one."""
    return [torch.where(torch.arange(len(row)) > t, (row - 3 + 1) % (VOCAB - 3) + 3, row) for row in targets]


@pytest.mark.parametrize("layout", LOGITS)
@torch.no_grad()
def test_later_tokens_do_not_change_earlier_logits(autoregressive: Transformer, layout: str) -> None:
    logits = LOGITS[layout]
    sources, targets = make_pair()
    before = logits(autoregressive, sources, targets)
    for t in range(max(TARGET_LENGTHS) - 1):
        after = logits(autoregressive, sources, change_after(targets, t))
        for mine, theirs in zip(after, before, strict=True):
            assert torch.equal(mine[: t + 1], theirs[: t + 1])
            assert not (mine[t + 1 :] == theirs[t + 1 :]).all(-1).any()


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_gradients_do_not_reach_later_tokens(autoregressive: Transformer, packed: bool) -> None:
    rows, arrange = sentences(TARGET_LENGTHS, seed=1), pack if packed else pad
    target, layout = arrange(rows)
    source, source_layout = arrange(sentences(SOURCE_LENGTHS))
    encoder_output = autoregressive.encode(source, source_layout).detach()
    embedded: list[Tensor] = []
    hook = autoregressive.target_embedding.register_forward_hook(lambda module, args, output: embedded.append(output))
    decoded = autoregressive.decode(target, encoder_output, layout, source_layout)
    hook.remove()
    sentence = layout.segments()[None] if packed else torch.arange(len(rows))[:, None].expand(target.shape)  # type: ignore[union-attr]
    position = layout.positions().expand(target.shape)
    for b, t in [(b, t) for b, row in enumerate(rows) for t in range(len(row))]:
        token = (sentence == b) & (position == t)
        (grad,) = torch.autograd.grad(decoded[token].sin().sum(), embedded[0], retain_graph=True)
        reached, allowed = (grad != 0).any(-1), (sentence == b) & (position <= t)
        assert not (reached & ~allowed).any()
        if autoregressive.config.attention.kind in ("full", "linear"):
            assert torch.equal(reached, allowed)


@pytest.mark.parametrize("lengths", [(6, 6), (2, 6), (1, 6)], ids=str)
def test_causal_queries_ignore_later_keys(kind: Kind, lengths: tuple[int, int]) -> None:
    q, k, v = qkv(*lengths)
    context = kind(q, k, v, Mask(causal=True))
    for t in range(lengths[0]):
        end = t + 1 + lengths[1] - lengths[0]
        for grad in torch.autograd.grad(context[:, :, t].sin().sum(), (k, v), retain_graph=True):
            assert (grad[:, :, end:] == 0).all()


@pytest.mark.parametrize("lengths", [(6, 6), (2, 6), (1, 6)], ids=str)
def test_causal_queries_of_dense_kinds_attend_to_all_earlier_keys(dense_kind: Kind, lengths: tuple[int, int]) -> None:
    q, k, v = qkv(*lengths)
    context = dense_kind(q, k, v, Mask(causal=True))
    for t in range(lengths[0]):
        end = t + 1 + lengths[1] - lengths[0]
        for grad in torch.autograd.grad(context[:, :, t].sin().sum(), (k, v), retain_graph=True):
            assert (grad[:, :, :end] != 0).any(-1).all() or end == 1  # the weight of a single key is constant
