import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.kinds import Full
from regard.attention.local import Local, LocalImplementation
from regard.masks import Mask, Packed, Padded

H, D = 2, 8
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def tensors(batch: int, T: int, S: int | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(T)
    shape = [(batch, H, n, D) for n in (T, S or T, S or T)]
    return tuple(torch.randn(*s, generator=source, dtype=torch.float64).to(dtype) for s in shape)


def by_hand(q: Tensor, k: Tensor, v: Tensor, allowed: Callable[[int, int, int], bool]) -> Tensor:
    """Compute softmax attention in plain loops; `allowed` takes a row, a query and a key."""
    context = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for t in range(q.shape[2]):
            keys = [s for s in range(k.shape[2]) if allowed(b, t, s)]
            if keys:
                scores = (q[b, :, t, None] * k[b, :, keys]).sum(-1) / math.sqrt(D)
                context[b, :, t] = (scores.softmax(-1)[..., None] * v[b, :, keys]).sum(1)
    return context


def in_local_window(local: Local, t: int, s: int, causal: bool = False) -> bool:
    if causal and s > t:
        return False
    if s < local.global_tokens or t < local.global_tokens:
        return True
    return -local.before * local.dilation <= s - t <= local.after * local.dilation and (s - t) % local.dilation == 0


LOCALS = [
    Local(3, 3),
    Local(3, 0),
    Local(0, 2),
    Local(0, 0),
    Local(40, 1),
    Local(2, 1, dilation=3),
    Local(1, 1, global_tokens=2),
    Local(2, 2, dilation=2, global_tokens=1),
]


@pytest.mark.parametrize("implementation", ["reference", "dense", "blocks", "auto"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 17, 45])
def test_every_path_attends_within_the_window(
    local: Local, length: int, causal: bool, implementation: LocalImplementation
) -> None:
    q, k, v = tensors(1, length)
    kind = Local(local.before, local.after, local.dilation, local.global_tokens, implementation=implementation)
    expected = by_hand(q, k, v, lambda b, t, s: in_local_window(local, t, s, causal))
    torch.testing.assert_close(kind(q, k, v, Mask(causal=causal)), expected, **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_blocks_do_not_attend_to_padding(local: Local, causal: bool) -> None:
    lengths = [37, 0, 1, 20]
    q, k, v = tensors(4, 37)
    kind = Local(local.before, local.after, local.dilation, local.global_tokens, implementation="blocks")
    layout = Padded.of(lengths)
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    expected = by_hand(q, k, v, lambda b, t, s: s < lengths[b] and in_local_window(local, t, s, causal))
    torch.testing.assert_close(got, expected, **EXACT)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_packed_sequences_are_independent(local: Local, causal: bool) -> None:
    lengths = [5, 1, 30, 2]
    q, k, v = tensors(1, sum(lengths))
    layout = Packed.of(lengths)
    for implementation in ("auto", "reference"):
        kind = Local(local.before, local.after, local.dilation, local.global_tokens, implementation=implementation)
        got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
        parts = zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True)
        alone = [kind(*part, Mask(causal=causal)) for part in parts]
        torch.testing.assert_close(got, torch.cat(alone, 2), **EXACT)


@settings(max_examples=40)
@given(
    length=st.integers(1, 60),
    before=st.integers(0, 20),
    after=st.integers(0, 20),
    dilation=st.integers(1, 4),
    global_tokens=st.integers(0, 3),
    causal=st.booleans(),
)
def test_blocks_agree_with_the_reference(
    length: int, before: int, after: int, dilation: int, global_tokens: int, causal: bool
) -> None:
    q, k, v = tensors(2, length)
    mask = Mask(causal=causal)
    blocks, reference = (
        Local(before, after, dilation, global_tokens, implementation=implementation)
        for implementation in ("blocks", "reference")
    )
    torch.testing.assert_close(blocks(q, k, v, mask), reference(q, k, v, mask), **EXACT)


@pytest.mark.parametrize("kind", [Local(3, 2), Local(2, 0, dilation=2), Local(1, 1, global_tokens=2)], ids=str)
@pytest.mark.parametrize("T", [1, 4])
def test_queries_are_aligned_to_the_end_of_a_cache(kind: Local, T: int) -> None:
    q, k, v = tensors(2, 20)
    expected = kind(q, k, v, Mask(causal=True))
    torch.testing.assert_close(kind(q[:, :, -T:], k, v, Mask(causal=True)), expected[:, :, -T:], **EXACT)


def test_keys_outside_the_window_are_not_read() -> None:
    q, k, v = tensors(1, 1, 50)
    k[:, :, : 50 - 4], v[:, :, : 50 - 4] = math.nan, math.nan
    assert Local(3, 3)(q, k, v, Mask(causal=True)).isfinite().all()


def test_window_over_all_keys_is_full_attention() -> None:
    q, k, v = tensors(2, 33)
    for mask in (Mask(), Mask(causal=True)):
        torch.testing.assert_close(
            Local(40, 40, implementation="blocks")(q, k, v, mask), Full()(q, k, v, mask), **EXACT
        )


@pytest.mark.parametrize(
    "kind", [Local(2, 1, implementation="blocks"), Local(1, 1, 2, 1, implementation="blocks")], ids=str
)
def test_gradients_of_blocks_are_correct(kind: Local) -> None:
    layout = Padded.of([19, 0, 4])
    inputs = tuple(x.requires_grad_() for x in tensors(3, 19))
    for mask in (Mask(queries=layout, keys=layout), Mask(causal=True)):
        assert torch.autograd.gradcheck(lambda *qkv, m=mask: kind(*qkv, m), inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_agrees_within_rounding(dtype: torch.dtype) -> None:
    exact = Local(5, 5)(*tensors(1, 40), Mask(causal=True))
    rough = Local(5, 5, implementation="blocks")(*tensors(1, 40, dtype=dtype), Mask(causal=True))
    assert rough.dtype == dtype
    assert ((rough.double() - exact).norm() / exact.norm()).item() < {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]


def test_dropout_changes_the_context_but_not_its_mean() -> None:
    torch.manual_seed(0)
    q, k, v = tensors(1, 64)
    kind = Local(4, 4, implementation="blocks")
    mean = torch.stack([kind(q, k, v, Mask(), 0.3) for _ in range(400)]).mean(0)
    assert not torch.allclose(kind(q, k, v, Mask(), 0.3), kind(q, k, v, Mask()))
    torch.testing.assert_close(mean, kind(q, k, v, Mask()), atol=0.35, rtol=0)


@pytest.mark.parametrize("kind", [Local(1, 1), Local(1, 0, dilation=2), Local(1, 1, global_tokens=1)], ids=str)
@pytest.mark.parametrize("first", [1, 3], ids=["shared first token", "separate first tokens"])
def test_hypotheses_of_a_beam_attend_to_their_own_window(kind: Local, first: int) -> None:
    steps, beam_width = 5, 3
    stored = first + (steps - 1) * beam_width
    q, k, v = tensors(1, beam_width, stored)
    own_tokens = torch.zeros(1, 1, beam_width, stored, dtype=torch.bool)
    for hypothesis in range(beam_width):
        for step in range(steps):
            column = (hypothesis + step) % beam_width
            token = column % first if step == 0 else first + (step - 1) * beam_width + column
            own_tokens[..., hypothesis, token] = True
    got = kind(q, k, v, Mask(allowed=own_tokens, beam_width=beam_width))
    for hypothesis in range(beam_width):
        past = own_tokens[0, 0, hypothesis].nonzero()[:, 0]
        one = slice(hypothesis, hypothesis + 1)
        alone = kind(q[:, :, one], k[:, :, past], v[:, :, past], Mask(causal=True))
        torch.testing.assert_close(got[:, :, one], alone, **EXACT)


def dense_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of scores of every dense mask that is built."""
    sizes: list[int] = []
    monkeypatch.setattr(Mask, "dense", lambda self, T, S, device: sizes.append(T * S) or self.allowed)
    return sizes


def test_long_rows_use_blocks_instead_of_a_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dense_sizes(monkeypatch)
    q, k, v = tensors(1, 2000, dtype=torch.float32)
    Local(8, 8)(q, k, v, Mask())
    assert max(sizes) < 100 * 100


def test_dilation_does_not_increase_the_cost_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dense_sizes(monkeypatch)
    q, k, v = tensors(1, 2000, dtype=torch.float32)
    Local(8, 0, dilation=125)(q, k, v, Mask(causal=True))  # the window covers half of the row
    assert max(sizes) < 100 * 100


def test_dense_mask_is_used_where_blocks_would_be_mostly_filler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = dense_sizes(monkeypatch)
    q, k, v = tensors(1, 300, dtype=torch.float32)
    Local(1, 1, dilation=1000)(q, k, v, Mask())
    assert sizes == [300 * 300]


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_blocks_support_a_layout_of_keys_only(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, 1000, dtype=torch.float32)
    layout = Padded.of([1000, 400])
    expected = Local(8, 8)(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    sizes = dense_sizes(monkeypatch)
    assert torch.equal(Local(8, 8)(q, k, v, Mask(keys=layout, causal=causal)), expected)
    assert max(sizes) < 100 * 100
