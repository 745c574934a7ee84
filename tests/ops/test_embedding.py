"""Embeddings by kernel against the formula in float64."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from regard.layers import sinusoid
from regard.masks import Packed
from regard.models.transformer import Embedding, Transformer, TransformerConfig
from regard.ops import dispatch
from regard.ops import embedding as module
from regard.ops.embedding import CUT_OFF, embed, sum_by_token
from tests.kernel_references import kernel_drop_mask

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
VOCABULARY, POSITIONS, SCALE = 23, 50, 5.5


def draw(*shape: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return tokens, some frequent and some absent, positions in random order, embeddings and position encodings."""
    generator = torch.Generator().manual_seed(width)
    tokens = torch.randint(VOCABULARY - 3, shape, generator=generator)
    tokens //= torch.randint(1, 4, shape, generator=generator)
    positions = torch.randint(POSITIONS, shape, generator=generator)
    table = torch.randn(VOCABULARY, width, generator=generator).to(DEVICE).requires_grad_()
    encodings = torch.randn(POSITIONS, width, generator=generator).to(DEVICE)
    return tokens.to(DEVICE), positions.to(DEVICE), table, encodings


def formula(
    tokens: Tensor, positions: Tensor | None, table: Tensor, encodings: Tensor | None, factor: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the embeddings and the gradient of the table, in float64."""
    wide = table.detach().double().requires_grad_()
    x = wide[tokens] * SCALE
    if encodings is not None:
        x = x + encodings.double()[positions]
    y = x * factor
    return y, gradient(y, wide)


def gradient(y: Tensor, table: Tensor) -> Tensor:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return torch.autograd.grad(y, table, upstream)[0]


def assert_close(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float = 1e-6) -> None:
    for one, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
        torch.testing.assert_close(one.double(), other, atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (3, 13), (5,)])
@pytest.mark.parametrize("width", [1, 24, 32, 515, 1100])
def test_embed_equals_formula(shape: tuple[int, ...], width: int) -> None:
    tokens, positions, table, encodings = draw(*shape, width=width)
    y = embed(tokens, table, SCALE, positions, encodings)
    assert_close((y, gradient(y, table)), formula(tokens, positions, table, encodings))


def test_embeddings_of_cut_off_tokens_are_zero() -> None:
    tokens, positions, table, encodings = draw(3, 13, width=24)
    kept = tokens % 3 != 0
    expected, expected_gradient = formula(tokens, positions, table, None, kept[..., None].double())
    cut_off = torch.where(kept, tokens, CUT_OFF)
    config = TransformerConfig.base(len(table), width=24, heads=2, positions="rotary", dropout=0.0)
    layer = Embedding(len(table), config)
    layer.weight, layer.scale = torch.nn.Parameter(table.detach()), SCALE
    plain = layer.train()(cut_off, positions, 13)
    assert_close((plain, gradient(plain, layer.weight)), (expected, expected_gradient))
    y = embed(cut_off, table, SCALE, positions, encodings)
    assert_close((y, gradient(y, table)), (expected + encodings.double()[positions], expected_gradient))


def test_embed_without_positions() -> None:
    tokens, positions, table, _ = draw(2, 9, width=24)
    y = embed(tokens, table, SCALE, positions)
    assert_close((y, gradient(y, table)), formula(tokens, None, table, None))


def test_rows_may_share_positions() -> None:
    tokens, positions, table, encodings = draw(3, 11, width=24)
    y = embed(tokens, table, SCALE, positions[:1], encodings)
    assert_close((y, gradient(y, table)), formula(tokens, positions[:1].expand(3, 11), table, encodings))


def test_tokens_may_be_non_contiguous() -> None:
    tokens, positions, table, encodings = draw(8, 6, width=16)
    tokens, positions = tokens.t(), positions.t()
    y = embed(tokens, table, SCALE, positions, encodings)
    assert_close((y, gradient(y, table)), formula(tokens, positions, table, encodings))


def test_embed_without_tokens() -> None:
    tokens, positions, table, encodings = draw(1, 0, width=24)
    y = embed(tokens, table, SCALE, positions, encodings, 0.3)
    assert y.shape == (1, 0, 24)
    assert not gradient(y, table).any()


def test_tokens_outside_the_vocabulary_give_nan() -> None:
    _, positions, table, encodings = draw(4, width=16)
    y = embed(torch.tensor([0, VOCABULARY, -1, VOCABULARY - 1], device=DEVICE), table, SCALE, positions, encodings)
    assert y.isnan().all(1).tolist() == [False, True, True, False]
    assert y[0].isfinite().all()


def test_dropout_uses_the_same_mask_in_both_passes() -> None:
    tokens, positions, table, encodings = draw(2, 40, width=48)
    torch.manual_seed(7)
    y = embed(tokens, table, SCALE, positions, encodings, 0.3)
    torch.manual_seed(7)
    keep = ~kernel_drop_mask(torch.randint(2**31 - 1, (1,), device=DEVICE), 1, 80, 48, 0.3).view(2, 40, 48)
    assert keep.float().mean().item() == pytest.approx(0.7, abs=0.03)
    assert_close((y, gradient(y, table)), formula(tokens, positions, table, encodings, keep.double() / 0.7))


def test_every_call_drops_other_elements() -> None:
    tokens, positions, table, encodings = draw(1, 40, width=48)
    first, second = (embed(tokens, table, SCALE, positions, encodings, 0.5) for _ in range(2))
    assert ((first == 0) != (second == 0)).float().mean().item() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 1e-3), pytest.param(torch.bfloat16, 8e-3, marks=needs_gpu)]
)
def test_half_precision_is_rounded_once(dtype: torch.dtype, tolerance: float) -> None:
    tokens, positions, table, encodings = draw(1, 50, width=64)
    y = embed(tokens, table, SCALE, positions, encodings, dtype=dtype)
    found = gradient(y, table)
    assert (y.dtype, found.dtype) == (dtype, torch.float32)
    assert_close((y, found), formula(tokens, positions, table, encodings), tolerance)
    assert torch.equal(y, embed(tokens, table, SCALE, positions, encodings).to(dtype))


# Gradient of the table


def sum_in_chunks(chunk: int, grad: Tensor, tokens: Tensor, vocabulary: int = 6) -> Tensor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        return sum_by_token(grad, tokens, vocabulary)


@settings(max_examples=20)
@given(
    counts=st.lists(st.integers(0, 14), min_size=6, max_size=6), chunk=st.integers(1, 5), seed=st.integers(0, 2**32 - 1)
)
def test_every_row_is_summed_once(counts: list[int], chunk: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.repeat_interleave(torch.arange(6), torch.tensor(counts))
    tokens = tokens[torch.randperm(len(tokens), generator=generator)].to(DEVICE)
    grad = torch.randint(-9, 10, (len(tokens), 3), generator=generator).to(DEVICE, torch.float32)  # sums are exact
    expected = torch.zeros(6, 3, device=DEVICE).index_add_(0, tokens, grad)
    assert torch.equal(sum_in_chunks(chunk, grad, tokens), expected)


def test_rows_of_tokens_outside_the_vocabulary_are_ignored() -> None:
    tokens = torch.tensor([-1, 2, 6, 2, 1] * 7 + [11, 2**16 + 3, -(2**16) + 3] * 9, device=DEVICE)
    found = sum_in_chunks(4, torch.ones(len(tokens), 2, device=DEVICE), tokens)
    assert found[:, 0].tolist() == [0, 7, 14, 0, 0, 0]


def test_large_vocabularies_are_sorted_by_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.tensor([5, 1, 5, 0, -1, 9], device=DEVICE)
    found = []
    for largest in (6, 5):
        monkeypatch.setattr(module, "MAX_INT16_VOCABULARY", largest)
        assert module._sort_keys(tokens, 6).tolist() == [5, 1, 5, 0, 6, 6]
        found.append(sum_in_chunks(2, torch.arange(12.0, device=DEVICE).view(6, 2), tokens))
    assert torch.equal(*found)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_a_large_batch_are_bit_identical(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = (32_000 * torch.rand(25_344, generator=generator) ** 4).long().to(DEVICE)
    grad = torch.randn(25_344, 512, generator=generator).to(DEVICE, dtype)
    first = sum_by_token(grad, tokens, 32_000)
    assert all(torch.equal(sum_by_token(grad, tokens, 32_000), first) for _ in range(5))
    exact = torch.zeros(32_000, 512, dtype=torch.float64, device=DEVICE).index_add_(0, tokens, grad.double())
    torch.testing.assert_close(first.double(), exact, atol=1e-3, rtol=1e-5)


# In a model


def build(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"width": 32, "heads": 2, "hidden": 48, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return Transformer(TransformerConfig.base(VOCABULARY, **sizes | changes)).to(DEVICE)


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal-halves", "rotary", "learned"])
def test_embedding_module_equals_its_plain_forward(positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = build(positions=positions).source_embedding
    tokens = torch.randint(VOCABULARY, (1, 9), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    inputs = tokens, Packed.of([4, 5], DEVICE).positions(), 5
    monkeypatch.setattr(dispatch, "FUSED_ENABLED", False)
    plain = layer(*inputs)
    monkeypatch.setattr(dispatch, "FUSED_ENABLED", True)
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    assert dispatch.fused_embedding_applies(layer, tokens) == (positions != "learned")
    found = layer(*inputs)
    assert_close((found, gradient(found, layer.weight)), (plain.double(), gradient(plain, layer.weight).double()), 1e-5)


def test_embedding_module_drops_in_training_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    layer = build(embedding_dropout=0.5).source_embedding
    indices = torch.arange(VOCABULARY, device=DEVICE)[None]
    complete = layer.weight * layer.scale + sinusoid(indices, 32)
    y = layer(indices, indices, VOCABULARY)
    assert (y != 0).float().mean().item() == pytest.approx(0.5, abs=0.08)
    torch.testing.assert_close(y, 2 * complete * (y != 0))
    torch.testing.assert_close(layer.eval()(indices, indices, VOCABULARY), complete)


@pytest.mark.parametrize("by_kernel", [True, False])
def test_residual_dtype_applies_under_autocast_only(by_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", by_kernel)
    model = build(encoder_layers=0)
    model.residual_dtype = torch.float16
    tokens = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
    assert "residual_dtype=torch.float16" in repr(model)
    assert model.encode(tokens).dtype == torch.float32
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert model.encode(tokens).dtype == torch.float16


@needs_gpu
def test_embedding_kernel_applies_to_trained_float32_tables() -> None:
    tokens, _, table, _ = draw(1, 5, width=16)
    assert dispatch.embedding_kernel_applies(tokens, table)
    assert not dispatch.embedding_kernel_applies(tokens, table.double())
    assert not dispatch.embedding_kernel_applies(tokens, table.detach())
    with torch.no_grad():
        assert not dispatch.embedding_kernel_applies(tokens, table)


@needs_gpu
def test_captured_dropout_differs_in_every_replay() -> None:
    tokens, positions, table, encodings = draw(1, 3000, width=512)
    grads = [gradient(embed(tokens, table, SCALE, positions, encodings), table) for _ in range(5)]
    assert all(torch.equal(grad, grads[0]) for grad in grads)
    gradient(embed(tokens, table, SCALE, positions, encodings, 0.5), table)  # compiles the kernels before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = embed(tokens, table, SCALE, positions, encodings, 0.5)
        (grad,) = torch.autograd.grad(y, table, torch.ones_like(y))
    masks = []
    for _ in range(2):
        graph.replay()
        kept = torch.zeros_like(table).index_add_(0, tokens[0], (y[0] != 0).float())
        torch.testing.assert_close(grad, kept * SCALE / 0.5, rtol=1e-4, atol=1e-3)
        masks.append(y != 0)
    assert (masks[0] != masks[1]).float().mean().item() == pytest.approx(0.5, abs=0.02)
