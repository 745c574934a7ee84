"""Every number of the kernels of embeddings against the formula in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.attention.masks import Packed
from regard.attention.positions import sinusoid
from regard.models import transformer
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import dispatch
from regard.ops.dispatch import TRITON_INSTALLED
from regard.ops.dropout import kernel_drop_mask
from regard.ops.embedding import embed

pytestmark = pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
WORDS, PLACES, SCALE = 23, 50, 5.5


def drawn(*shape: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, of which some come often and some never, their places in no order, a table and positions."""
    source = torch.Generator().manual_seed(width)
    tokens = torch.randint(WORDS - 3, shape, generator=source) // torch.randint(1, 4, shape, generator=source)
    places = torch.randint(PLACES, shape, generator=source)
    table = torch.randn(WORDS, width, generator=source).to(DEVICE).requires_grad_()
    return tokens.to(DEVICE), places.to(DEVICE), table, torch.randn(PLACES, width, generator=source).to(DEVICE)


def by_formula(
    tokens: Tensor, places: Tensor | None, table: Tensor, positions: Tensor | None, left: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    wide = table.detach().double().requires_grad_()
    x = wide[tokens] * SCALE
    if positions is not None:
        x = x + positions.double()[places]
    y = x * left
    return y, gradient(y, wide)


def gradient(y: Tensor, table: Tensor) -> Tensor:
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
    return torch.autograd.grad(y, table, upstream)[0]


def assert_close(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float = 1e-6) -> None:
    for mine, right in zip(got, expected, strict=True):
        size = max(1.0, float(right.detach().abs().max())) if right.numel() else 1.0
        torch.testing.assert_close(mine.double(), right, atol=tolerance * size, rtol=0)


@pytest.mark.parametrize("shape", [(1, 1), (1, 70), (3, 13), (5,)])
@pytest.mark.parametrize("width", [1, 24, 32, 515, 1100])
def test_any_size(shape: tuple[int, ...], width: int) -> None:
    tokens, places, table, positions = drawn(*shape, width=width)
    y = embed(tokens, table, SCALE, places, positions)
    assert_close((y, gradient(y, table)), by_formula(tokens, places, table, positions))


def test_nothing_is_added_where_there_are_no_positions() -> None:
    tokens, places, table, _ = drawn(2, 9, width=24)
    y = embed(tokens, table, SCALE, places)
    assert_close((y, gradient(y, table)), by_formula(tokens, None, table, None))


def test_rows_of_a_batch_may_share_their_places() -> None:
    tokens, places, table, positions = drawn(3, 11, width=24)
    y = embed(tokens, table, SCALE, places[:1], positions)
    assert_close((y, gradient(y, table)), by_formula(tokens, places[:1].expand(3, 11), table, positions))


def test_tokens_that_do_not_lie_side_by_side() -> None:
    tokens, places, table, positions = drawn(8, 6, width=16)
    tokens, places = tokens.t(), places.t()
    y = embed(tokens, table, SCALE, places, positions)
    assert_close((y, gradient(y, table)), by_formula(tokens, places, table, positions))


def test_of_no_tokens_nothing_is_learned() -> None:
    tokens, places, table, positions = drawn(1, 0, width=24)
    y = embed(tokens, table, SCALE, places, positions, 0.3)
    assert y.shape == (1, 0, 24)
    assert not gradient(y, table).any()


def test_a_token_that_is_no_word_becomes_no_number() -> None:
    _, places, table, positions = drawn(4, width=16)
    y = embed(torch.tensor([0, WORDS, -1, WORDS - 1], device=DEVICE), table, SCALE, places, positions)
    assert y.isnan().all(1).tolist() == [False, True, True, False]
    assert y[0].isfinite().all()


def test_what_is_dropped_forward_is_dropped_backward() -> None:
    tokens, places, table, positions = drawn(2, 40, width=48)
    torch.manual_seed(7)
    y = embed(tokens, table, SCALE, places, positions, 0.3)
    torch.manual_seed(7)
    left = ~kernel_drop_mask(torch.randint(2**31 - 1, (1,), device=DEVICE), 1, 80, 48, 0.3).view(2, 40, 48)
    assert left.float().mean().item() == pytest.approx(0.7, abs=0.03)
    assert_close((y, gradient(y, table)), by_formula(tokens, places, table, positions, left.double() / 0.7))


def test_every_call_drops_other_numbers() -> None:
    tokens, places, table, positions = drawn(1, 40, width=48)
    first, second = (embed(tokens, table, SCALE, places, positions, 0.5) for _ in range(2))
    assert ((first == 0) != (second == 0)).float().mean().item() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize(
    ("stream", "tolerance"), [(torch.float16, 1e-3), pytest.param(torch.bfloat16, 8e-3, marks=on_gpu)]
)
def test_half_precision_is_rounded_once(stream: torch.dtype, tolerance: float) -> None:
    tokens, places, table, positions = drawn(1, 50, width=64)
    y = embed(tokens, table, SCALE, places, positions, dtype=stream)
    found = gradient(y, table)
    assert (y.dtype, found.dtype) == (stream, torch.float32)
    assert_close((y, found), by_formula(tokens, places, table, positions), tolerance)
    assert torch.equal(y, embed(tokens, table, SCALE, places, positions).to(stream))


# In a model


def model(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    sizes = {"width": 32, "heads": 2, "hidden": 48, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    return Transformer(TransformerConfig.base(WORDS, **sizes | changes)).to(DEVICE)


def embed_by_kernel(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> list[Tensor]:
    """The tokens of each call of it will be found here."""
    calls: list[Tensor] = []
    monkeypatch.setattr(dispatch, "embedding_kernel_applies", lambda *given: wanted and torch.is_grad_enabled())
    monkeypatch.setattr(transformer, "embed", lambda *given: (calls.append(given[0]), embed(*given))[1])
    return calls


def learned(model: Transformer) -> list[Tensor]:
    """The output and the gradients of one batch, two sentences in a row."""
    tokens = torch.randint(WORDS, (1, 9), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    layout = Packed.of([4, 5], DEVICE)
    y = model(tokens, tokens.flip(1), layout, layout)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [y, *torch.autograd.grad(y.square().mean(), wanted)]


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({}, 2),
        ({"tie": "none"}, 2),
        ({"positions": "sinusoidal-halves"}, 2),
        ({"positions": "rotary"}, 2),
        ({"positions": "learned"}, 0),
    ],
    ids=lambda value: "-".join(value.values()) or "base" if isinstance(value, dict) else str(value),
)
def test_a_model_learns_the_same_either_way(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], calls: int
) -> None:
    built = model(**changes)
    embed_by_kernel(monkeypatch, False)
    plain = learned(built)
    called = embed_by_kernel(monkeypatch, True)
    joined = learned(built)
    assert len(called) == calls
    for mine, right in zip(joined, plain, strict=True):
        torch.testing.assert_close(mine, right, atol=1e-5, rtol=1e-4)


def test_a_model_drops_of_its_embeddings_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    embed_by_kernel(monkeypatch, True)
    layer = model(embedding_dropout=0.5).source_embedding
    given = torch.arange(WORDS, device=DEVICE)[None], torch.arange(WORDS, device=DEVICE)[None], WORDS
    whole = layer.weight * layer.scale + sinusoid(given[1], 32)
    y = layer(*given)
    assert (y != 0).float().mean().item() == pytest.approx(0.5, abs=0.08)
    torch.testing.assert_close(y, 2 * whole * (y != 0))
    layer.eval()
    torch.testing.assert_close(layer(*given), whole)


def test_what_flows_from_an_embedding_is_as_precise_as_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    embed_by_kernel(monkeypatch, True)
    layer = model().source_embedding
    layer.stream = torch.float16
    given = torch.zeros(1, 1, dtype=torch.long, device=DEVICE), torch.zeros(1, 1, dtype=torch.long, device=DEVICE), 1
    assert layer(*given).dtype == torch.float32
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert layer(*given).dtype == torch.float16


def test_without_a_gpu_the_formula_is_taken() -> None:
    tokens, _, table, _ = drawn(1, 5, width=16)
    assert not dispatch.embedding_kernel_applies(tokens.cpu(), table.cpu())


@on_gpu
def test_a_gpu_takes_the_kernels_in_training_only() -> None:
    tokens, _, table, _ = drawn(1, 5, width=16)
    assert dispatch.embedding_kernel_applies(tokens, table)
    assert not dispatch.embedding_kernel_applies(tokens, table.double())
    assert not dispatch.embedding_kernel_applies(tokens, table.detach())
    with torch.no_grad():
        assert not dispatch.embedding_kernel_applies(tokens, table)


@on_gpu
def test_a_model_trains_the_same_with_kernels_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(dispatch, "KERNELS_ENABLED", enabled)
        built = model()
        optimiser = torch.optim.SGD(built.parameters(), 0.1)
        for _ in range(5):
            for parameter, grad in zip(built.parameters(), learned(built)[1:], strict=True):
                parameter.grad = grad
            optimiser.step()
        found.append(list(built.parameters()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@on_gpu
def test_a_recording_drops_other_numbers_at_every_replay_and_gradients_are_the_same_to_the_bit() -> None:
    tokens, places, table, positions = drawn(1, 3000, width=512)
    grads = [gradient(embed(tokens, table, SCALE, places, positions), table) for _ in range(5)]
    assert all(torch.equal(grad, grads[0]) for grad in grads)
    gradient(embed(tokens, table, SCALE, places, positions, 0.5), table)  # compiled before it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = embed(tokens, table, SCALE, places, positions, 0.5)
        (grad,) = torch.autograd.grad(y, table, torch.ones_like(y))
    seen = []
    for _ in range(2):
        graph.replay()
        kept = torch.zeros_like(table).index_add_(0, tokens[0], (y[0] != 0).float())
        torch.testing.assert_close(grad, kept * SCALE / 0.5, rtol=1e-4, atol=1e-3)
        seen.append(y != 0)
    assert (seen[0] != seen[1]).float().mean().item() == pytest.approx(0.5, abs=0.02)
