"""Tests of attention within a window with a relative position bias."""

import pytest
import torch

from regard.attention.biased import Relative, relative_offsets
from regard.attention.core import attend
from regard.attention.multi_head import Attention
from regard.inspection.probe import probe
from regard.masks import Mask


def random_kind(window: tuple[int, int], heads: int = 2) -> Relative:
    kind = Relative(window, heads)
    torch.nn.init.normal_(kind.table, generator=torch.Generator().manual_seed(0))
    return kind


@pytest.mark.parametrize("window", [(2, 2), (3, 4), (1, 5)])
def test_pairs_share_a_bias_exactly_if_their_offset_is_equal(window: tuple[int, int]) -> None:
    offsets = relative_offsets(window)
    cells = [(y, x) for y in range(window[0]) for x in range(window[1])]
    rows: dict[tuple[int, int], int] = {}
    for query, (y, x) in enumerate(cells):
        for key, (v, u) in enumerate(cells):
            assert rows.setdefault((y - v, x - u), int(offsets[query, key])) == offsets[query, key]
    assert sorted(rows.values()) == list(range((2 * window[0] - 1) * (2 * window[1] - 1)))


def test_bias_is_added_to_the_scores_on_every_path() -> None:
    kind = random_kind((2, 3))
    q, k, v = torch.randn(3, 4, 2, 6, 8, generator=torch.Generator().manual_seed(1))
    mask = Mask(allowed=torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(2)) < 0.6)
    expected = attend(q, k, v, mask, bias=kind.bias(), implementation="reference")
    torch.testing.assert_close(kind(q, k, v, mask), expected)
    torch.testing.assert_close(kind(q.requires_grad_(), k, v, mask), expected)
    torch.testing.assert_close(kind.weights(q, k, mask) @ v, expected)


def test_gradient_of_the_bias_table_agrees_with_the_reference() -> None:
    q, k, v = torch.randn(3, 2, 2, 4, 8, generator=torch.Generator().manual_seed(1))
    kind = random_kind((2, 2))
    (fused,) = torch.autograd.grad(kind(q, k, v, Mask()).square().sum(), kind.table)
    reference = attend(q, k, v, bias=kind.bias(), implementation="reference").square().sum()
    torch.testing.assert_close(fused, torch.autograd.grad(reference, kind.table)[0])
    assert (fused != 0).all()


def test_half_precision_is_preserved() -> None:
    q = torch.randn(1, 2, 4, 8, dtype=torch.bfloat16)
    assert random_kind((2, 2))(q, q, q, Mask()).dtype == torch.bfloat16


def test_probed_weights_include_the_bias() -> None:
    attention = Attention(16, 2, kind=random_kind((2, 2))).eval()
    x = torch.randn(3, 4, 16)
    with probe(attention) as seen:
        attention(x)
    q, k, _ = attention.qkv(x).view(3, 4, 3, 2, 8).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / 8**0.5 + attention.kind.bias()
    torch.testing.assert_close(seen[""].weights, scores.softmax(-1))
