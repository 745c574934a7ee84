import gc
import math
import weakref

import pytest
import torch
from torch import Tensor

from regard.attention.multi_head import Rotary, Rotary2D
from regard.errors import UserError
from regard.layers import Diagonal, Learned, Sinusoidal, Sinusoidal2D


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Sinusoidal


def formula(position: int, width: int) -> list[float]:
    """PE(p, 2i) = sin(p / 10000^(2i/width)), PE(p, 2i + 1) = cos(p / 10000^(2i/width))."""
    row = []
    for i in range(width // 2):
        angle = position / 10000 ** (2 * i / width)
        row += [math.sin(angle), math.cos(angle)]
    return row


@pytest.mark.parametrize("width", [2, 6, 64])
def test_sinusoidal_encoding_follows_the_paper(width: int) -> None:
    positions = torch.tensor([[0, 1, 7, 100], [3, 3, 2, 250]])
    encoding = Sinusoidal(width)(positions, 256)
    expected = torch.tensor([[formula(p, width) for p in row] for row in positions.tolist()])
    torch.testing.assert_close(encoding, expected, atol=1e-6, rtol=0)


def test_order_halves_puts_all_sines_first() -> None:
    positions = torch.arange(20)[None]
    interleaved, halves = Sinusoidal(8)(positions, 20), Sinusoidal(8, order="halves")(positions, 20)
    assert torch.equal(halves, torch.cat([interleaved[..., 0::2], interleaved[..., 1::2]], -1))
    assert not torch.equal(halves, interleaved)


@pytest.mark.parametrize("order", ["interleaved", "halves"])
def test_sinusoidal_accepts_any_length(order: str) -> None:
    encode = Sinusoidal(8, order=order)  # type: ignore[arg-type]
    far = torch.tensor([[0, 255, 256, 3_000, 99_999]])
    encoding = encode(far, 100_000)
    expected = torch.tensor([formula(p, 8) for p in far[0].tolist()])
    if order == "halves":
        expected = torch.cat([expected[:, 0::2], expected[:, 1::2]], -1)
    torch.testing.assert_close(encoding[0], expected, atol=1e-6, rtol=0)


def test_growing_the_table_changes_no_encoding() -> None:
    encode, positions = Sinusoidal(8), torch.arange(256)[None]
    before = encode(positions, 256)
    encode(torch.tensor([[999]]), 1000)
    assert torch.equal(encode(positions, 256), before)


def test_replaced_tables_stay_in_memory_for_captured_graphs() -> None:
    encode = Sinusoidal(8)
    reference, before = weakref.ref(encode.table), encode.table.clone()
    encode(torch.zeros(1, 1, dtype=torch.long), 1000)
    gc.collect()
    replaced = reference()
    assert replaced is not None and replaced is not encode.table and torch.equal(replaced, before)
    assert not encode.state_dict() and len(list(encode.buffers())) == 1


def test_sinusoidal_table_is_not_in_the_state_dict() -> None:
    assert not Sinusoidal(8).state_dict()


def test_sinusoidal_rejects_an_odd_width() -> None:
    with pytest.raises(ValueError, match="even width, not 7"):
        Sinusoidal(7)


# Learned


def test_learned_positions_are_rows_of_a_table() -> None:
    learned = Learned(4, 6)
    encoding = learned(torch.tensor([[3, 0], [0, 1]]), 4)
    assert torch.equal(encoding, learned.weight[torch.tensor([[3, 0], [0, 1]])])
    encoding.sum().backward()
    assert learned.weight.grad is not None
    assert learned.weight.grad[:, 0].tolist() == [2, 1, 0, 1]


def test_learned_positions_reject_longer_sequences() -> None:
    with pytest.raises(UserError, match=r"5 tokens .* 4 learned positions"):
        Learned(4, 6)(torch.arange(5)[None], 5)


# Diagonal


def test_diagonal_positions_are_unit_vectors() -> None:
    assert torch.equal(Diagonal(4)(torch.arange(4)[None], 4)[0], torch.eye(4))
    assert Diagonal(4)(torch.tensor([[2]]), 3).tolist() == [[[0, 0, 1, 0]]]


def test_scaled_diagonal_positions_carry_their_index() -> None:
    assert Diagonal(4, scaled=True)(torch.arange(4)[None], 4)[0].diagonal().tolist() == [0, 1, 2, 3]
    assert Diagonal(4, scaled=True)(torch.tensor([[2, 0]]), 3).tolist() == [[[0, 0, 2, 0], [0, 0, 0, 0]]]


def test_sinusoidal_encodes_distance_but_diagonal_does_not() -> None:
    positions = torch.arange(8)[None]
    diagonal, sinusoidal = Diagonal(8)(positions, 8)[0], Sinusoidal(8)(positions, 8)[0]
    assert (diagonal[0] - diagonal[1]).norm() == (diagonal[0] - diagonal[5]).norm()
    assert (sinusoidal[0] - sinusoidal[1]).norm() < (sinusoidal[0] - sinusoidal[2]).norm()


def test_diagonal_rejects_positions_beyond_its_width() -> None:
    with pytest.raises(UserError, match=r"width 4 ends at 4 positions, not 5"):
        Diagonal(4)(torch.arange(5)[None], 5)


# Rotary


def rotate_complex(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotate features i and i + D/2 as one complex number by the angle position · base^(-2i/D)."""
    half = x.shape[-1] // 2
    angle = torch.stack([positions.double() * base ** (-i / half) for i in range(half)], -1)
    rotated = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.exp(1j * angle)[:, None]
    return torch.cat([rotated.real, rotated.imag], -1)


@pytest.mark.parametrize("width", [2, 8, 64])
def test_rotary_agrees_with_complex_numbers(width: int) -> None:
    x = torch.randn(2, 3, 5, width, generator=seeded())
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 7, 0, 100, 31]])
    rotated = Rotary(width)(x, positions)
    torch.testing.assert_close(rotated.double(), rotate_complex(x, positions), atol=1e-5, rtol=0)


def test_rotary_positions_may_be_shared_by_all_rows() -> None:
    x, positions = torch.randn(3, 2, 5, 8, generator=seeded()), torch.arange(5)[None]
    assert torch.equal(Rotary(8)(x, positions), Rotary(8)(x, positions.expand(3, 5)))


def test_rotary_preserves_norms_and_does_not_rotate_position_zero() -> None:
    x = torch.randn(1, 2, 4, 8, generator=seeded())
    rotated = Rotary(8)(x, torch.tensor([[0, 3, 50, 1000]]))
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(rotated[:, :, 0], x[:, :, 0])
    assert not torch.allclose(rotated[:, :, 1], x[:, :, 1])


def score(rotary: torch.nn.Module, q: Tensor, k: Tensor, q_position: object, k_position: object) -> float:
    """Return the score of one query and one key, each rotated by its position."""
    q, k = rotary(q, torch.tensor([[q_position]])), rotary(k, torch.tensor([[k_position]]))
    return float((q * k).sum())


def test_rotary_scores_depend_only_on_the_distance() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=seeded()).unbind()
    rotary = Rotary(8)
    expected = score(rotary, q, k, 3, 1)
    assert score(rotary, q, k, 103, 101) == pytest.approx(expected, abs=1e-4)
    assert score(rotary, q, k, 2, 0) == pytest.approx(expected, abs=1e-4)
    assert score(rotary, q, k, 4, 1) != pytest.approx(expected, abs=1e-2)
    assert score(rotary, q, k, 1, 3) != pytest.approx(expected, abs=1e-2)


def test_rotary_rejects_an_odd_head_width() -> None:
    with pytest.raises(ValueError, match="even head width, not 5"):
        Rotary(5)


def test_rotary_preserves_the_dtype() -> None:
    x = torch.randn(1, 1, 3, 8, generator=seeded())
    for dtype in (torch.bfloat16, torch.float64):
        assert Rotary(8)(x.to(dtype), torch.arange(3)[None]).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotary_angles_stay_precise_in_half_precision(dtype: torch.dtype) -> None:
    x, positions = torch.randn(1, 1, 3, 64, generator=seeded()), torch.tensor([[1, 100, 400]])
    half = Rotary(64).to(dtype)
    torch.testing.assert_close(half(x.to(dtype), positions).float(), Rotary(64)(x, positions), atol=0.05, rtol=0.05)


# Rotary on a grid


def grid(height: int, width: int) -> Tensor:
    return torch.tensor([[[y, x] for y in range(height) for x in range(width)]])


def test_rotary_2d_rotates_the_first_half_by_y_and_the_second_by_x() -> None:
    x, positions = torch.randn(1, 2, 12, 8, generator=seeded()), grid(3, 4)
    rotated = Rotary2D(8)(x, positions)
    assert torch.equal(rotated[..., :4], Rotary(4, base=100)(x[..., :4], positions[..., 0]))
    assert torch.equal(rotated[..., 4:], Rotary(4, base=100)(x[..., 4:], positions[..., 1]))


def test_rotary_2d_agrees_with_complex_numbers_of_base_100() -> None:
    x, positions = torch.randn(1, 2, 12, 16, generator=seeded()), grid(3, 4)
    by_y = rotate_complex(x[..., :8], positions[..., 0], base=100)
    by_x = rotate_complex(x[..., 8:], positions[..., 1], base=100)
    torch.testing.assert_close(Rotary2D(16)(x, positions).double(), torch.cat([by_y, by_x], -1), atol=1e-5, rtol=0)


def test_rotary_2d_positions_may_differ_between_rows() -> None:
    x = torch.randn(2, 1, 2, 8, generator=seeded())
    positions = torch.tensor([[[0, 0], [2, 5]], [[7, 1], [0, 0]]])
    rotated = Rotary2D(8)(x, positions)
    for b in range(2):
        assert torch.equal(rotated[b : b + 1], Rotary2D(8)(x[b : b + 1], positions[b : b + 1]))
    assert torch.equal(rotated[0, :, 0], x[0, :, 0])
    assert torch.equal(rotated[1, :, 1], x[1, :, 1])


def test_rotary_2d_scores_depend_only_on_the_offset() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=seeded()).unbind()
    rotary = Rotary2D(8)
    expected = score(rotary, q, k, [3, 5], [1, 4])
    assert score(rotary, q, k, [12, 31], [10, 30]) == pytest.approx(expected, abs=1e-4)
    assert score(rotary, q, k, [3, 6], [1, 4]) != pytest.approx(expected, abs=1e-2)
    assert score(rotary, q, k, [4, 5], [1, 4]) != pytest.approx(expected, abs=1e-2)


def test_rotary_2d_rejects_a_head_width_not_divisible_by_4() -> None:
    with pytest.raises(ValueError, match="divisible by 4, not 6"):
        Rotary2D(6)


def test_a_grid_needs_a_width_divisible_by_four() -> None:
    with pytest.raises(ValueError, match="width divisible by 4, not 6"):
        Sinusoidal2D(6)
