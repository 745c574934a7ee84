import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import core
from regard.attention.core import Full, attend, attention_weights
from regard.attention.masks import Mask, Packed, Padded
from regard.ops.dispatch import AttentionPath

H, D = 2, 4
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


# The worked example of the study notes


def worked_example() -> Tensor:
    return torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1]])[None, None]


def test_the_worked_example_has_scores_two_and_zero() -> None:
    x = worked_example()
    scores = torch.tensor([[2.0, 0], [0, 2]])
    torch.testing.assert_close(attention_weights(x, x, scale=1.0)[0, 0], scores.softmax(-1))
    torch.testing.assert_close(attention_weights(x, x)[0, 0], (scores / 2).softmax(-1))


@pytest.mark.parametrize(("scale", "high", "low"), [(1.0, 0.88, 0.12), (None, 0.73, 0.27)])
def test_the_worked_example_gives_the_weights_of_the_notes(scale: float | None, high: float, low: float) -> None:
    x = worked_example()
    weights = attention_weights(x, x, scale=scale)[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[high, low], [low, high]]), atol=0.005, rtol=0)


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_the_worked_example_mixes_its_values_by_these_weights(path: AttentionPath) -> None:
    x = worked_example()
    p = 1 / (1 + math.exp(-1))  # the scaled scores are 1 and 0
    expected = torch.tensor([[p, 1 - p, p, 1 - p], [1 - p, p, 1 - p, p]])[None, None]
    torch.testing.assert_close(attend(x, x, x, path=path), expected)


# Scale


@pytest.mark.parametrize("path", ["reference", "sdpa"])
@pytest.mark.parametrize("width", [4, 16, 64])
def test_the_scale_follows_the_width(width: int, path: AttentionPath) -> None:
    q, k, v = torch.randn(3, 1, 1, 3, width, generator=seeded()).unbind()
    torch.testing.assert_close(attend(q, k, v, path=path), attend(q, k, v, scale=width**-0.5, path="reference"))
    torch.testing.assert_close(attention_weights(q, k), attention_weights(q, k, scale=width**-0.5))


def test_a_head_of_width_64_divides_by_8() -> None:
    q, k = torch.randn(2, 1, 1, 3, 64, generator=seeded()).unbind()
    torch.testing.assert_close(attention_weights(q, k), (q @ k.transpose(-2, -1) / 8).softmax(-1))


@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_a_given_scale_replaces_the_width(path: AttentionPath) -> None:
    q, k, v = torch.randn(3, 1, 1, 3, D, generator=seeded()).unbind()
    expected = (0.3 * q @ k.transpose(-2, -1)).softmax(-1) @ v
    torch.testing.assert_close(attend(q, k, v, scale=0.3, path=path), expected)
    torch.testing.assert_close(Full(scale=0.3, path=path)(q, k, v, Mask()), expected)


# Every path means the same as plain loops in float64


@dataclass(frozen=True)
class Case:
    """A mask, and which (b, h, t, s) it allows, said a second time in another way."""

    batch: int
    queries: int
    keys: int
    mask: Mask | None
    may: Callable[[int, int, int, int], bool]

    @property
    def paths(self) -> tuple[AttentionPath, ...]:
        dense = self.mask is not None and self.mask.allowed is not None
        if self.mask is None or not self.mask.packed or dense:
            return ("reference", "sdpa", "matmul", "auto")
        return ("reference", "sdpa", "padded", "auto")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def packed(
    queries: list[int],
    keys: list[int] | None = None,
    near: Callable[[int], bool] = lambda distance: True,
    **also: object,
) -> Case:
    """`near` judges how far the key stands behind the query, once both sequences end at the same place."""
    same = keys is None
    keys = queries if keys is None else keys
    of_query = [(i, t - length) for i, length in enumerate(queries) for t in range(length)]
    of_key = [(i, s - length) for i, length in enumerate(keys) for s in range(length)]
    layout = Packed.of(queries)
    mask = Mask(queries=layout, keys=layout if same else Packed.of(keys), **also)  # type: ignore[arg-type]

    def may(b: int, h: int, t: int, s: int) -> bool:
        return of_query[t][0] == of_key[s][0] and near(of_key[s][1] - of_query[t][1])

    return Case(1, len(of_query), len(of_key), mask, may)


