import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.core import attention_weights
from regard.attention.linear import CHUNK, Features, Linear, LinearCache, LinearImplementation, random_directions
from regard.attention.multi_head import Attention
from regard.masks import Mask, Packed, Padded

H, D = 2, 8
EXACT = {"atol": 1e-10, "rtol": 1e-10}
FEATURES = get_args(Features)


def tensors(batch: int, T: int, S: int | None = None, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    source = torch.Generator().manual_seed(T)
    shape = [(batch, H, n, D) for n in (T, S or T, S or T)]
    return tuple(torch.randn(*s, generator=source, dtype=torch.float64).to(dtype) for s in shape)


def linear(features: Features, implementation: LinearImplementation = "auto") -> Linear:
    torch.manual_seed(0)
    return Linear(D, features, implementation=implementation)


# The formula


def test_plain_linear_attention_is_associative_in_column_form() -> None:
    q, k, v = tensors(1, 5)
    Q, K, V = (x[0, 0].T for x in (q, k, v))  # tokens are columns
    for implementation in ("quadratic", "auto"):
        got = Linear(D, "plain", scale=1.0, implementation=implementation)(q, k, v, Mask())[0, 0].T
        torch.testing.assert_close(got, V @ (K.T @ Q), **EXACT)
        torch.testing.assert_close(got, (V @ K.T) @ Q, **EXACT)


def test_elu_features_are_elu_plus_one() -> None:
    q, k, _ = tensors(1, 4)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    scores = phi_q @ phi_k.transpose(-2, -1)
    torch.testing.assert_close(linear("elu").weights(q, k, Mask()), scores / scores.sum(-1, keepdim=True), **EXACT)


def test_random_features_approximate_softmax_in_expectation() -> None:
    q, k, _ = (x / 2 for x in tensors(1, 6))
    torch.manual_seed(0)
    kind = Linear(D, "random", size=200_000).double()
    torch.testing.assert_close(kind.weights(q, k, Mask()), attention_weights(q, k), atol=0.01, rtol=0)


def test_more_random_features_approximate_softmax_better() -> None:
    q, k, _ = (x / 2 for x in tensors(4, 30))
    exact = attention_weights(q, k)

    def error(size: int) -> float:
        torch.manual_seed(0)
        errors = [(Linear(D, "random", size).double().weights(q, k, Mask()) - exact).norm() for _ in range(5)]
        return float(sum(errors))

    assert error(16) > 1.5 * error(128) > 2 * error(2048)


def test_random_directions_are_orthogonal_with_gaussian_norms() -> None:
    torch.manual_seed(0)
    directions = random_directions(20, 8)
    assert directions.shape == (20, 8)
    group = torch.nn.functional.normalize(directions[:8], dim=1)
    torch.testing.assert_close(group @ group.T, torch.eye(8), atol=1e-5, rtol=0)
    many = random_directions(4000, 8).norm(dim=1)
    assert many.square().mean().item() == pytest.approx(8, rel=0.05)
    assert many.std() > 0.5


def test_scale_is_split_between_queries_and_keys() -> None:
    q, k, v = tensors(1, 5)
    for features in FEATURES:
        torch.manual_seed(0)
        kind = Linear(D, features, scale=0.25)
        torch.manual_seed(0)
        bare = Linear(D, features, scale=1.0)
        torch.testing.assert_close(kind(q, k, v, Mask()), bare(q / 2, k / 2, v, Mask()), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elu_features_of_negative_numbers_are_not_lost_to_rounding(dtype: torch.dtype) -> None:
    q, k, v = tensors(1, 4)
    q, k = q - 5, k - 5
    got = linear("elu")(q.to(dtype), k.to(dtype), v.to(dtype), Mask()).double()
    exact = linear("elu")(q.to(dtype).double(), k.to(dtype).double(), v.to(dtype).double(), Mask())
    assert ((got - exact).norm() / exact.norm()).item() < {torch.float32: 1e-4, torch.bfloat16: 1e-2}[dtype]


@pytest.mark.parametrize("implementation", ["quadratic", "chunked", "recurrent"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_features_do_not_overflow_half_precision(dtype: torch.dtype, implementation: LinearImplementation) -> None:
    q, k, v = (x.to(dtype) for x in tensors(1, 5))
    q, k = q + 100, k + 100  # the scores exceed the largest float16, 65504
    for mask in (Mask(), Mask(causal=True)):
        context = linear("elu", implementation)(q, k, v, mask)
        assert context.dtype == dtype
        exact = linear("elu", implementation)(q.double(), k.double(), v.double(), mask)
        torch.testing.assert_close(context.double(), exact, atol=2e-2, rtol=0)


# The three forms


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("length", [1, 2, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
def test_quadratic_chunked_and_recurrent_forms_agree(features: Features, length: int) -> None:
    q, k, v = tensors(2, length)
    forms = [
        linear(features, implementation)(q, k, v, Mask(causal=True))
        for implementation in ("quadratic", "chunked", "recurrent")
    ]
    torch.testing.assert_close(forms[1], forms[0], **EXACT)
    torch.testing.assert_close(forms[2], forms[0], **EXACT)


@settings(max_examples=30)
@given(
    features=st.sampled_from(FEATURES),
    T=st.integers(1, 20),
    earlier=st.integers(0, 20),
    causal=st.booleans(),
    lengths=st.lists(st.integers(0, 40), min_size=2, max_size=2),
)
def test_every_form_agrees_with_the_quadratic_form(
    features: Features, T: int, earlier: int, causal: bool, lengths: list[int]
) -> None:
    S = T + earlier
    q, k, v = tensors(2, T, S)
    mask = Mask(keys=Padded.of([min(n, S) for n in lengths], S), causal=causal)
    expected = linear(features, "quadratic")(q, k, v, mask)
    torch.testing.assert_close(linear(features)(q, k, v, mask), expected, **EXACT)
    torch.testing.assert_close(linear(features, "recurrent")(q, k, v, mask), expected, **EXACT)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_packed_sequences_are_independent(features: Features, causal: bool) -> None:
    lengths = [5, 1, CHUNK + 2, 2]
    q, k, v = tensors(1, sum(lengths))
    layout, kind = Packed.of(lengths), linear(features)
    got = kind(q, k, v, Mask(queries=layout, keys=layout, causal=causal))
    parts = zip(*(x.split(lengths, 2) for x in (q, k, v)), strict=True)
    torch.testing.assert_close(got, torch.cat([kind(*part, Mask(causal=causal)) for part in parts], 2), **EXACT)


@pytest.mark.parametrize("features", FEATURES)
def test_fully_padded_rows_give_zeros_and_zero_gradients(features: Features) -> None:
    inputs = [x.requires_grad_() for x in tensors(2, 9)]
    layout = Padded.of([9, 0])
    for causal in (False, True):
        context = linear(features)(*inputs, Mask(queries=layout, keys=layout, causal=causal))
        assert (context[1] == 0).all()
        for grad in torch.autograd.grad(context.sin().sum(), inputs):
            assert (grad[1] == 0).all()
            assert (grad[0] != 0).any()


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("implementation", ["quadratic", "chunked", "recurrent"])
def test_gradients_are_correct(features: Features, implementation: LinearImplementation) -> None:
    layout = Padded.of([6, 3])
    inputs = tuple(x.requires_grad_() for x in tensors(2, 6))
    kind = linear(features, implementation).double()
    for mask in (Mask(keys=layout), Mask(causal=True)):
        assert torch.autograd.gradcheck(lambda *qkv, m=mask: kind(*qkv, m), inputs, fast_mode=True)


def test_gradients_over_several_chunks_agree_with_the_quadratic_form() -> None:
    inputs = [x.requires_grad_() for x in tensors(1, 2 * CHUNK + 3)]
    forms = [
        linear("elu", implementation)(*inputs, Mask(causal=True)).sin().sum()
        for implementation in ("quadratic", "chunked")
    ]
    for mine, theirs in zip(*(torch.autograd.grad(form, inputs) for form in forms), strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("features", FEATURES)
def test_lower_precision_agrees_within_rounding(features: Features, dtype: torch.dtype) -> None:
    for causal in (False, True):
        exact = linear(features)(*tensors(1, 300), Mask(causal=causal))
        rough = linear(features)(*tensors(1, 300, dtype=dtype), Mask(causal=causal))
        assert rough.dtype == dtype
        error = ((rough.double() - exact).norm() / exact.norm()).item()
        assert error < {torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]


@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_random_features_of_large_vectors_stay_finite(size: float) -> None:
    q, k, v = (x * size for x in tensors(1, 20, dtype=torch.float32))
    for causal in (False, True):
        assert linear("random")(q, k, v, Mask(causal=causal)).isfinite().all()


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("implementation", ["auto", "quadratic", "chunked", "recurrent"])
def test_there_may_be_no_queries(features: Features, implementation: LinearImplementation, causal: bool) -> None:
    for S in (0, 5):
        inputs = [torch.randn(2, H, n, D, dtype=torch.float64, requires_grad=True) for n in (0, S, S)]
        kind = linear(features, implementation)
        context = kind(*inputs, Mask(causal=causal))
        assert context.shape == (2, H, 0, D)
        torch.autograd.grad(context.sum(), inputs)
        assert LinearCache(kind.advance).attend(*(x[:, :, :0] for x in inputs), Mask(causal=True)).shape[2] == 0


# Decoding


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("chunks", [[1] * 12, [5, 1, 6], [12]], ids=str)
def test_cached_decoding_agrees_with_causal_attention(features: Features, chunks: list[int]) -> None:
    q, k, v = tensors(3, 12)
    kind = linear(features)
    cache = LinearCache(kind.advance)
    parts = zip(*(x.split(chunks, 2) for x in (q, k, v)), strict=True)
    steps = torch.cat([cache.attend(*part, Mask(causal=True)) for part in parts], 2)
    torch.testing.assert_close(steps, kind(q, k, v, Mask(causal=True)), **EXACT)
    assert cache.length == 12


def test_cache_has_constant_size() -> None:
    cache = LinearCache(linear("elu").advance)
    sizes = set()
    for _ in range(5):
        cache.attend(*tensors(2, 7), Mask(causal=True))
        assert cache.state is not None
        sizes.add(tuple(part.shape for part in cache.state))
    assert sizes == {((2, H, D, D), (2, H, D))}


@pytest.mark.parametrize("shared", [False, True], ids=["separate first tokens", "shared first token"])
def test_cache_is_reordered_with_its_hypotheses(shared: bool) -> None:
    kind = linear("elu")
    past, new = tensors(4, 6), tensors(4, 1)
    rows = torch.tensor([2, 2, 0, 3])
    cache = LinearCache(kind.advance, beam_width=2)  # two sentences with two hypotheses each
    if shared:
        past = tuple(torch.cat((x[::2, :, :1].repeat_interleave(2, 0), x[:, :, 1:]), 2) for x in past)
        cache.attend(*(x[::2, :, :1] for x in past), Mask())
    for t in range(shared, 6):
        cache.attend(*(merge_hypotheses(x[:, :, t : t + 1], 2) for x in past), Mask())
    got = cache.reorder(rows, None).attend(*(merge_hypotheses(x, 2) for x in new), Mask())
    sequences = [torch.cat((x[rows], y), 2) for x, y in zip(past, new, strict=True)]
    torch.testing.assert_close(got, merge_hypotheses(kind(*sequences, Mask(causal=True))[:, :, -1:], 2), **EXACT)
    assert cache.length == (11 if shared else 12)


def merge_hypotheses(x: Tensor, copies: int) -> Tensor:
    """(B · copies, H, 1, D) to (B, H, copies, D)."""
    return x.view(-1, copies, H, D).transpose(1, 2)


def test_hook_is_rejected_while_decoding() -> None:
    module = Attention(16, 2, kind=Linear(8))
    module.qkv_hook = lambda *_: None
    with pytest.raises(ValueError, match="stores no keys"):
        module(torch.randn(1, 1, 16), cache=module.start_cache())


def test_dropout_on_weights_that_are_never_made_is_refused() -> None:
    with pytest.raises(ValueError, match="dropout"):
        linear("elu")(*tensors(1, 3), Mask(), 0.1)


def test_the_number_of_random_features_follows_the_width() -> None:
    assert Linear(64, "random").directions.shape == (256, 64)
    assert int(64 * math.log(64)) // 16 * 16 == 256
    assert Linear(64, "random", size=40).directions.shape == (40, 64)
