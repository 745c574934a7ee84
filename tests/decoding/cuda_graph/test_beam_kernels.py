"""The kernels of a captured step agree with the PyTorch operations that they replace."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.kinds import Full
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import beam as module
from regard.decoding.cuda_graph.beam import BeamKernels, BeamState
from regard.decoding.cuda_graph.captured_step import StaticCache
from regard.decoding.cuda_graph.search import CapturedSearch
from regard.decoding.settings import SearchSettings
from regard.ops import dispatch
from tests.decoding.cuda_graph.models import peaked_model

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="Triton is not installed")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EOS, BOS, CHUNK = 2, 1, 16


def start_beams(
    B: int, K: int, T: int, V: int, max_lengths: list[int], options: dict[str, Any]
) -> tuple[BeamState, BeamState]:
    """Return two beams before the first step; the second uses kernels."""
    plain, fast = (BeamState(B, K, T, BOS, EOS, V, DEVICE) for _ in range(2))
    plain.kernels, fast.kernels = None, BeamKernels(fast, V, CHUNK)
    for beam in (plain, fast):
        beam.start(torch.tensor(max_lengths, device=DEVICE), SearchSettings(beam=K, **options))
    return plain, fast


def random_logits(B: int, K: int, V: int, seed: int) -> Iterator[Tensor]:
    """Yield the logits of each step, in which END is more probable than other tokens."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        x = 3 * torch.randn(B, K, V, generator=draw)
        x[..., EOS] += 2
        yield x.to(DEVICE)


def results_of(beam: BeamState, rows: int, n_best: int) -> list[list[tuple[list[int], list[float]]]]:
    """Return the tokens and all scores of each hypothesis."""
    return [
        [(hypothesis.tokens, [hypothesis.score, *hypothesis.token_log_probs]) for hypothesis in best]
        for best in beam.collect(range(rows), n_best)
    ]


@settings(max_examples=6, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    K=st.sampled_from((1, 2, 3, 4)),
    max_lengths=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    V=st.sampled_from((11, 16, 37)),
    stop=st.sampled_from(("exact", "first")),
    alpha=st.sampled_from((0.0, 0.6, 1.5)),
    min_length=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_kernels_agree_with_the_reference(
    K: int, max_lengths: list[int], V: int, stop: str, alpha: float, min_length: int, seed: int
) -> None:
    max_lengths = [max(length, min_length + 1) for length in max_lengths]
    options = {"stop": stop, "alpha": alpha, "min_length": min_length, "n_best": max(1, K - 1)}
    B = len(max_lengths) + 1  # one row without a sentence
    plain, fast = start_beams(B, K, 6, V, max_lengths, options)
    for _, logits in zip(range(max(max_lengths)), random_logits(B, K, V, seed), strict=False):
        for beam in (plain, fast):
            beam.advance(logits)
        live = plain.log_probs > -torch.inf
        assert torch.equal(plain.status, fast.status)
        assert torch.equal(live, fast.log_probs > -torch.inf)
        torch.testing.assert_close(plain.log_probs, fast.log_probs, atol=1e-5, rtol=0)
        assert torch.equal(plain.last[live], fast.last[live])
        steps = int(plain.step) + 1
        assert torch.equal(plain.slots[:, :K, :steps][live], fast.slots[:, :K, :steps][live])
    assert int(plain.status[0]) == 0
    for found, expected in zip(results_of(fast, B - 1, K), results_of(plain, B - 1, K), strict=True):
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        for (_, scores), (_, expected_scores) in zip(found, expected, strict=True):
            assert scores == pytest.approx(expected_scores, abs=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_infinite_logits_are_reported(bad: float) -> None:
    for beam in start_beams(3, 2, 4, 20, [4, 4, 4], {}):
        steps = random_logits(3, 2, 20, 0)
        beam.advance(next(steps))
        assert beam.status.tolist() == [3, 0]
        logits = next(steps)
        logits[1, 0] = bad
        beam.advance(logits)
        beam.advance(next(steps))
        assert int(beam.status[1]) == 1


def test_a_vocabulary_may_be_smaller_than_the_number_of_candidates() -> None:
    plain, fast = start_beams(1, 4, 6, 5, [6], {"n_best": 4})
    for _, logits in zip(range(6), random_logits(1, 4, 5, 3), strict=False):
        plain.advance(logits)
        fast.advance(logits)
    found, expected = ([tokens for tokens, _ in results_of(beam, 1, 4)[0]] for beam in (fast, plain))
    assert found == expected


def test_a_search_with_kernels_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = peaked_model(encoder_layers=1, decoder_layers=1).to(DEVICE)
    requests = [DecodingRequest((5, 9, 30)), DecodingRequest((8, 50)), DecodingRequest((7,))]
    options = SearchSettings(beam=2, max_length=6, n_best=2)
    monkeypatch.setattr(module, "beam_kernels_apply", lambda device, beam_width: False)
    expected = CapturedSearch(model, capture=False).search(requests, options)
    monkeypatch.setattr(module, "beam_kernels_apply", lambda device, beam_width: True)
    monkeypatch.setattr(module, "CHUNK", 32)
    found = CapturedSearch(model, capture=False).search(requests, options)
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]


@pytest.mark.parametrize("K", [1, 3])
def test_the_cache_kernel_stores_keys_and_values_like_plain_operations(K: int) -> None:
    B, H, T, D = 2, 3, 4, 16
    qkv = torch.randn(B, K, 3, H, D, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    k, v = (part.transpose(1, 2) for part in qkv.unbind(2)[1:])
    step = torch.tensor([2], device=DEVICE)
    plain, fast = (StaticCache(Full(), torch.zeros(2, B, H, T * K, D, device=DEVICE), step, K) for _ in range(2))
    for part, new in zip(plain._by_step, (k, v), strict=True):
        part.index_copy_(2, step, new[:, :, None])
    fast.append_by_kernel(k, v)
    assert torch.equal(plain.buffer, fast.buffer)
    assert plain.buffer[:, :, :, 2 * K : 3 * K].all()
