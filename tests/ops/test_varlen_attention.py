"""Tests of the kernels of attention over key ranges, against the formula in float64."""

import math
import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import kinds
from regard.attention.core import attend, attention_weights
from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.masks import Mask, Packed
from regard.ops import dispatch, varlen_attention
from regard.ops.dropout import KERNEL_LEVELS
from regard.ops.key_ranges import KeyRanges
from regard.ops.varlen_attention import attend_key_ranges, attend_projections, split_projections
from tests.kernel_references import kernel_drop_mask

pytestmark = [
    pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="needs Triton"),
    pytest.mark.usefixtures("interpreted"),
]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
TILE_EDGE_LENGTHS = [31, 1, 33, 0, 64, 2, 65]


def packed_mask(queries: Sequence[int], keys: Sequence[int] | None, causal: bool) -> Mask:
    layout = Packed.of(queries, DEVICE)
    return Mask(queries=layout, keys=layout if keys is None else Packed.of(keys, DEVICE), causal=causal)


def tensors(mask: Mask, heads: int = 1, width: int = 16, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    assert isinstance(mask.queries, Packed)
    assert isinstance(mask.keys, Packed)
    generator = torch.Generator().manual_seed(mask.queries.size)
    sizes = mask.queries.size, mask.keys.size, mask.keys.size
    inputs = [torch.randn(1, heads, n, width, generator=generator) for n in sizes]
    return [x.to(DEVICE, dtype).requires_grad_() for x in inputs]


def upstream(context: Tensor) -> Tensor:
    return torch.randn(context.shape, generator=torch.Generator().manual_seed(1)).to(context)


def with_gradients(context: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [context, *torch.autograd.grad(context, inputs, upstream(context))]


def reference(
    inputs: list[Tensor], mask: Mask, scale: float | None = None, dropped: Tensor | None = None, dropout: float = 0.0
) -> list[Tensor]:
    q, k, v = precise = [x.detach().double().requires_grad_() for x in inputs]
    weights = attention_weights(q, k, mask, scale=scale)
    if dropped is not None:
        weights = weights.masked_fill(dropped, 0.0) / (1 - dropout)
    return with_gradients(weights @ v, precise)


def assert_close(results: list[Tensor], expected: list[Tensor], tolerance: float = 2e-6) -> None:
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.shape == theirs.shape
        size = theirs.abs().max().item() if theirs.numel() else 1.0
        torch.testing.assert_close(mine.double(), theirs, atol=tolerance * max(size, 1.0), rtol=0)


@pytest.mark.parametrize("by_sequence", [True, False], ids=["backward by sequence", "backward by tile"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("keys", [None, [3, 40, 0, 5, 64, 1, 70]], ids=["self", "cross"])
def test_lengths_around_the_size_of_a_tile(keys: list[int] | None, causal: bool, by_sequence: bool) -> None:
    mask = packed_mask(TILE_EDGE_LENGTHS, keys, causal)
    inputs = tensors(mask)
    ranges = KeyRanges.of(mask) if by_sequence else KeyRanges.of(mask)._replace(programs=None)
    got = with_gradients(attend_key_ranges(*inputs, ranges, 0.25), inputs)
    assert_close(got, reference(inputs, mask, 0.25))


@settings(max_examples=10, derandomize=True)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=5),
    causal=st.booleans(),
    window=st.none() | st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
)
def test_arbitrary_numbers_of_queries_and_keys(
    pairs: list[tuple[int, int]], causal: bool, window: tuple[int | None, int | None] | None
) -> None:
    queries, keys = ([max(lengths), *lengths, 1] for lengths in zip(*pairs, strict=True))
    mask = packed_mask(queries, keys, causal)
    mask = mask if window is None else mask & Mask(window=window)
    inputs = tensors(mask)
    got = with_gradients(attend(*inputs, mask, implementation="triton_varlen"), inputs)
    assert_close(got, reference(inputs, mask))


@settings(max_examples=5, derandomize=True)
@given(
    lengths=st.lists(st.integers(0, 12) | st.integers(28, 36) | st.integers(60, 80), min_size=1, max_size=3),
    program_tokens=st.sampled_from([16, 32, 300]),
)
def test_programs_of_any_size_compute_all_gradients(lengths: list[int], program_tokens: int) -> None:
    mask = packed_mask([1, *lengths, 0], [2, *reversed(lengths), 0], False)
    inputs = tensors(mask)
    seed, ranges = torch.tensor([5], device=DEVICE), KeyRanges.of(mask, program_tokens)
    got = with_gradients(varlen_attention._attend(*inputs, *ranges, None, None, seed, 0.3, 0.4), inputs)
    dropped = kernel_drop_mask(seed, 1, inputs[0].shape[2], inputs[1].shape[2], 0.4)[None]
    assert_close(got, reference(inputs, mask, 0.3, dropped, 0.4))


@pytest.mark.parametrize("width", [32, 64, 128])
def test_head_widths_and_scale(width: int) -> None:
    mask = packed_mask([20, 35], None, True)
    inputs = tensors(mask, heads=2, width=width)
    got = with_gradients(attend(*inputs, mask, scale=0.2, implementation="triton_varlen"), inputs)
    assert_close(got, reference(inputs, mask, scale=0.2), 4e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float16, 4e-3),
        pytest.param(torch.bfloat16, 3e-2, marks=on_gpu),
    ],  # the interpreter does not support matmuls in bfloat16
)
def test_half_precision_agrees_within_rounding(dtype: torch.dtype, tolerance: float) -> None:
    mask = packed_mask([70, 3, 30], None, True)
    inputs = tensors(mask, width=32, dtype=dtype)
    got = with_gradients(attend(*inputs, mask, implementation="triton_varlen"), inputs)
    assert all(x.dtype == dtype for x in got)
    assert_close(got, reference(inputs, mask), tolerance)