def padded(lengths: list[int], T: int, S: int, causal: bool = False) -> Case:
    mask = Mask(keys=Padded.of(lengths, S), causal=causal)
    return Case(len(lengths), T, S, mask, lambda b, h, t, s: s < lengths[b] and (not causal or s <= t + S - T))


def near(T: int, S: int, near: Callable[[int], bool], **mask: object) -> Case:
    return Case(2, T, S, Mask(**mask), lambda b, h, t, s: near(s - (t + S - T)))  # type: ignore[arg-type]


def dense(*shape: int) -> Case:
    allowed = torch.rand(*shape, generator=seeded()) < 0.6
    allowed[..., 1, :] = False  # the second query sees nothing
    full = allowed.expand(2, H, 5, 6)
    return Case(2, 5, 6, Mask(allowed=allowed), lambda b, h, t, s: bool(full[b, h, t, s]))


def dense_and_packed() -> Case:
    case = packed([3, 1, 4])
    assert case.mask is not None
    even = torch.ones(8, 8, dtype=torch.bool)
    even[:, 1::2] = False
    joined = case.mask & Mask(allowed=even)
    return Case(1, 8, 8, joined, lambda b, h, t, s: case.may(b, h, t, s) and s % 2 == 0)


CASES = {
    "no mask": Case(2, 3, 5, None, lambda b, h, t, s: True),
    "everything": Case(2, 3, 5, Mask(), lambda b, h, t, s: True),
    "causal": near(5, 5, lambda d: d <= 0, causal=True),
    "causal with a cache": near(3, 7, lambda d: d <= 0, causal=True),
    "causal, one query": near(1, 7, lambda d: d <= 0, causal=True),
    "causal, more queries than keys": near(6, 4, lambda d: d <= 0, causal=True),
    "window": near(6, 6, lambda d: -2 <= d <= 1, window=(2, 1)),
    "window with a cache": near(2, 6, lambda d: -2 <= d <= 1, window=(2, 1)),
    "window open before": near(6, 6, lambda d: d <= 1, window=(None, 1)),
    "window open after": near(6, 6, lambda d: d >= -1, window=(1, None)),
    "causal window": near(6, 6, lambda d: -2 <= d <= 0, window=(2, 3), causal=True),
    "padding": padded([5, 2, 3], 4, 5),
    "padding, one row empty": padded([5, 0, 3], 4, 5),
    "causal padding": padded([5, 2, 0], 5, 5, causal=True),
    "causal padding with a cache": padded([5, 2, 4], 2, 5, causal=True),
    "dense for all": dense(5, 6),
    "dense for each head": dense(H, 5, 6),
    "dense for each row": dense(2, 1, 5, 6),
    "dense for each row and head": dense(2, H, 5, 6),
    "packed": packed([3, 1, 4]),
    "packed causal": packed([3, 1, 4], near=lambda d: d <= 0, causal=True),
    "packed window": packed([3, 1, 5], near=lambda d: -1 <= d <= 2, window=(1, 2)),
    "packed cross": packed([2, 3, 1], [4, 1, 3]),
    "packed cross, causal": packed([2, 3, 1], [4, 1, 3], near=lambda d: d <= 0, causal=True),
    "packed cross, window": packed([2, 3, 4], [5, 1, 4], near=lambda d: -1 <= d <= 0, window=(1, 0)),
    "packed cross, no keys for some": packed([3, 2, 2, 1], [0, 4, 0, 2]),
    "packed cross, no keys for the last": packed([1, 2], [3, 0]),
    "packed cross, no keys at all": packed([2, 1], [0, 0]),
    "packed cross, no queries for some": packed([0, 2, 0, 1], [2, 1, 0, 3]),
    "packed and dense": dense_and_packed(),
}
MATRIX = [
    pytest.param(case, path, biased, id=f"{name}-{path}{'-bias' * biased}")
    for name, case in CASES.items()
    for path in case.paths
    for biased in (False, True)
    if not (path == "padded" and biased)
]
BLIND = {
    name: case
    for name, case in CASES.items()
    if any(
        not any(case.may(b, h, t, s) for s in range(case.keys))
        for b in range(case.batch)
        for h in range(H)
        for t in range(case.queries)
    )
}


