import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import core
from regard.attention.core import IMPLEMENTATION_NAMES, attend, attention_scores, attention_weights
from regard.attention.kinds import Full
from regard.masks import Mask, Packed, Padded
from regard.ops.dispatch import AttentionImplementation, cudnn_gradients_are_unreliable

H, D = 2, 4
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


# The worked example of the study notes


def worked_example() -> Tensor:
    return torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1]])[None, None]


def test_worked_example_has_scores_two_and_zero() -> None:
    x = worked_example()
    scores = torch.tensor([[2.0, 0], [0, 2]])
    torch.testing.assert_close(attention_weights(x, x, scale=1.0)[0, 0], scores.softmax(-1))
    torch.testing.assert_close(attention_weights(x, x)[0, 0], (scores / 2).softmax(-1))


@pytest.mark.parametrize(("scale", "high", "low"), [(1.0, 0.88, 0.12), (None, 0.73, 0.27)])
def test_worked_example_has_the_published_weights(scale: float | None, high: float, low: float) -> None:
    x = worked_example()
    weights = attention_weights(x, x, scale=scale)[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[high, low], [low, high]]), atol=0.005, rtol=0)


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
def test_worked_example_averages_the_values_by_its_weights(implementation: AttentionImplementation) -> None:
    x = worked_example()
    p = 1 / (1 + math.exp(-1))  # the scaled scores are 1 and 0
    expected = torch.tensor([[p, 1 - p, p, 1 - p], [1 - p, p, 1 - p, p]])[None, None]
    torch.testing.assert_close(attend(x, x, x, implementation=implementation), expected)


# Scale


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize("width", [4, 16, 64])
def test_default_scale_depends_on_the_width(width: int, implementation: AttentionImplementation) -> None:
    q, k, v = torch.randn(3, 1, 1, 3, width, generator=seeded()).unbind()
    torch.testing.assert_close(
        attend(q, k, v, implementation=implementation), attend(q, k, v, scale=width**-0.5, implementation="reference")
    )
    torch.testing.assert_close(attention_weights(q, k), attention_weights(q, k, scale=width**-0.5))


def test_scores_of_heads_of_width_64_are_divided_by_8() -> None:
    q, k = torch.randn(2, 1, 1, 3, 64, generator=seeded()).unbind()
    torch.testing.assert_close(attention_weights(q, k), (q @ k.transpose(-2, -1) / 8).softmax(-1))


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
def test_given_scale_replaces_the_default(implementation: AttentionImplementation) -> None:
    q, k, v = torch.randn(3, 1, 1, 3, D, generator=seeded()).unbind()
    expected = (0.3 * q @ k.transpose(-2, -1)).softmax(-1) @ v
    torch.testing.assert_close(attend(q, k, v, scale=0.3, implementation=implementation), expected)
    torch.testing.assert_close(Full(scale=0.3, implementation=implementation)(q, k, v, Mask()), expected)


# Every implementation agrees with plain loops in float64


@dataclass(frozen=True)
class Case:
    """A mask, and a function that returns independently whether it allows (b, h, t, s)."""

    batch: int
    queries: int
    keys: int
    mask: Mask | None
    allowed: Callable[[int, int, int, int], bool]

    @property
    def implementations(self) -> tuple[AttentionImplementation, ...]:
        dense = self.mask is not None and self.mask.allowed is not None
        if self.mask is None or not self.mask.packed or dense:
            return ("reference", "sdpa", "matmul", "auto")
        return ("reference", "sdpa", "padded", "auto")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def packed(
    queries: list[int],
    keys: list[int] | None = None,
    in_window: Callable[[int], bool] = lambda distance: True,
    **options: object,
) -> Case:
    """`in_window` takes the position of the key minus that of the query, both aligned to the end of their sequence."""
    same = keys is None
    keys = queries if keys is None else keys
    query_positions = [(i, t - length) for i, length in enumerate(queries) for t in range(length)]
    key_positions = [(i, s - length) for i, length in enumerate(keys) for s in range(length)]
    layout = Packed.of(queries)
    mask = Mask(queries=layout, keys=layout if same else Packed.of(keys), **options)  # type: ignore[arg-type]

    def allowed(b: int, h: int, t: int, s: int) -> bool:
        (query_sequence, query), (key_sequence, key) = query_positions[t], key_positions[s]
        return query_sequence == key_sequence and in_window(key - query)

    return Case(1, len(query_positions), len(key_positions), mask, allowed)