def test_fully_masked_rows_give_zeros_and_zero_gradients() -> None:
    mask = packed_mask([5, 4, 40], [0, 2, 0], True)
    inputs = tensors(mask)
    got = with_gradients(attend(*inputs, mask, implementation="triton_varlen"), inputs)
    fully_masked = [0, 1, 2, 3, 4, 5, 6, *range(9, 49)]
    assert not got[0][0, 0, fully_masked].any()
    assert not got[1][0, 0, fully_masked].any()
    assert_close(got, reference(inputs, mask))


def test_gradients_of_a_fused_projection_are_views_of_one_tensor() -> None:
    mask = packed_mask([20, 25], None, False)
    H, D, N = 2, 16, 45
    projection = torch.randn(1, N, 3 * H * D, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    parts = [x.view(1, N, H, D).transpose(1, 2).requires_grad_() for x in projection.chunk(3, -1)]
    got = with_gradients(attend(*parts, mask, implementation="triton_varlen"), parts)
    assert_close(got, reference(parts, mask))
    assert got[0].transpose(1, 2).is_contiguous()
    dq, dk, dv = got[1:]
    assert dq.stride() == dk.stride() == dv.stride() == (N * 3 * H * D, D, 3 * H * D, 1)
    assert [x.data_ptr() - dq.data_ptr() for x in (dk, dv)] == [4 * H * D, 8 * H * D]


@pytest.mark.parametrize("keys", [None, [40, 9, 3]], ids=["self", "cross"])
def test_gradients_of_projections_are_contiguous(keys: list[int] | None) -> None:
    mask = packed_mask([35, 1, 30], keys, True)
    inputs = tensors(mask, heads=2)
    parts = [x.detach().transpose(1, 2)[:, :, None] for x in inputs]
    projections = [torch.cat(parts, 2)] if keys is None else [parts[0], torch.cat(parts[1:], 2)]
    projections = [projection.requires_grad_() for projection in projections]
    context = attend_projections(projections, KeyRanges.of(mask), 0.3)
    grads = torch.autograd.grad(context, projections, upstream(context))
    assert all(grad.is_contiguous() for grad in grads)
    assert_close([context, *split_projections(grads)], reference(inputs, mask, 0.3))


@pytest.mark.parametrize("keys", [None, [12, 9]], ids=["self", "cross"])
def test_packed_attention_does_not_split_the_projection(
    keys: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = packed_mask([5, 30], keys, causal=keys is None)
    torch.manual_seed(0)
    attention = Attention(32, 2).to(DEVICE)
    x = torch.randn(1, 35, 32, device=DEVICE, requires_grad=True)
    source = None if keys is None else torch.randn(1, 21, 32, device=DEVICE, requires_grad=True)
    inputs = [x, *attention.parameters()] + ([] if source is None else [source])
    expected = with_gradients(attention(x, source, mask=mask), inputs)
    monkeypatch.setattr(kinds, "select_attention", lambda *_: "triton_varlen")
    monkeypatch.setattr(Attention, "_attend", None)
    fused = with_gradients(attention(x, source, mask=mask), inputs)
    assert_close(fused, [y.double() for y in expected])


@pytest.mark.parametrize("keys", [None, [40, 9, 3]], ids=["self", "cross"])
def test_dropout_drops_the_same_weights_forward_and_backward(keys: list[int] | None) -> None:
    mask = packed_mask([35, 1, 30], keys, False)
    inputs = tensors(mask, heads=2)
    scale, p = 0.3, 0.4
    torch.manual_seed(7)
    got = with_gradients(attend_key_ranges(*inputs, KeyRanges.of(mask), scale, p), inputs)
    torch.manual_seed(7)
    seed = torch.randint(2**31 - 1, (1,), device=DEVICE)
    dropped = kernel_drop_mask(seed, 2, inputs[0].shape[2], inputs[1].shape[2], p)[None]
    assert_close(got, reference(inputs, mask, scale, dropped, p))


def test_dropout_masks_have_the_given_rate_and_are_independent() -> None:
    first, second = (kernel_drop_mask(torch.tensor([seed]), 4, 300, 300, 0.1) for seed in (1, 2))
    assert first.float().mean().item() == pytest.approx(0.1, abs=0.002)
    # Independent of those of the neighbouring key, query and head, and of another seed.
    for other in (first.roll(1, 2), first.roll(1, 1), first.roll(1, 0), second):
        assert (first & other).float().mean().item() == pytest.approx(0.01, abs=0.001)
    assert not kernel_drop_mask(torch.tensor([1]), 1, 50, 50, 0.5 / KERNEL_LEVELS).any()


@pytest.mark.parametrize("projections", [1, 2])
def test_projections_compile_to_one_graph(projections: int) -> None:
    mask = packed_mask([35, 1, 30], None, True)
    parts = [x.detach().transpose(1, 2)[:, :, None] for x in tensors(mask)]
    inputs = [torch.cat(parts, 2)] if projections == 1 else [parts[0], torch.cat(parts[1:], 2)]
    inputs = [projection.requires_grad_() for projection in inputs]

    def attention(*projections: Tensor) -> Tensor:
        return attend_projections(projections, KeyRanges.of(mask), 0.3)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(
        with_gradients(compiled(*inputs), inputs), with_gradients(attention(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_attention_compiles_to_one_graph() -> None:
    mask = packed_mask([20, 35], None, True)
    inputs = tensors(mask)
    ranges = KeyRanges.of(mask)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_key_ranges(q * 2, k, v, ranges, 0.3) + 1

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(
        with_gradients(compiled(*inputs), inputs), with_gradients(attention(*inputs), inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_operators_pass_opcheck() -> None:
    mask = packed_mask([5, 3], [2, 4], False)
    inputs = tensors(mask)
    arguments = (*inputs, *KeyRanges.of(mask), None, None, None, 0.25, 0.0)
    torch.library.opcheck(torch.ops.regard.attend_key_ranges.default, arguments)


def test_bias_is_rejected() -> None:
    mask = packed_mask([5], None, False)
    with pytest.raises(ValueError, match="without bias or dense mask"):
        attend(*tensors(mask), mask, bias=torch.zeros(1), implementation="triton_varlen")


@pytest.mark.parametrize("widths", [(16, 3), (16, 20), (10, 10), (40, 1)], ids=str)
def test_narrow_heads_and_values_of_another_width_are_padded(widths: tuple[int, int]) -> None:
    D, V = widths
    mask = packed_mask([20, 3], [30, 1], True)
    q, k, _ = tensors(mask, heads=2, width=D)
    inputs = [q, k, tensors(mask, heads=2, width=V)[2]]
    got = with_gradients(attend(*inputs, mask, implementation="triton_varlen"), inputs)
    assert got[0].shape[-1] == V
    assert_close(got, reference(inputs, mask))


def test_heads_that_are_too_wide_are_rejected() -> None:
    mask = packed_mask([5], None, False)
    with pytest.raises(ValueError, match="implementation='triton_varlen' supports heads of up to 128 features"):
        attend(*tensors(mask, width=129), mask, implementation="triton_varlen")


def test_attention_works_without_triton() -> None:
    program = """
import sys
sys.modules["triton"] = None
import torch
from regard.attention.core import attend
from regard.attention.linear import Linear
from regard.masks import Mask, Packed
from regard.attention.routing import Routing
from regard.ops import dispatch
assert not dispatch.TRITON_INSTALLED
layout = Packed.of([3, 4])
mask = Mask(queries=layout, keys=layout)
x = torch.ones(1, 2, 7, 16)
for kind in (attend, Linear(16), Routing(2, 16, 3)):
    assert torch.allclose(kind(x, x, x, mask), x)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


@on_gpu
def test_short_sequences_on_gpu_use_the_kernels_without_synchronisation() -> None:
    layout = Packed.of([20, 300, 1], DEVICE)
    inputs = tensors(Mask(queries=layout, keys=layout), heads=8, width=64, dtype=torch.bfloat16)
    for dropout in (0.0, 0.1):
        for attempt in range(2):  # the first call compiles the kernels
            torch.cuda.set_sync_debug_mode("error" if attempt else "default")
            try:
                mask = Mask(queries=layout, keys=layout, causal=True)
                with_gradients_on_device(attend(*inputs, mask, dropout=dropout), inputs)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            assert ("key ranges",) in mask._built


def with_gradients_on_device(context: Tensor, inputs: list[Tensor]) -> None:
    torch.autograd.grad(context, inputs, torch.ones_like(context))


@on_gpu
def test_many_sequences_on_gpu_agree_with_the_reference() -> None:
    lengths = torch.exp(torch.randn(200, generator=torch.Generator().manual_seed(0)) * 0.6 + math.log(22))
    mask = packed_mask([max(1, round(x)) for x in lengths.tolist()], None, True)
    inputs = tensors(mask, heads=2, width=64, dtype=torch.bfloat16)
    got = with_gradients(attend(*inputs, mask), inputs)
    assert_close(got, reference(inputs, mask), 3e-2)


@on_gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("width", [32, 64])
def test_backward_by_sequence_on_gpu_is_deterministic_and_agrees_with_tiles(width: int, dropout: float) -> None:
    lengths = torch.randint(0, 60, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    mask = packed_mask([300, *lengths, 7], [64, *lengths[::-1], 700], False)
    inputs = tensors(mask, heads=4, width=width, dtype=torch.bfloat16)
    seed = torch.tensor([5], device=DEVICE) if dropout else None

    def gradients(ranges: KeyRanges) -> list[Tensor]:
        return with_gradients(varlen_attention._attend(*inputs, *ranges, None, None, seed, 0.125, dropout), inputs)

    ranges = KeyRanges.of(mask)
    first, second, by_tile = gradients(ranges), gradients(ranges), gradients(ranges._replace(programs=None))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert_close(first, [x.double() for x in by_tile], 2e-2)


@on_gpu
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_gradients_of_parameters_on_gpu_agree_with_the_reference(cross: bool) -> None:
    lengths = torch.randint(1, 60, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    mask = packed_mask([*lengths, 200], [*lengths[::-1], 100] if cross else None, causal=not cross)
    assert isinstance(mask.queries, Packed)
    assert isinstance(mask.keys, Packed)
    torch.manual_seed(0)
    attention = Attention(256, 4).to(DEVICE)
    x = torch.randn(1, mask.queries.size, 256, device=DEVICE)
    source = torch.randn(1, mask.keys.size, 256, device=DEVICE) if cross else None
    parameters = list(attention.parameters())
    with torch.autocast("cuda", torch.bfloat16):
        got = with_gradients(attention(x, source, mask=mask), parameters)
    assert ("key ranges",) in mask._built
    attention.kind = Full(implementation="reference")
    assert_close(got, [y.double() for y in with_gradients(attention(x, source, mask=mask), parameters)], 3e-2)
