import pytest
import torch

from regard.attention.masks import Packed
from regard.attention.packing import PaddedIndex, pack_padded, pad_packed


def drawn(lengths: list[int]) -> tuple[torch.Tensor, Packed]:
    layout = Packed.of(lengths)
    return torch.randn(1, 2, layout.size, 3, dtype=torch.float64, requires_grad=True), layout


@pytest.mark.parametrize("lengths", [[3, 1, 4], [5], [1, 1, 1], [2, 0, 3, 0]])
def test_each_sequence_has_a_row_with_zeros_behind_it(lengths: list[int]) -> None:
    x, layout = drawn(lengths)
    rows = pad_packed(x, layout)
    assert rows.shape == (len(lengths), 2, max(lengths), 3)
    begin = 0
    for row, length in zip(rows, lengths, strict=True):
        assert torch.equal(row[:, :length], x[0, :, begin : begin + length])
        assert not row[:, length:].any()
        begin += length
    assert torch.equal(pack_padded(rows, layout), x)


def test_both_ways_back_are_right_twice() -> None:
    x, layout = drawn([3, 1, 4])
    places = PaddedIndex.of(layout)
    assert torch.autograd.gradcheck(lambda y: pad_packed(y, places), x)
    assert torch.autograd.gradgradcheck(lambda y: pad_packed(y, places).square(), x)
    rows = torch.randn(3, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: pack_padded(y, places), rows)
    assert torch.autograd.gradgradcheck(lambda y: pack_padded(y, places).square(), rows)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:`torch.jit.script` is deprecated")
def test_it_can_be_transformed() -> None:
    x, layout = drawn([3, 1, 4])

    def cost(y: torch.Tensor) -> torch.Tensor:
        return pack_padded(pad_packed(y, layout).exp(), layout).square().sum()

    (expected,) = torch.autograd.grad(cost(x), x)
    torch.testing.assert_close(torch.func.grad(cost)(x.detach()), expected)
    several = torch.stack([x.detach(), 2 * x.detach()])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(cost))(several)[0], expected)
    _, along = torch.func.jvp(cost, (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close(along, expected.sum())