def padded(lengths: list[int], T: int, S: int, causal: bool = False) -> Case:
    mask = Mask(keys=Padded.of(lengths, S), causal=causal)
    return Case(len(lengths), T, S, mask, lambda b, h, t, s: s < lengths[b] and (not causal or s <= t + S - T))


def windowed(T: int, S: int, in_window: Callable[[int], bool], **mask: object) -> Case:
    return Case(2, T, S, Mask(**mask), lambda b, h, t, s: in_window(s - (t + S - T)))  # type: ignore[arg-type]


def dense(*shape: int) -> Case:
    allowed = torch.rand(*shape, generator=seeded()) < 0.6
    allowed[..., 1, :] = False  # the second query is fully masked
    full = allowed.expand(2, H, 5, 6)
    return Case(2, 5, 6, Mask(allowed=allowed), lambda b, h, t, s: bool(full[b, h, t, s]))


def dense_and_packed() -> Case:
    case = packed([3, 1, 4])
    assert case.mask is not None
    even = torch.ones(8, 8, dtype=torch.bool)
    even[:, 1::2] = False
    combined = case.mask & Mask(allowed=even)
    return Case(1, 8, 8, combined, lambda b, h, t, s: case.allowed(b, h, t, s) and s % 2 == 0)


CASES = {
    "no mask": Case(2, 3, 5, None, lambda b, h, t, s: True),
    "allow all": Case(2, 3, 5, Mask(), lambda b, h, t, s: True),
    "causal": windowed(5, 5, lambda d: d <= 0, causal=True),
    "causal with a cache": windowed(3, 7, lambda d: d <= 0, causal=True),
    "causal, one query": windowed(1, 7, lambda d: d <= 0, causal=True),
    "causal, more queries than keys": windowed(6, 4, lambda d: d <= 0, causal=True),
    "window": windowed(6, 6, lambda d: -2 <= d <= 1, window=(2, 1)),
    "window with a cache": windowed(2, 6, lambda d: -2 <= d <= 1, window=(2, 1)),
    "window without limit before": windowed(6, 6, lambda d: d <= 1, window=(None, 1)),
    "window without limit after": windowed(6, 6, lambda d: d >= -1, window=(1, None)),
    "causal window": windowed(6, 6, lambda d: -2 <= d <= 0, window=(2, 3), causal=True),
    "padding": padded([5, 2, 3], 4, 5),
    "padding, one row empty": padded([5, 0, 3], 4, 5),
    "causal padding": padded([5, 2, 0], 5, 5, causal=True),
    "causal padding with a cache": padded([5, 2, 4], 2, 5, causal=True),
    "dense, shared": dense(5, 6),
    "dense per head": dense(H, 5, 6),
    "dense per row": dense(2, 1, 5, 6),
    "dense per row and head": dense(2, H, 5, 6),
    "packed": packed([3, 1, 4]),
    "packed causal": packed([3, 1, 4], in_window=lambda d: d <= 0, causal=True),
    "packed window": packed([3, 1, 5], in_window=lambda d: -1 <= d <= 2, window=(1, 2)),
    "packed cross": packed([2, 3, 1], [4, 1, 3]),
    "packed cross, causal": packed([2, 3, 1], [4, 1, 3], in_window=lambda d: d <= 0, causal=True),
    "packed cross, window": packed([2, 3, 4], [5, 1, 4], in_window=lambda d: -1 <= d <= 0, window=(1, 0)),
    "packed cross, no keys for some": packed([3, 2, 2, 1], [0, 4, 0, 2]),
    "packed cross, no keys for the last": packed([1, 2], [3, 0]),
    "packed cross, no keys at all": packed([2, 1], [0, 0]),
    "packed cross, no queries for some": packed([0, 2, 0, 1], [2, 1, 0, 3]),
    "packed and dense": dense_and_packed(),
}
MATRIX = [
    pytest.param(case, implementation, biased, id=f"{name}-{implementation}{'-bias' * biased}")
    for name, case in CASES.items()
    for implementation in case.implementations
    for biased in (False, True)
    if not (implementation == "padded" and biased)
]
FULLY_MASKED = {
    name: case
    for name, case in CASES.items()
    if any(
        not any(case.allowed(b, h, t, s) for s in range(case.keys))
        for b in range(case.batch)
        for h in range(H)
        for t in range(case.queries)
    )
}


