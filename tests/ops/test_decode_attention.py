"""Tests of the kernel for few queries, against the reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.core import attend
from regard.masks import Mask, Padded
from regard.ops import dispatch
from regard.ops.decode_attention import decode_attention

pytestmark = [
    pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton"),
    pytest.mark.usefixtures("interpreted"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")


def tensors(B: int, H: int, T: int, S: int, D: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return token-major queries, keys and values, as projections do."""
    generator = torch.Generator().manual_seed(T * S)
    shapes = ((B, T, H, D), (B, S, H, D), (B, S, H, D))
    return [torch.randn(shape, generator=generator).to(DEVICE, dtype).transpose(1, 2) for shape in shapes]


def random_mask(B: int, T: int, S: int) -> Tensor:
    return torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(S), device="cpu").to(DEVICE) < 0.5


@settings(max_examples=12)
@given(
    T=st.integers(1, 40),
    lengths=st.lists(st.integers(0, 70), min_size=1, max_size=3),
    D=st.sampled_from((16, 32)),
    masked=st.booleans(),
)
def test_kernel_agrees_with_the_reference(T: int, lengths: list[int], D: int, masked: bool) -> None:
    S = max(1, *lengths)
    q, k, v = tensors(len(lengths), 2, T, S, D)
    allowed = random_mask(len(lengths), T, S) if masked else None
    mask = Mask(keys=Padded(torch.tensor(lengths, device=DEVICE), S), allowed=allowed)
    expected = attend(q, k, v, mask, scale=0.3, implementation="reference")
    torch.testing.assert_close(decode_attention(q, k, v, mask, 0.3), expected, atol=2e-6, rtol=1e-5)


def test_queries_attend_to_all_keys_without_a_mask() -> None:
    q, k, v = tensors(2, 3, 4, 37, 16)
    torch.testing.assert_close(decode_attention(q, k, v, Mask(), 0.25), attend(q, k, v, implementation="reference"))


def test_padding_is_never_read() -> None:
    q, k, v = tensors(2, 1, 3, 40, 16)
    mask = Mask(keys=Padded(torch.tensor([5, 33], device=DEVICE), 40))
    expected = attend(q, k, v, mask, implementation="reference")
    for row, length in enumerate((5, 33)):
        k[row, :, length:] = v[row, :, length:] = torch.nan
    torch.testing.assert_close(decode_attention(q, k, v, mask, 0.25), expected)


def test_lengths_may_be_strided() -> None:
    q, k, v = tensors(3, 2, 4, 21, 16)
    table = torch.tensor([[9, 7, 1], [3, 21, 2], [5, 13, 0]], device=DEVICE)
    for column in table.unbind(1):
        expected = attend(q, k, v, Mask(keys=Padded(column.contiguous(), 21)), implementation="reference")
        torch.testing.assert_close(decode_attention(q, k, v, Mask(keys=Padded(column, 21)), 0.25), expected)


def test_fully_masked_rows_are_zero() -> None:
    q, k, v = tensors(1, 2, 3, 9, 16)
    allowed = torch.ones(1, 1, 3, 9, dtype=torch.bool, device=DEVICE)
    allowed[:, :, 1] = False
    context = decode_attention(q, k, v, Mask(allowed=allowed), 0.25)
    assert not context[:, :, 1].any()
    assert context[:, :, 0].any()


def test_context_is_token_major() -> None:
    q, k, v = tensors(2, 4, 3, 9, 16)
    assert decode_attention(q, k, v, Mask(), 0.25).transpose(1, 2).is_contiguous()


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kernel_is_selected_on_gpu_and_agrees_with_the_reference(dtype: torch.dtype) -> None:
    q, k, v = tensors(64, 8, 4, 160, 64, dtype)
    lengths = torch.arange(1, 65, device=DEVICE) * 2
    mask = Mask(keys=Padded(lengths, 160), allowed=random_mask(64, 4, 160))
    assert dispatch.decode_attention_applies(q, k, v, mask)
    assert not dispatch.decode_attention_applies(q, k, v, Mask(causal=True))
    for rows, queries, keys, fits in (
        (1, 128, 128, True),
        (64, 32, 64, True),
        (64, 33, 64, False),
        (1, 17, 129, False),
    ):
        others = tensors(rows, 8, queries, keys, 64, dtype)
        assert dispatch.decode_attention_applies(*others, Mask()) == fits
    expected = attend(q.double(), k.double(), v.double(), mask, implementation="reference")
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-6
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, mask).double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("widths", [(16, 3), (16, 20), (24, 24)], ids=str)
def test_narrow_heads_and_values_of_another_width_are_padded(widths: tuple[int, int]) -> None:
    D, V = widths
    (q, k, _), (_, _, v) = tensors(2, 3, 4, 37, D), tensors(2, 3, 4, 37, V)
    mask = Mask(keys=Padded.of([37, 5], device=DEVICE))
    context = attend(q, k, v, mask, implementation="decode")
    torch.testing.assert_close(context, attend(q, k, v, mask, implementation="reference"), atol=2e-6, rtol=1e-5)
