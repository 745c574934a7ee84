import pytest
import torch

from regard.attention.packing import PaddedIndex, pack_padded, pad_packed
from regard.masks import Packed


def random_row(lengths: list[int]) -> tuple[torch.Tensor, Packed]:
    layout = Packed.of(lengths)
    return torch.randn(1, 2, layout.size, 3, dtype=torch.float64, requires_grad=True), layout


@pytest.mark.parametrize("lengths", [[3, 1, 4], [5], [1, 1, 1], [2, 0, 3, 0]])
def test_each_sequence_becomes_a_row_padded_with_zeros(lengths: list[int]) -> None:
    x, layout = random_row(lengths)
    rows = pad_packed(x, layout)
    assert rows.shape == (len(lengths), 2, max(lengths), 3)
    start = 0
    for row, length in zip(rows, lengths, strict=True):
        assert torch.equal(row[:, :length], x[0, :, start : start + length])
        assert not row[:, length:].any()
        start += length
    assert torch.equal(pack_padded(rows, layout), x)


def test_first_and_second_derivatives_are_correct() -> None:
    x, layout = random_row([3, 1, 4])
    index = PaddedIndex.of(layout)
    assert torch.autograd.gradcheck(lambda y: pad_packed(y, index), x)
    assert torch.autograd.gradgradcheck(lambda y: pad_packed(y, index).square(), x)
    rows = torch.randn(3, 2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y: pack_padded(y, index), rows)
    assert torch.autograd.gradgradcheck(lambda y: pack_padded(y, index).square(), rows)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:`torch.jit.script` is deprecated")
def test_conversion_supports_functional_transforms() -> None:
    x, layout = random_row([3, 1, 4])

    def loss(y: torch.Tensor) -> torch.Tensor:
        return pack_padded(pad_packed(y, layout).exp(), layout).square().sum()

    (expected,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(torch.func.grad(loss)(x.detach()), expected)
    batch = torch.stack([x.detach(), 2 * x.detach()])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(batch)[0], expected)
    _, tangent = torch.func.jvp(loss, (x.detach(),), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, expected.sum())