def tensors(case: Case, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and a bias."""
    shapes = [(case.queries, D), (case.keys, D), (case.keys, D), (case.queries, case.keys)]
    source = seeded(1)
    q, k, v, bias = (torch.randn(case.batch, H, *shape, generator=source, dtype=torch.float64) for shape in shapes)
    return q.to(dtype), k.to(dtype), v.to(dtype), bias.to(dtype)


def attend_by_loops(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, case: Case) -> Tensor:
    """Attend one query at a time to exactly the keys that it may attend to."""
    q, k, v = q.double(), k.double(), v.double()
    rows = []
    for b in range(case.batch):
        for h in range(H):
            for t in range(case.queries):
                keys = [s for s in range(case.keys) if case.allowed(b, h, t, s)]
                scores = k[b, h, keys] @ q[b, h, t] / math.sqrt(D)
                if bias is not None:
                    scores = scores + bias.double()[b, h, t, keys]
                rows.append(scores.softmax(0) @ v[b, h, keys] if keys else q[b, h, t] * 0)
    return torch.stack(rows).view(case.batch, H, case.queries, D)


def test_cases_include_fully_masked_rows() -> None:
    assert {"causal, more queries than keys", "padding, one row empty", "dense, shared"} <= FULLY_MASKED.keys()
    assert {"packed cross, no keys for some", "packed cross, causal", "packed and dense"} <= FULLY_MASKED.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["32", "64", "bf16"])
@pytest.mark.parametrize(("case", "implementation", "biased"), MATRIX)
def test_every_path_agrees_with_loops(
    case: Case, implementation: AttentionImplementation, biased: bool, dtype: torch.dtype
) -> None:
    q, k, v, bias = tensors(case, dtype)
    added = bias if biased else None
    context = attend(q, k, v, case.mask, bias=added, implementation=implementation)
    assert context.dtype == dtype
    expected = attend_by_loops(q, k, v, added, case)
    torch.testing.assert_close(context.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(("case", "implementation", "biased"), MATRIX)
def test_gradients_of_every_path_agree_with_loops(
    case: Case, implementation: AttentionImplementation, biased: bool
) -> None:
    inputs = [x.requires_grad_() for x in tensors(case)[: 4 if biased else 3]]
    q, k, v, bias = inputs if biased else (*inputs, None)
    upstream = torch.randn(q.shape, generator=seeded(2), dtype=torch.float64)
    got = torch.autograd.grad(
        attend(q, k, v, case.mask, bias=bias, implementation=implementation), inputs, upstream, allow_unused=True
    )
    expected = torch.autograd.grad(attend_by_loops(q, k, v, bias, case), inputs, upstream, allow_unused=True)
    for mine, theirs, x in zip(got, expected, inputs, strict=True):
        mine, theirs = (torch.zeros_like(x) if y is None else y for y in (mine, theirs))
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("case", FULLY_MASKED.values(), ids=FULLY_MASKED.keys())
def test_gpu_treatment_of_fully_masked_rows_is_correct_on_cpu(case: Case, biased: bool) -> None:
    inputs = [x.requires_grad_() for x in tensors(case)[: 4 if biased else 3]]
    q, k, v, bias = inputs if biased else (*inputs, None)
    assert case.mask is not None
    for _ in range(2):  # the second call uses cached masks
        context = core._sdpa_masked(q, k, v, case.mask, 1 / math.sqrt(D), 0.0, bias)
        expected = attend_by_loops(q, k, v, bias, case)
        torch.testing.assert_close(context, expected, atol=1e-12, rtol=1e-12)
    got, wanted = (torch.autograd.grad(x.sum(), inputs, allow_unused=True) for x in (context, expected))
    for mine, theirs, x in zip(got, wanted, inputs, strict=True):
        mine, theirs = (torch.zeros_like(x) if y is None else y for y in (mine, theirs))
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "bf16"])
@pytest.mark.parametrize(
    ("case", "implementation"),
    [
        pytest.param(case, implementation, id=f"{name}-{implementation}")
        for name, case in FULLY_MASKED.items()
        for implementation in case.implementations
    ],
)
def test_fully_masked_rows_are_exactly_zero(
    case: Case, implementation: AttentionImplementation, dtype: torch.dtype
) -> None:
    q, k, v, _ = (x.requires_grad_() for x in tensors(case, dtype))
    context = attend(q, k, v, case.mask, implementation=implementation)
    context.sum().backward()
    fully_masked = torch.tensor(
        [
            [
                [not any(case.allowed(b, h, t, s) for s in range(case.keys)) for t in range(case.queries)]
                for h in range(H)
            ]
            for b in range(case.batch)
        ]
    )
    assert fully_masked.any()
    assert (context[fully_masked] == 0).all()
    assert (q.grad[fully_masked] == 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize("biased", [False, True])
def test_fully_masked_batch_has_zero_gradients(implementation: AttentionImplementation, biased: bool) -> None:
    case = padded([0, 0], 3, 4)
    q, k, v, bias = (x.requires_grad_() for x in tensors(case, torch.float32))
    context = attend(q, k, v, case.mask, implementation=implementation, bias=bias if biased else None)
    context.sum().backward()
    assert (context == 0).all()
    for x in (q, k, v, bias) if biased else (q, k, v):
        assert x.grad is not None
        assert (x.grad == 0).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_excluded_weights_are_zero_and_the_others_sum_to_one(case: Case) -> None:
    q, k, _, _ = tensors(case, torch.float32)
    weights = attention_weights(q, k, case.mask)
    assert weights.shape == (case.batch, H, case.queries, case.keys)
    for b in range(case.batch):
        for h in range(H):
            for t in range(case.queries):
                allowed = torch.tensor([case.allowed(b, h, t, s) for s in range(case.keys)], dtype=torch.bool)
                assert (weights[b, h, t][~allowed] == 0).all()
                assert (weights[b, h, t][allowed] > 0).all()
                assert weights[b, h, t].sum().item() == pytest.approx(1.0 if allowed.any() else 0.0)


def test_weights_have_full_precision_under_autocast() -> None:
    q, k, mask = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 4, 8), Mask(keys=Padded.of([3, 4]))
    with torch.autocast("cpu", torch.bfloat16):
        weights = attention_weights(q, k, mask)
    assert torch.equal(weights, attention_weights(q, k, mask))


def test_causal_weights_above_the_diagonal_are_exactly_zero() -> None:
    q, k = torch.randn(2, 1, H, 6, D, generator=seeded()).unbind()
    weights = attention_weights(q, k, Mask(causal=True))
    assert (weights.triu(1) == 0).all()
    assert (weights.tril() > 0).sum() == H * 21


def test_excluded_keys_with_large_scores_have_no_weight() -> None:
    q = torch.full((1, 1, 2, D), 1e4)
    k = torch.stack([torch.full((D,), -1e4), torch.full((D,), 1e4)])[
        None, None
    ]  # the excluded key has the larger score
    v = torch.tensor([[1.0] * D, [2.0] * D])[None, None]
    for implementation in ("reference", "sdpa"):
        assert attend(q, k, v, Mask(causal=True), implementation=implementation)[0, 0, 0].tolist() == [1.0] * D  # type: ignore[arg-type]


@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
@pytest.mark.parametrize("shape", [(H, 4, 5), (1, H, 1, 5), (3, 1, 4, 5), (4, 5)])
def test_bias_is_broadcast_to_the_scores(shape: tuple[int, ...], implementation: AttentionImplementation) -> None:
    case = padded([5, 2, 0], 4, 5)
    q, k, v, _ = tensors(case)
    bias = torch.randn(shape, generator=seeded(3), dtype=torch.float64)
    expected = attend_by_loops(q, k, v, bias.expand(3, H, 4, 5), case)
    torch.testing.assert_close(attend(q, k, v, case.mask, bias=bias, implementation=implementation), expected)
    torch.testing.assert_close(
        attend(q, k, v, bias=bias, implementation=implementation),
        attend(q, k, v, bias=bias.expand(3, H, 4, 5), implementation="reference"),
    )


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("implementation", ["reference", "sdpa"])
def test_heads_are_independent(heads: int, implementation: AttentionImplementation) -> None:
    q, k, v = torch.randn(3, 2, heads, 5, D, generator=seeded(), dtype=torch.float64).unbind()
    joint = attend(q, k, v, Mask(causal=True), implementation=implementation)
    for h in range(heads):
        alone = attend(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1], Mask(causal=True), implementation="reference")
        torch.testing.assert_close(joint[:, h : h + 1], alone)


def test_reference_passes_gradcheck() -> None:
    allowed = torch.tensor([[True, True, False, True], [False] * 4, [True, False, False, False]])
    q, k, v = (torch.randn(1, 2, n, 3, generator=seeded(n), dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    bias = torch.randn(1, 2, 3, 4, generator=seeded(9), dtype=torch.float64, requires_grad=True)
    for mask in (Mask(), Mask(causal=True), Mask(allowed=allowed)):
        assert torch.autograd.gradcheck(
            lambda q, k, v, bias, mask=mask: attend(q, k, v, mask, bias=bias, implementation="reference"),
            (q, k, v, bias),
        )


lengths = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(max_examples=60, derandomize=True)
@given(st.data(), lengths, st.booleans(), st.sampled_from([None, (1, 0), (None, 1), (0, 2)]))
def test_padded_path_agrees_with_the_reference_for_any_lengths(
    data: st.DataObject, queries: list[int], causal: bool, window: tuple[int | None, int | None] | None
) -> None:
    keys = data.draw(st.lists(st.integers(0, 4), min_size=len(queries), max_size=len(queries)))
    mask = Mask(queries=Packed.of(queries), keys=Packed.of(keys), causal=causal, window=window)
    q, k, v = (torch.randn(1, H, sum(n), D, generator=seeded(i)) for i, n in enumerate((queries, keys, keys)))
    torch.testing.assert_close(
        attend(q, k, v, mask, implementation="padded"), attend(q, k, v, mask, implementation="reference")
    )


def on_device(mask: Mask | None, device: torch.device) -> Mask | None:
    if mask is None:
        return None
    queries, keys = (None if layout is None else layout.to(device) for layout in (mask.queries, mask.keys))
    allowed = None if mask.allowed is None else mask.allowed.to(device)
    return Mask(queries, keys, mask.causal, mask.window, allowed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_every_path_on_gpu_agrees_with_the_reference_on_cpu(name: str, dtype: torch.dtype) -> None:
    case, device = CASES[name], torch.device("cuda")
    inputs = [
        torch.cat([x, x], -1).to(dtype).requires_grad_() for x in tensors(case)[:3]
    ]  # flash_varlen needs a width divisible by 8
    upstream = torch.randn(inputs[0].shape, generator=seeded(2)).to(dtype)
    expected = attend(*inputs, case.mask, implementation="reference")
    gradients = torch.autograd.grad(expected, inputs, upstream)
    fits = "padded" in case.implementations and dtype == torch.bfloat16 and case.keys > 0
    varlen: tuple[AttentionImplementation, ...] = ("flash_varlen",) if fits else ()
    tolerance = {"atol": 5e-2, "rtol": 5e-2} if dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    for implementation in case.implementations + varlen:
        leaves = [x.detach().to(device).requires_grad_() for x in inputs]
        context = attend(*leaves, on_device(case.mask, device), implementation=implementation)
        torch.testing.assert_close(context.cpu(), expected, **tolerance, msg=lambda m, p=implementation: f"{p}: {m}")
        assert (context.cpu()[expected == 0] == 0).all(), implementation
        for mine, theirs in zip(torch.autograd.grad(context, leaves, upstream.to(device)), gradients, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, **tolerance, msg=lambda m, p=implementation: f"{p}: {m}")


# Errors


LAYOUT = Packed.of([2, 1])
PACKED_MASK = Mask(queries=LAYOUT, keys=LAYOUT)
MASKS = {"padded": Mask(), "packed": PACKED_MASK}


def implementations_of(mask: Mask) -> tuple[AttentionImplementation, ...]:
    """Return the implementations that run on a CPU."""
    return ("auto", "reference", "padded") if mask.packed else ("auto", "reference", "sdpa", "matmul")


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_inputs_without_four_dimensions_are_rejected(name: str, shape: tuple[int, ...]) -> None:
    q = torch.randn(shape)
    for implementation in IMPLEMENTATION_NAMES:
        with pytest.raises(ValueError, match=r"must have four dimensions \(batch, heads, tokens, width\), found q \("):
            attend(q, q, q, MASKS[name], implementation=implementation)


@pytest.mark.parametrize("name", MASKS)
def test_shapes_that_do_not_fit_together_are_rejected(name: str) -> None:
    q, mask = torch.randn(1, 2, 3, 4), MASKS[name]
    for implementation in IMPLEMENTATION_NAMES:
        with pytest.raises(ValueError, match="same batch size and number of heads"):
            attend(q, q[:, :1], q[:, :1], mask, implementation=implementation)
        with pytest.raises(ValueError, match="q and k must have the same width"):
            attend(q, q[..., :2], q, mask, implementation=implementation)
        with pytest.raises(ValueError, match="k and v the same number of tokens"):
            attend(q, q, q[:, :, :2], mask, implementation=implementation)


MISFITS = {
    "dense": (Mask(allowed=torch.ones(3, 4, dtype=torch.bool)), r"the dense part of the mask must be broadcastable"),
    "dense, five": (
        Mask(allowed=torch.ones(1, 1, 1, 3, 3, dtype=torch.bool)),
        r"= \(1, 2, 3, 3\), found \(1, 1, 1, 3, 3\)",
    ),
    "padded, keys": (Mask(keys=Padded.of([3], 4)), r"is for \(batch, queries, keys\) = \(1, 3, 4\), .* \(1, 3, 3\)"),
    "padded, rows": (Mask(keys=Padded.of([3, 2])), r"is for \(batch, queries, keys\) = \(2, 3, 3\), .* \(1, 3, 3\)"),
    "packed": (Mask(Packed.of([2]), Packed.of([3])), r"is for \(batch, queries, keys\) = \(1, 2, 3\), .* \(1, 3, 3\)"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_mask_that_does_not_fit_is_rejected(name: str) -> None:
    (mask, message), q = MISFITS[name], torch.randn(1, 2, 3, 4)
    for implementation in IMPLEMENTATION_NAMES:
        with pytest.raises(ValueError, match=message):
            attend(q, q, q, mask, implementation=implementation)


def test_bias_that_does_not_fit_is_rejected() -> None:
    q = torch.randn(1, 2, 3, 4)
    for implementation in IMPLEMENTATION_NAMES:
        with pytest.raises(
            ValueError, match=r"the bias must be broadcastable to .* \(1, 2, 3, 3\), found \(2, 1, 3, 3\)"
        ):
            attend(q, q, q, bias=torch.zeros(2, 1, 3, 3), implementation=implementation)


def test_tensor_as_mask_is_rejected() -> None:
    q, allowed = torch.randn(1, 2, 3, 4), torch.ones(3, 3, dtype=torch.bool)
    message = r"mask must be a Mask, not a Tensor; .* Mask\(allowed=...\)"
    for implementation in IMPLEMENTATION_NAMES:
        with pytest.raises(TypeError, match=message):
            attend(q, q, q, allowed, implementation=implementation)  # type: ignore[arg-type]
    for function in (attention_weights, attention_scores):
        with pytest.raises(TypeError, match=message):
            function(q, q, allowed)  # type: ignore[arg-type]


def test_unknown_path_is_rejected() -> None:
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"implementation must be one of auto, reference, sdpa, .*, not 'fused'"):
        attend(q, q, q, implementation="fused")  # type: ignore[arg-type]


def test_decode_path_rejects_unsupported_inputs() -> None:
    q = torch.randn(1, 2, 3, 16)
    with pytest.raises(ValueError, match="implementation='decode' supports few queries on a GPU"):
        attend(q, q, q, Mask(causal=True), implementation="decode")


@pytest.mark.parametrize("implementation", ["padded", "flash_varlen", "triton_varlen"])
def test_packed_paths_reject_padded_batches(implementation: AttentionImplementation) -> None:
    q = torch.randn(1, 1, 2, D)
    with pytest.raises(ValueError, match="packed"):
        attend(q, q, q, Mask(causal=True), implementation=implementation)


@pytest.mark.parametrize("implementation", ["flash_varlen", "triton_varlen"])
def test_paths_of_a_gpu_are_rejected_on_a_cpu(implementation: AttentionImplementation) -> None:
    q = torch.randn(1, 2, 3, 16)
    with pytest.raises(ValueError, match=f"implementation='{implementation}' supports heads of up to .* on a GPU"):
        attend(q, q, q, PACKED_MASK, implementation=implementation)


@pytest.mark.parametrize("implementation", ["padded", "flash_varlen"])
def test_packed_paths_reject_a_bias_and_a_dense_mask(implementation: AttentionImplementation) -> None:
    layout = Packed.of([2, 1])
    mask = Mask(queries=layout, keys=layout)
    q = torch.randn(1, 1, 3, D)
    with pytest.raises(ValueError, match="bias"):
        attend(q, q, q, mask, bias=torch.zeros(3, 3), implementation=implementation)
    with pytest.raises(ValueError, match="dense mask"):
        attend(q, q, q, mask & Mask(allowed=torch.ones(3, 3, dtype=torch.bool)), implementation=implementation)


def test_flash_varlen_rejects_dropout() -> None:
    layout = Packed.of([2, 1])
    q = torch.randn(1, 1, 3, D)
    with pytest.raises(ValueError, match="dropout"):
        attend(q, q, q, Mask(queries=layout, keys=layout), dropout=0.1, implementation="flash_varlen")


# Unusual shapes


@pytest.mark.parametrize("queries", [1, 3, 16, 40])
@pytest.mark.parametrize("width", [1, D - 1, 3 * D])
@pytest.mark.parametrize("name", ["padding", "causal", "packed"])
def test_values_may_have_another_width_than_keys(name: str, width: int, queries: int) -> None:
    masks = {
        "padding": Mask(keys=Padded.of([5, 0], 7)),
        "causal": Mask(causal=True),
        "packed": Mask(queries=Packed.of([queries, 0]), keys=Packed.of([5, 2])),
    }
    B = 1 if name == "packed" else 2
    q, k, v = (torch.randn(B, H, *shape, generator=seeded()) for shape in ((queries, D), (7, D), (7, width)))
    expected = attention_weights(q, k, masks[name]) @ v
    for implementation in implementations_of(masks[name]):
        for dropout in (0.0, 1e-12):
            context = attend(q, k, v, masks[name], dropout=dropout, implementation=implementation)
            torch.testing.assert_close(
                context, expected, atol=1e-5, rtol=1e-5, msg=lambda m, p=implementation: f"{p}: {m}"
            )


def test_kernels_of_few_widths_pad_narrower_inputs() -> None:
    q, k, v = (torch.randn(1, H, n, width, generator=seeded()) for n, width in ((3, 4), (5, 4), (5, 6)))
    for wide, width in ((v, 16), (v[..., :2], 8), (v[..., :4], 8)):
        padded_q, padded_k, padded_v = core.equal_widths(q, k, wide, (8, 16) if width == 8 else (5, 16))
        assert padded_q.shape[-1] == padded_k.shape[-1] == padded_v.shape[-1] == width
        context = attend(padded_q, padded_k, padded_v, scale=0.5)[..., : wide.shape[-1]]
        torch.testing.assert_close(context, attend(q, k, wide, scale=0.5))


@pytest.mark.parametrize("implementation", ["auto", "reference", "padded"])
def test_packed_batch_may_hold_no_sequences(implementation: AttentionImplementation) -> None:
    layout = Packed.of([])
    q, k, v = (torch.zeros(1, H, 0, width, requires_grad=True) for width in (D, D, 3))
    context = attend(q, k, v, Mask(queries=layout, keys=layout), implementation=implementation)
    assert context.shape == (1, H, 0, 3)
    context.sum().backward()


@pytest.mark.parametrize("implementation", ["auto", "reference", "sdpa", "matmul"])
@pytest.mark.parametrize(
    "mask", [None, Mask(causal=True), Mask(keys=Padded.of([4, 2]))], ids=["none", "causal", "padding"]
)
def test_bias_of_minus_infinity_excludes_keys(mask: Mask | None, implementation: AttentionImplementation) -> None:
    q, k, v = (torch.randn(2, H, n, D, generator=seeded(n), requires_grad=True) for n in (4, 4, 4))
    bias = torch.randn(2, H, 4, 4, generator=seeded(9))
    bias[0, :, 1], bias[1, :, 2, :2] = -math.inf, -math.inf  # a complete row, and all keys that are not padding
    context = attend(q, k, v, mask, bias=bias, implementation=implementation)
    finite = bias.masked_fill(bias == -math.inf, 0.0)
    expected = attend(
        q, k, v, (mask or Mask()) & Mask(allowed=bias > -math.inf), bias=finite, implementation="reference"
    )
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(attention_weights(q, k, mask, bias=bias) @ v, expected)
    assert (context[0, :, 1] == 0).all()
    for mine, theirs in zip(
        torch.autograd.grad(context.sin().sum(), (q, k, v)),
        torch.autograd.grad(expected.sin().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


# Dropout


def uniform(implementation: AttentionImplementation) -> tuple[Tensor, Tensor, Tensor, Mask]:
    """Return 4096 queries with equal weights on 16 keys whose values are 1."""
    if implementation == "padded":
        layout, keys = Packed.of([2048, 2048]), Packed.of([16, 16])
        return torch.zeros(1, 1, 4096, D), torch.zeros(1, 1, 32, D), torch.ones(1, 1, 32, D), Mask(layout, keys)
    return torch.zeros(1, 1, 4096, D), torch.zeros(1, 1, 16, D), torch.ones(1, 1, 16, D), Mask()


@pytest.mark.parametrize("implementation", ["reference", "sdpa", "padded"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_has_the_given_rate_and_preserves_the_mean(implementation: AttentionImplementation, p: float) -> None:
    torch.manual_seed(0)
    q, k, v, mask = uniform(implementation)
    kept = (
        attend(q, k, v, mask, dropout=p, implementation=implementation)[..., 0] * 16 * (1 - p)
    )  # number of the 16 weights that were kept
    torch.testing.assert_close(kept, kept.round(), atol=1e-4, rtol=0)
    assert kept.mean().item() == pytest.approx(16 * (1 - p), rel=0.01)
    assert kept.var().item() == pytest.approx(16 * p * (1 - p), rel=0.1)


@pytest.mark.parametrize("implementation", ["reference", "sdpa", "padded"])
def test_attention_without_dropout_is_deterministic(implementation: AttentionImplementation) -> None:
    q, k, v, mask = uniform(implementation)
    torch.testing.assert_close(attend(q, k, v, mask, implementation=implementation), torch.ones_like(q))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "bf16"])
def test_paths_with_dropout_agree_with_loops_at_rate_zero(case: Case, dtype: torch.dtype) -> None:
    """A tiny rate selects the implementations for dropout without dropping anything."""
    inputs = [x.requires_grad_() for x in tensors(case, dtype)[:3]]
    context = attend(*inputs, case.mask, dropout=1e-12)
    expected = attend_by_loops(*inputs, None, case)
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(context.double(), expected, atol=bound, rtol=bound)
    upstream = torch.randn(context.shape, generator=seeded(2), dtype=torch.float64)
    got = torch.autograd.grad(context, inputs, upstream.to(dtype), allow_unused=True)
    wanted = torch.autograd.grad(expected, inputs, upstream, allow_unused=True)
    for mine, theirs, x in zip(got, wanted, inputs, strict=True):
        mine, theirs = (torch.zeros_like(x) if y is None else y for y in (mine, theirs))
        torch.testing.assert_close(mine.double(), theirs.double(), atol=2 * bound, rtol=2 * bound)


@pytest.mark.parametrize("rounded", ["inputs", "by autocast"])
def test_scores_with_dropout_are_not_rounded_to_half_precision(rounded: str) -> None:
    q, k, v = (torch.randn(4, H, 33, D, generator=seeded(i)) for i in range(3))
    q[..., 0], k[..., 0] = 1.0, 200.0  # a constant added to all scores, which does not change the weights
    q, k, v = (x.bfloat16() for x in (q, k, v))
    expected = attend(*(x.double() for x in (q, k, v)), implementation="reference")
    given = (q, k, v) if rounded == "inputs" else (q.float(), k.float(), v.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=rounded != "inputs"):
        context = attend(*given, dropout=1e-12)
    assert (context.double() - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("implementation", ["reference", "sdpa", "padded"])
def test_fully_masked_rows_are_zero_with_dropout(implementation: AttentionImplementation) -> None:
    case = CASES["packed cross, no keys for some"]
    q, k, v, _ = tensors(case, torch.float32)
    context = attend(q, k, v, case.mask, dropout=0.5, implementation=implementation)
    assert (context[:, :, :3] == 0).all()
    assert context.isfinite().all()


# SDPA backends

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("queries, keys", [(64, 64), (192, 192), (1, 128), (197, 197)])
def test_gradients_are_finite_if_all_scores_are_far_below_zero(queries: int, keys: int, device: str) -> None:
    """A constant added to all scores does not change the weights, so it may drift in training."""
    q, k, v = (torch.randn(8, 4, rows, 64, device=device) * 0.1 for rows in (queries, keys, keys))
    q[..., 0], k[..., 0] = 1.0, -120 * 8.0
    inputs = [x.bfloat16().requires_grad_() for x in (q, k, v)]
    grads = torch.autograd.grad(attend(*inputs, implementation="sdpa").sum(), inputs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(attend(*exact, implementation="reference").sum(), exact)
    for mine, theirs in zip(grads, expected, strict=True):
        assert mine.isfinite().all()
        # The gradient of the constant is a difference of large numbers, which half precision cannot represent.
        mine, theirs = mine[..., 1:].double(), theirs[..., 1:]
        assert (mine - theirs).norm() < 0.05 * theirs.norm()


@pytest.mark.parametrize(
    "queries, keys, unreliable", [(64, 64, True), (1, 128, True), (197, 197, False), (65, 256, True)]
)
def test_cudnn_is_excluded_only_if_its_gradients_may_be_nan(queries: int, keys: int, unreliable: bool) -> None:
    q, k = torch.ones(1, 1, queries, 8, requires_grad=True), torch.ones(1, 1, keys, 8)
    assert cudnn_gradients_are_unreliable(q, k, k) is unreliable
    with torch.no_grad():
        assert not cudnn_gradients_are_unreliable(q, k, k)
    assert not cudnn_gradients_are_unreliable(q.detach(), k, k)


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=True)])
def test_sdpa_without_mask_uses_the_selection_of_backends(monkeypatch: pytest.MonkeyPatch, mask: Mask) -> None:
    calls = []

    def select(*tensors: Tensor) -> AbstractContextManager[None]:
        calls.append(tensors)
        return nullcontext()

    monkeypatch.setattr(core, "_reliable_backends", select)
    inputs = [torch.randn(2, 2, 64, 4) for _ in range(3)]
    attend(*inputs, mask, implementation="sdpa")
    (selected,) = calls
    assert all(map(torch.equal, selected, inputs)) and len(selected) == 3
