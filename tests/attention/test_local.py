import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.core import Full
from regard.attention.local import Local, LocalPath
from regard.attention.masks import Mask, Packed, Padded

H, D = 2, 8
EXACT = {"atol": 1e-12, "rtol": 1e-12}


def tensors(batch: int, T: int, S: int | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(T)
    shape = [(batch, H, n, D) for n in (T, S or T, S or T)]
    return tuple(torch.randn(*s, generator=source, dtype=torch.float64).to(dtype) for s in shape)


def by_hand(q: Tensor, k: Tensor, v: Tensor, may: Callable[[int, int, int], bool]) -> Tensor:
    """Softmax attention by plain loops; `may` judges row, query and key."""
    context = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for t in range(q.shape[2]):
            seen = [s for s in range(k.shape[2]) if may(b, t, s)]
            if seen:
                scores = (q[b, :, t, None] * k[b, :, seen]).sum(-1) / math.sqrt(D)
                context[b, :, t] = (scores.softmax(-1)[..., None] * v[b, :, seen]).sum(1)
    return context


def near(local: Local, t: int, s: int, causal: bool = False) -> bool:
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


@pytest.mark.parametrize("path", ["reference", "dense", "blocks", "auto"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
@pytest.mark.parametrize("length", [1, 2, 17, 45])
def test_every_path_is_attention_within_the_window(local: Local, length: int, causal: bool, path: LocalPath) -> None:
    q, k, v = tensors(1, length)
    kind = Local(local.before, local.after, local.dilation, local.global_tokens, path=path)
    expected = by_hand(q, k, v, lambda b, t, s: near(local, t, s, causal))
    torch.testing.assert_close(kind(q, k, v, Mask(causal=causal)), expected, **EXACT)


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_blocks_leave_padding_alone_and_rows_of_padding_at_zero(local: Local, causal: bool) -> None:
    lengths = [37, 0, 1, 20]
    q, k, v = tensors(4, 37)
    kind = Local(local.before, local.after, local.dilation, local.global_tokens, path="blocks")
    layout = Padded.of(lengths)
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    expected = by_hand(q, k, v, lambda b, t, s: s < lengths[b] and near(local, t, s, causal))
    torch.testing.assert_close(got, expected, **EXACT)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_packed_sequences_are_each_as_if_alone(local: Local, causal: bool) -> None:
    lengths = [5, 1, 30, 2]
    q, k, v = tensors(1, sum(lengths))
    layout = Packed.of(lengths)
    for path in ("auto", "reference"):
        kind = Local(local.before, local.after, local.dilation, local.global_tokens, path=path)
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
def test_blocks_are_the_reference(
    length: int, before: int, after: int, dilation: int, global_tokens: int, causal: bool
) -> None:
    q, k, v = tensors(2, length)
    mask = Mask(causal=causal)
    blocks, reference = (Local(before, after, dilation, global_tokens, path=path) for path in ("blocks", "reference"))
    torch.testing.assert_close(blocks(q, k, v, mask), reference(q, k, v, mask), **EXACT)


@pytest.mark.parametrize("kind", [Local(3, 2), Local(2, 0, dilation=2), Local(1, 1, global_tokens=2)], ids=str)
@pytest.mark.parametrize("T", [1, 4])
def test_queries_at_the_end_of_a_cache_see_its_end(kind: Local, T: int) -> None:
    q, k, v = tensors(2, 20)
    whole = kind(q, k, v, Mask(causal=True))
    torch.testing.assert_close(kind(q[:, :, -T:], k, v, Mask(causal=True)), whole[:, :, -T:], **EXACT)


def test_a_query_at_the_end_of_a_cache_reads_no_key_beyond_the_window() -> None:
    q, k, v = tensors(1, 1, 50)
    k[:, :, : 50 - 4], v[:, :, : 50 - 4] = math.nan, math.nan
    assert Local(3, 3)(q, k, v, Mask(causal=True)).isfinite().all()


def test_a_window_over_everything_is_full_attention() -> None:
    q, k, v = tensors(2, 33)
    for mask in (Mask(), Mask(causal=True)):
        torch.testing.assert_close(Local(40, 40, path="blocks")(q, k, v, mask), Full()(q, k, v, mask), **EXACT)


@pytest.mark.parametrize("kind", [Local(2, 1, path="blocks"), Local(1, 1, 2, 1, path="blocks")], ids=str)
def test_the_gradients_of_blocks_are_right(kind: Local) -> None:
    layout = Padded.of([19, 0, 4])
    inputs = tuple(x.requires_grad_() for x in tensors(3, 19))
    for mask in (Mask(queries=layout, keys=layout), Mask(causal=True)):
        assert torch.autograd.gradcheck(lambda *qkv, m=mask: kind(*qkv, m), inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_means_the_same_within_its_rounding(dtype: torch.dtype) -> None:
    exact = Local(5, 5)(*tensors(1, 40), Mask(causal=True))
    rough = Local(5, 5, path="blocks")(*tensors(1, 40, dtype=dtype), Mask(causal=True))
    assert rough.dtype == dtype
    assert ((rough.double() - exact).norm() / exact.norm()).item() < {torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]


def test_dropout_drops_weights() -> None:
    torch.manual_seed(0)
    q, k, v = tensors(1, 64)
    kind = Local(4, 4, path="blocks")
    mean = torch.stack([kind(q, k, v, Mask(), 0.3) for _ in range(400)]).mean(0)
    assert not torch.allclose(kind(q, k, v, Mask(), 0.3), kind(q, k, v, Mask()))
    torch.testing.assert_close(mean, kind(q, k, v, Mask()), atol=0.35, rtol=0)


@pytest.mark.parametrize("kind", [Local(1, 1), Local(1, 0, dilation=2), Local(1, 1, global_tokens=1)], ids=str)
@pytest.mark.parametrize("first", [1, 3], ids=["first token shared", "each its own"])
def test_hypotheses_side_by_side_see_the_window_of_their_own_past(kind: Local, first: int) -> None:
    places, beam_width = 5, 3
    pool = first + (places - 1) * beam_width
    q, k, v = tensors(1, beam_width, pool)
    family = torch.zeros(1, 1, beam_width, pool, dtype=torch.bool)
    for hypothesis in range(beam_width):
        for place in range(places):
            beside = (hypothesis + place) % beam_width
            family[..., hypothesis, beside % first if place == 0 else first + (place - 1) * beam_width + beside] = True
    got = kind(q, k, v, Mask(allowed=family, beam_width=beam_width))
    for hypothesis in range(beam_width):
        past = family[0, 0, hypothesis].nonzero()[:, 0]
        one = slice(hypothesis, hypothesis + 1)
        alone = kind(q[:, :, one], k[:, :, past], v[:, :, past], Mask(causal=True))
        torch.testing.assert_close(got[:, :, one], alone, **EXACT)


def dense_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many scores each mask that is made a tensor of is for, from now on."""
    sizes: list[int] = []
    monkeypatch.setattr(Mask, "dense", lambda self, T, S, device: sizes.append(T * S) or self.allowed)
    return sizes


def test_long_rows_are_cut_into_blocks_and_never_meet_a_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dense_sizes(monkeypatch)
    q, k, v = tensors(1, 2000, dtype=torch.float32)
    Local(8, 8)(q, k, v, Mask())
    assert max(sizes) < 100 * 100


def test_a_dilation_makes_blocks_no_dearer(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = dense_sizes(monkeypatch)
    q, k, v = tensors(1, 2000, dtype=torch.float32)
    Local(8, 0, dilation=125)(q, k, v, Mask(causal=True))  # which reaches back over half the row
    assert max(sizes) < 100 * 100


def test_a_dilation_that_blocks_would_have_to_be_filled_up_for_is_left_to_a_mask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = dense_sizes(monkeypatch)
    q, k, v = tensors(1, 300, dtype=torch.float32)
    Local(1, 1, dilation=1000)(q, k, v, Mask())
    assert sizes == [300 * 300]


@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_padding_of_keys_alone_is_cut_into_blocks_too(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, 1000, dtype=torch.float32)
    layout = Padded.of([1000, 400])
    expected = Local(8, 8)(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    sizes = dense_sizes(monkeypatch)
    assert torch.equal(Local(8, 8)(q, k, v, Mask(keys=layout, causal=causal)), expected)
    assert max(sizes) < 100 * 100
