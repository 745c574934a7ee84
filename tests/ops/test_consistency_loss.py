"""Fused output layer, cross-entropies of two passes and their divergence, against autograd through the formula."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops import cross_entropy as chunks
from regard.ops import dispatch
from regard.ops.consistency_loss import consistency_, consistency_kernel_, linear_consistency_loss
from regard.ops.cross_entropy import IGNORE_INDEX, linear_cross_entropy

needs_triton = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
SHARES = pytest.mark.parametrize("share", [0.5, 0.0, 0.3])


def draw(rows: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    """Return inputs of two passes that differ somewhat, weight and bias, and labels of which some are ignored."""
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, width), (rows, width), (vocabulary, width), (vocabulary,)
    first, noise, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    labels[rows // 2 :: 5] = IGNORE_INDEX
    x = torch.cat((first, first + noise / 2))
    return [tensor.requires_grad_() for tensor in (x, weight, bias)], labels


def formula(
    logits: Tensor, labels: Tensor, weight: Tensor | float, share: float, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, cross-entropy and divergence by PyTorch's functions, given all logits, (2N, V)."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).unflatten(0, (2, -1))
    losses = [
        F.cross_entropy(z, labels, ignore_index=IGNORE_INDEX, label_smoothing=smoothing, reduction="sum")
        for z in logits
    ]
    p, q = (z[labels != IGNORE_INDEX].log_softmax(-1) for z in logits)
    divergences = [F.kl_div(b, a, log_target=True, reduction="sum") for a, b in ((p, q), (q, p))]
    cross_entropy, divergence = ((1 - share) * one + share * other for one, other in (losses, divergences))
    return cross_entropy + weight * divergence, cross_entropy, divergence


def with_gradients(found: tuple[Tensor, Tensor, Tensor], inputs: list[Tensor]) -> list[Tensor]:
    return [*found, *torch.autograd.grad(found[0] / 7, inputs)]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@SHARES
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [2**28, 128 * 50])
def test_loss_and_gradients_equal_the_formula(
    share: float, smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK", chunk)
    inputs, labels = draw(300, 8, 50)
    x, weight, bias = inputs
    expected = with_gradients(formula(F.linear(x, weight, bias), labels, 1.7, share, smoothing), inputs)
    assert_close(with_gradients(linear_consistency_loss(*inputs, labels, 1.7, share, smoothing), inputs), expected)


def test_weight_of_the_divergence_may_be_a_tensor() -> None:
    inputs, labels = draw(10, 4, 6)
    found = linear_consistency_loss(*inputs, labels, torch.tensor(1.7), 0.5)
    torch.testing.assert_close(found[0], linear_consistency_loss(*inputs, labels, 1.7, 0.5)[0], rtol=1e-6, atol=0)


def test_terms_have_no_gradient() -> None:
    inputs, labels = draw(10, 4, 6)
    loss, *terms = linear_consistency_loss(*inputs, labels, 1.7, 0.5)
    assert loss.requires_grad and not any(term.requires_grad for term in terms)


def test_equal_passes_have_the_loss_of_one_pass() -> None:
    (x, weight, bias), labels = draw(10, 4, 6)
    one = x[:10].detach()
    loss, cross_entropy, divergence = linear_consistency_loss(torch.cat((one, one)), weight, bias, labels, 3.0, 0.5)
    assert divergence.item() == 0
    torch.testing.assert_close(loss, linear_cross_entropy(one, weight, bias, labels))
    torch.testing.assert_close(cross_entropy, loss.detach())


def test_without_bias_and_without_rows() -> None:
    (x, weight, _), labels = draw(10, 4, 6)
    expected = with_gradients(formula(F.linear(x, weight), labels, 2.0, 0.5, 0.0), [x, weight])
    assert_close(with_gradients(linear_consistency_loss(x, weight, None, labels, 2.0, 0.5), [x, weight]), expected)
    empty = linear_consistency_loss(x[:0], weight, None, labels[:0], 2.0, 0.5)[0]
    assert empty.item() == 0
    assert not torch.autograd.grad(empty, weight)[0].any()


def test_without_grad_mode_the_loss_has_no_gradient() -> None:
    inputs, labels = draw(10, 4, 6)
    with torch.no_grad():
        found = linear_consistency_loss(*inputs, labels, 2.0, 0.5, 0.1)
    assert not found[0].requires_grad
    assert_close(list(found), [x.detach() for x in formula(F.linear(*inputs), labels, 2.0, 0.5, 0.1)])


def test_under_autocast_only_logits_are_in_half_precision() -> None:
    inputs, labels = draw(200, 16, 64, torch.float32)
    expected = with_gradients(formula(F.linear(*inputs), labels, 2.0, 0.5, 0.1), inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(linear_consistency_loss(*inputs, labels, 2.0, 0.5, 0.1), inputs)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    assert not torch.equal(found[0], expected[0])
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()


@needs_triton
@SHARES
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "vocabulary"),
    [
        *[(torch.float32, vocabulary) for vocabulary in (5, 16, 100, 10_001)],
        *[(torch.float16, vocabulary) for vocabulary in (2, 101)],
        pytest.param(torch.bfloat16, 100, marks=needs_gpu),
    ],
    ids=str,
)
def test_kernel_equals_the_plain_formula(dtype: torch.dtype, vocabulary: int, smoothing: float, share: float) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (4 * torch.randn(2, 13, vocabulary, generator=generator)).to(DEVICE, dtype)
    logits[1, 5] = logits[0, 5]
    labels = torch.randint(vocabulary, (13,), generator=generator).to(DEVICE)
    labels[0], labels[3], labels[12] = vocabulary - 1, IGNORE_INDEX, 0
    logits[:, 3] = torch.nan  # ignored
    weight = torch.tensor(0.7, device=DEVICE)
    untouched, found, plain = logits.clone(), logits.clone(), logits.float().cpu().clone()
    terms = consistency_(plain, labels.cpu(), weight.cpu(), share, smoothing)
    found_terms = consistency_kernel_(untouched, labels, weight, share, smoothing, backward=False)
    torch.testing.assert_close(found_terms.cpu(), terms, atol=1e-5, rtol=1e-5)
    assert found_terms[1, 5] == 0
    assert torch.equal(untouched.nan_to_num(), logits.nan_to_num())
    assert torch.equal(consistency_kernel_(found, labels, weight, share, smoothing), found_terms)
    eps = max(1e-4, torch.finfo(dtype).eps)
    torch.testing.assert_close(found.float().cpu(), plain, atol=1e-5, rtol=eps)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_loss_with_kernels_equals_the_formula(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    inputs, labels = draw(40, 8, 50, torch.float32)
    inputs, labels = [x.detach().to(DEVICE, dtype).requires_grad_() for x in inputs], labels.to(DEVICE)
    wide = [x.detach().double().requires_grad_() for x in inputs]
    expected = with_gradients(formula(F.linear(*wide), labels, 1.7, 0.5, 0.1), wide)
    found = with_gradients(linear_consistency_loss(*inputs, labels, 1.7, 0.5, 0.1), inputs)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < tolerance * other.norm()


def test_compiled_loss_is_one_graph() -> None:
    inputs, labels = draw(20, 8, 50)

    def loss(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return linear_consistency_loss(x * 2, weight, bias, labels, 1.7, 0.5, 0.1)[0] * 3

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    one, other = ([y, *torch.autograd.grad(y, inputs)] for y in (compiled(*inputs), loss(*inputs)))
    assert_close(one, other)


def test_custom_op_passes_opcheck() -> None:
    inputs, labels = draw(6, 4, 10)
    operation = torch.ops.regard.linear_consistency_loss.default
    weight = torch.tensor(1.7, dtype=torch.float64)
    results = torch.library.opcheck(operation, (*inputs, labels, weight, 0.5, 0.1, torch.float64, True))
    assert len(results) == 4 and set(results.values()) == {"SUCCESS"}