def tensors(case: Case, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and a bias."""
    shapes = [(case.queries, D), (case.keys, D), (case.keys, D), (case.queries, case.keys)]
    source = seeded(1)
    q, k, v, bias = (torch.randn(case.batch, H, *shape, generator=source, dtype=torch.float64) for shape in shapes)
    return q.to(dtype), k.to(dtype), v.to(dtype), bias.to(dtype)


def by_hand(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, case: Case) -> Tensor:
    """Attention one query at a time, over exactly the keys that it may attend to."""
    q, k, v = q.double(), k.double(), v.double()
    rows = []
    for b in range(case.batch):
        for h in range(H):
            for t in range(case.queries):
                seen = [s for s in range(case.keys) if case.may(b, h, t, s)]
                scores = k[b, h, seen] @ q[b, h, t] / math.sqrt(D)
                if bias is not None:
                    scores = scores + bias.double()[b, h, t, seen]
                rows.append(scores.softmax(0) @ v[b, h, seen] if seen else q[b, h, t] * 0)
    return torch.stack(rows).view(case.batch, H, case.queries, D)


def test_the_cases_hold_rows_that_may_attend_to_nothing() -> None:
    assert {"causal, more queries than keys", "padding, one row empty", "dense for all"} <= BLIND.keys()
    assert {"packed cross, no keys for some", "packed cross, causal", "packed and dense"} <= BLIND.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["32", "64", "bf16"])
@pytest.mark.parametrize(("case", "path", "biased"), MATRIX)
def test_every_path_agrees_with_attention_by_hand(
    case: Case, path: AttentionPath, biased: bool, dtype: torch.dtype
) -> None:
    q, k, v, bias = tensors(case, dtype)
    added = bias if biased else None
    context = attend(q, k, v, case.mask, bias=added, path=path)
    assert context.dtype == dtype
    expected = by_hand(q, k, v, added, case)
    torch.testing.assert_close(context.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(("case", "path", "biased"), MATRIX)
def test_every_path_has_the_gradients_of_attention_by_hand(case: Case, path: AttentionPath, biased: bool) -> None:
    inputs = [x.requires_grad_() for x in tensors(case)[: 4 if biased else 3]]
    q, k, v, bias = inputs if biased else (*inputs, None)
    upstream = torch.randn(q.shape, generator=seeded(2), dtype=torch.float64)
    got = torch.autograd.grad(attend(q, k, v, case.mask, bias=bias, path=path), inputs, upstream, allow_unused=True)
    expected = torch.autograd.grad(by_hand(q, k, v, bias, case), inputs, upstream, allow_unused=True)
    for mine, theirs, x in zip(got, expected, inputs, strict=True):
        mine, theirs = (torch.zeros_like(x) if y is None else y for y in (mine, theirs))
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("case", BLIND.values(), ids=BLIND.keys())
def test_what_a_gpu_does_with_rows_that_see_nothing_is_right_on_a_cpu(case: Case, biased: bool) -> None:
    inputs = [x.requires_grad_() for x in tensors(case)[: 4 if biased else 3]]
    q, k, v, bias = inputs if biased else (*inputs, None)
    assert case.mask is not None
    for _ in range(2):  # the second time with what it has built
        context = core._attend_sdpa_masked(q, k, v, case.mask, 1 / math.sqrt(D), 0.0, bias)
        expected = by_hand(q, k, v, bias, case)
        torch.testing.assert_close(context, expected, atol=1e-12, rtol=1e-12)
    got, wanted = (torch.autograd.grad(x.sum(), inputs, allow_unused=True) for x in (context, expected))
    for mine, theirs, x in zip(got, wanted, inputs, strict=True):
        mine, theirs = (torch.zeros_like(x) if y is None else y for y in (mine, theirs))
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "bf16"])
@pytest.mark.parametrize(
    ("case", "path"),
    [pytest.param(case, path, id=f"{name}-{path}") for name, case in BLIND.items() for path in case.paths],
)
def test_a_query_that_may_attend_to_nothing_gets_exact_zeros(
    case: Case, path: AttentionPath, dtype: torch.dtype
) -> None:
    q, k, v, _ = (x.requires_grad_() for x in tensors(case, dtype))
    context = attend(q, k, v, case.mask, path=path)
    context.sum().backward()
    blind = torch.tensor(
        [
            [[not any(case.may(b, h, t, s) for s in range(case.keys)) for t in range(case.queries)] for h in range(H)]
            for b in range(case.batch)
        ]
    )
    assert blind.any()
    assert (context[blind] == 0).all()
    assert (q.grad[blind] == 0).all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("path", ["reference", "sdpa"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_batch_that_may_attend_to_nothing_has_no_gradients(path: AttentionPath, biased: bool) -> None:
    case = padded([0, 0], 3, 4)
    q, k, v, bias = (x.requires_grad_() for x in tensors(case, torch.float32))
    context = attend(q, k, v, case.mask, path=path, bias=bias if biased else None)
    context.sum().backward()
    assert (context == 0).all()
    for x in (q, k, v, bias) if biased else (q, k, v):
        assert x.grad is not None
        assert (x.grad == 0).all()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_weights_are_exactly_zero_where_excluded_and_sum_to_one(case: Case) -> None:
    q, k, _, _ = tensors(case, torch.float32)
    weights = attention_weights(q, k, case.mask)
    assert weights.shape == (case.batch, H, case.queries, case.keys)
    for b in range(case.batch):
        for h in range(H):
            for t in range(case.queries):
                may = torch.tensor([case.may(b, h, t, s) for s in range(case.keys)], dtype=torch.bool)
                assert (weights[b, h, t][~may] == 0).all()
                assert (weights[b, h, t][may] > 0).all()
                assert weights[b, h, t].sum().item() == pytest.approx(1.0 if may.any() else 0.0)


def test_the_weights_are_in_full_precision_under_autocast_too() -> None:
    q, k, mask = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 4, 8), Mask(keys=Padded.of([3, 4]))
    with torch.autocast("cpu", torch.bfloat16):
        weights = attention_weights(q, k, mask)
    assert torch.equal(weights, attention_weights(q, k, mask))


def test_the_masked_triangle_is_exactly_zero() -> None:
    q, k = torch.randn(2, 1, H, 6, D, generator=seeded()).unbind()
    weights = attention_weights(q, k, Mask(causal=True))
    assert (weights.triu(1) == 0).all()
    assert (weights.tril() > 0).sum() == H * 21


def test_scores_far_from_zero_do_not_let_an_excluded_key_in() -> None:
    q = torch.full((1, 1, 2, D), 1e4)
    k = torch.stack([torch.full((D,), -1e4), torch.full((D,), 1e4)])[None, None]  # the key ahead fits far better
    v = torch.tensor([[1.0] * D, [2.0] * D])[None, None]
    for path in ("reference", "sdpa"):
        assert attend(q, k, v, Mask(causal=True), path=path)[0, 0, 0].tolist() == [1.0] * D  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["reference", "sdpa"])
@pytest.mark.parametrize("shape", [(H, 4, 5), (1, H, 1, 5), (3, 1, 4, 5), (4, 5)])
def test_a_bias_broadcasts_like_the_scores(shape: tuple[int, ...], path: AttentionPath) -> None:
    case = padded([5, 2, 0], 4, 5)
    q, k, v, _ = tensors(case)
    bias = torch.randn(shape, generator=seeded(3), dtype=torch.float64)
    expected = by_hand(q, k, v, bias.expand(3, H, 4, 5), case)
    torch.testing.assert_close(attend(q, k, v, case.mask, bias=bias, path=path), expected)
    torch.testing.assert_close(
        attend(q, k, v, bias=bias, path=path), attend(q, k, v, bias=bias.expand(3, H, 4, 5), path="reference")
    )


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("path", ["reference", "sdpa"])
def test_each_head_attends_by_itself(heads: int, path: AttentionPath) -> None:
    q, k, v = torch.randn(3, 2, heads, 5, D, generator=seeded(), dtype=torch.float64).unbind()
    together = attend(q, k, v, Mask(causal=True), path=path)
    for h in range(heads):
        alone = attend(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1], Mask(causal=True), path="reference")
        torch.testing.assert_close(together[:, h : h + 1], alone)


def test_the_reference_passes_gradcheck() -> None:
    allowed = torch.tensor([[True, True, False, True], [False] * 4, [True, False, False, False]])
    q, k, v = (torch.randn(1, 2, n, 3, generator=seeded(n), dtype=torch.float64, requires_grad=True) for n in (3, 4, 4))
    bias = torch.randn(1, 2, 3, 4, generator=seeded(9), dtype=torch.float64, requires_grad=True)
    for mask in (Mask(), Mask(causal=True), Mask(allowed=allowed)):
        assert torch.autograd.gradcheck(
            lambda q, k, v, bias, mask=mask: attend(q, k, v, mask, bias=bias, path="reference"), (q, k, v, bias)
        )


lengths = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@settings(max_examples=60, derandomize=True)
@given(st.data(), lengths, st.booleans(), st.sampled_from([None, (1, 0), (None, 1), (0, 2)]))
def test_the_unpacked_path_is_the_reference_for_any_lengths(
    data: st.DataObject, queries: list[int], causal: bool, window: tuple[int | None, int | None] | None
) -> None:
    keys = data.draw(st.lists(st.integers(0, 4), min_size=len(queries), max_size=len(queries)))
    mask = Mask(queries=Packed.of(queries), keys=Packed.of(keys), causal=causal, window=window)
    q, k, v = (torch.randn(1, H, sum(n), D, generator=seeded(i)) for i, n in enumerate((queries, keys, keys)))
    torch.testing.assert_close(attend(q, k, v, mask, path="padded"), attend(q, k, v, mask, path="reference"))


def on_device(mask: Mask | None, device: torch.device) -> Mask | None:
    if mask is None:
        return None
    queries, keys = (None if layout is None else layout.to(device) for layout in (mask.queries, mask.keys))
    allowed = None if mask.allowed is None else mask.allowed.to(device)
    return Mask(queries, keys, mask.causal, mask.window, allowed)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_every_path_on_a_gpu_agrees_with_the_reference_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    case, device = CASES[name], torch.device("cuda")
    inputs = [torch.cat([x, x], -1).to(dtype).requires_grad_() for x in tensors(case)[:3]]  # varlen wants a head of 8
    upstream = torch.randn(inputs[0].shape, generator=seeded(2)).to(dtype)
    expected = attend(*inputs, case.mask, path="reference")
    gradients = torch.autograd.grad(expected, inputs, upstream)
    fits = "padded" in case.paths and dtype == torch.bfloat16 and case.keys > 0
    varlen: tuple[AttentionPath, ...] = ("flash_varlen",) if fits else ()
    tolerance = {"atol": 5e-2, "rtol": 5e-2} if dtype == torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    for path in case.paths + varlen:
        leaves = [x.detach().to(device).requires_grad_() for x in inputs]
        context = attend(*leaves, on_device(case.mask, device), path=path)
        torch.testing.assert_close(context.cpu(), expected, **tolerance, msg=lambda m, p=path: f"{p}: {m}")
        assert (context.cpu()[expected == 0] == 0).all(), path
        for mine, theirs in zip(torch.autograd.grad(context, leaves, upstream.to(device)), gradients, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, **tolerance, msg=lambda m, p=path: f"{p}: {m}")


# What a path cannot do it refuses


def test_a_packed_path_refuses_a_padded_batch() -> None:
    q = torch.randn(1, 1, 2, D)
    with pytest.raises(ValueError, match="packed"):
        attend(q, q, q, Mask(causal=True), path="padded")


@pytest.mark.parametrize("path", ["padded", "flash_varlen"])
def test_a_packed_path_refuses_a_bias_and_a_dense_mask(path: AttentionPath) -> None:
    layout = Packed.of([2, 1])
    mask = Mask(queries=layout, keys=layout)
    q = torch.randn(1, 1, 3, D)
    with pytest.raises(ValueError, match="bias"):
        attend(q, q, q, mask, bias=torch.zeros(3, 3), path=path)
    with pytest.raises(ValueError, match="dense mask"):
        attend(q, q, q, mask & Mask(allowed=torch.ones(3, 3, dtype=torch.bool)), path=path)


def test_varlen_refuses_dropout() -> None:
    layout = Packed.of([2, 1])
    q = torch.randn(1, 1, 3, D)
    with pytest.raises(ValueError, match="dropout"):
        attend(q, q, q, Mask(queries=layout, keys=layout), dropout=0.1, path="flash_varlen")


# Dropout


def uniform(path: AttentionPath) -> tuple[Tensor, Tensor, Tensor, Mask]:
    """4096 queries with equal weights on 16 keys whose values are 1."""
    if path == "padded":
        layout, keys = Packed.of([2048, 2048]), Packed.of([16, 16])
        return torch.zeros(1, 1, 4096, D), torch.zeros(1, 1, 32, D), torch.ones(1, 1, 32, D), Mask(layout, keys)
    return torch.zeros(1, 1, 4096, D), torch.zeros(1, 1, 16, D), torch.ones(1, 1, 16, D), Mask()


@pytest.mark.parametrize("path", ["reference", "sdpa", "padded"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_drops_weights_at_its_rate_and_keeps_the_mean(path: AttentionPath, p: float) -> None:
    torch.manual_seed(0)
    q, k, v, mask = uniform(path)
    kept = attend(q, k, v, mask, dropout=p, path=path)[..., 0] * 16 * (1 - p)  # how many of 16 weights were kept
    torch.testing.assert_close(kept, kept.round(), atol=1e-4, rtol=0)
    assert kept.mean().item() == pytest.approx(16 * (1 - p), rel=0.01)
    assert kept.var().item() == pytest.approx(16 * p * (1 - p), rel=0.1)


@pytest.mark.parametrize("path", ["reference", "sdpa", "padded"])
def test_without_dropout_nothing_is_random(path: AttentionPath) -> None:
    q, k, v, mask = uniform(path)
    torch.testing.assert_close(attend(q, k, v, mask, path=path), torch.ones_like(q))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["32", "bf16"])
def test_attention_that_drops_next_to_nothing_is_attention_by_hand(case: Case, dtype: torch.dtype) -> None:
    """A CPU takes another path where something is dropped."""
    inputs = [x.requires_grad_() for x in tensors(case, dtype)[:3]]
    context = attend(*inputs, case.mask, dropout=1e-12)
    expected = by_hand(*inputs, None, case)
    bound = TOLERANCE[dtype]
    torch.testing.assert_close(context.double(), expected, atol=bound, rtol=bound)
    upstream = torch.randn(context.shape, generator=seeded(2), dtype=torch.float64)
    got = torch.autograd.grad(context, inputs, upstream.to(dtype), allow_unused=True)
    wanted = torch.autograd.grad(expected, inputs, upstream, allow_unused=True)
    for mine, theirs, x in zip(got, wanted, inputs, strict=True):
        mine, theirs = (torch.zeros_like(x) if y is None else y for y in (mine, theirs))
        torch.testing.assert_close(mine.double(), theirs.double(), atol=2 * bound, rtol=2 * bound)


@pytest.mark.parametrize("rounded", ["inputs", "by autocast"])
def test_scores_are_not_rounded_to_half_precision_where_weights_are_dropped(rounded: str) -> None:
    q, k, v = (torch.randn(4, H, 33, D, generator=seeded(i)) for i in range(3))
    q[..., 0], k[..., 0] = 1.0, 200.0  # what all scores have in common, of which weights do not depend
    q, k, v = (x.bfloat16() for x in (q, k, v))
    expected = attend(*(x.double() for x in (q, k, v)), path="reference")
    given = (q, k, v) if rounded == "inputs" else (q.float(), k.float(), v.float())
    with torch.autocast("cpu", torch.bfloat16, enabled=rounded != "inputs"):
        context = attend(*given, dropout=1e-12)
    assert (context.double() - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("path", ["reference", "sdpa", "padded"])
def test_dropout_leaves_a_query_that_may_attend_to_nothing_at_zero(path: AttentionPath) -> None:
    case = CASES["packed cross, no keys for some"]
    q, k, v, _ = tensors(case, torch.float32)
    context = attend(q, k, v, case.mask, dropout=0.5, path=path)
    assert (context[:, :, :3] == 0).all()
    assert context.isfinite().all()
