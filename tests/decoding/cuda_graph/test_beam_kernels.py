"""The kernels of the board do what its plain operations do, whatever the logits."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention.core import Full
from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import beam as board
from regard.decoding.cuda_graph import beam_kernel as launch
from regard.decoding.cuda_graph.beam import Board
from regard.decoding.cuda_graph.beam_kernel import Launcher
from regard.decoding.cuda_graph.model_step import FixedCache, Shape
from regard.decoding.cuda_graph.search import CapturedSearch
from regard.ops import dispatch
from tests.decoding.cuda_graph.models import peaked_model

pytestmark = pytest.mark.skipif(not dispatch.TRITON_INSTALLED, reason="there is no Triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EOS, BOS, PART = 2, 1, 16


def boards(B: int, K: int, T: int, V: int, limits: list[int], given: dict[str, Any]) -> tuple[Board, Board]:
    """Two boards before the first step, the second of which uses kernels."""
    plain, fast = (Board(Shape(B, K, 32, T), BOS, EOS, V, DEVICE) for _ in range(2))
    plain.launcher, fast.launcher = None, Launcher(fast, V, PART)
    for one in (plain, fast):
        one.start(torch.tensor(limits, device=DEVICE), SearchSettings(beam=K, **given))
    return plain, fast


def logits(B: int, K: int, V: int, seed: int) -> Iterator[Tensor]:
    """Of one step after the other; END has a chance."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        x = 3 * torch.randn(B, K, V, generator=draw)
        x[..., EOS] += 2
        yield x.to(DEVICE)


def found(one: Board, rows: int, n_best: int) -> list[list[tuple[list[int], list[float]]]]:
    return [
        [(hypothesis.tokens, [hypothesis.score, *hypothesis.token_log_probs]) for hypothesis in best]
        for best in one.collect(range(rows), n_best)
    ]


@settings(max_examples=6, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    K=st.sampled_from((1, 2, 3, 4)),
    limits=st.lists(st.integers(1, 5), min_size=1, max_size=2),
    V=st.sampled_from((11, 16, 37)),
    stop=st.sampled_from(("exact", "first")),
    alpha=st.sampled_from((0.0, 0.6, 1.5)),
    min_length=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
def test_the_same_hypotheses_live_and_end(
    K: int, limits: list[int], V: int, stop: str, alpha: float, min_length: int, seed: int
) -> None:
    limits = [max(limit, min_length + 1) for limit in limits]
    given = {"stop": stop, "alpha": alpha, "min_length": min_length, "n_best": max(1, K - 1)}
    plain, fast = boards(len(limits) + 1, K, 6, V, limits, given)
    for _, x in zip(range(max(limits)), logits(len(limits) + 1, K, V, seed), strict=False):
        for one in (plain, fast):
            one.advance(x)
        alive = plain.totals > -torch.inf
        assert torch.equal(plain.news, fast.news)
        assert torch.equal(alive, fast.totals > -torch.inf)
        torch.testing.assert_close(plain.totals, fast.totals, atol=1e-5, rtol=0)
        assert torch.equal(plain.last[alive], fast.last[alive])
        now = int(plain.step)
        lines = [one.lines[:, :K, : now + 1][alive] for one in (plain, fast)]
        assert torch.equal(*lines)
    assert int(plain.news[0]) == 0
    for mine, theirs in zip(found(fast, len(limits), K), found(plain, len(limits), K), strict=True):
        assert [tokens for tokens, _ in mine] == [tokens for tokens, _ in theirs]
        for (_, numbers), (_, expected) in zip(mine, theirs, strict=True):
            assert numbers == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_are_reported(bad: float) -> None:
    for one in boards(3, 2, 4, 20, [4, 4, 4], {}):
        steps = logits(3, 2, 20, 0)
        one.advance(next(steps))
        assert one.news.tolist() == [3, 0]
        x = next(steps)
        x[1, 0] = bad
        one.advance(x)
        one.advance(next(steps))
        assert int(one.news[1]) == 1


def test_a_vocabulary_smaller_than_the_candidates_is_enough() -> None:
    plain, fast = boards(1, 4, 6, 5, [6], {"n_best": 4})
    for _, x in zip(range(6), logits(1, 4, 5, 3), strict=False):
        plain.advance(x)
        fast.advance(x)
    assert [tokens for tokens, _ in found(fast, 1, 4)[0]] == [tokens for tokens, _ in found(plain, 1, 4)[0]]


def test_a_whole_search_by_kernels_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = peaked_model(encoder_layers=1, decoder_layers=1).to(DEVICE)
    requests = [DecodingRequest((5, 9, 30)), DecodingRequest((8, 50)), DecodingRequest((7,))]
    wanted = SearchSettings(beam=2, max_length=6, n_best=2)
    monkeypatch.setattr(launch, "ENABLED", False)
    expected = CapturedSearch(model, capture=False).search(requests, wanted)
    monkeypatch.setattr(board, "usable", lambda device, beam: True)
    monkeypatch.setattr(launch, "PART", 32)
    found = CapturedSearch(model, capture=False).search(requests, wanted)
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]


@pytest.mark.parametrize("K", [1, 3])
def test_keys_and_values_are_put_where_plain_operations_put_them(K: int) -> None:
    B, H, T, D = 2, 3, 4, 16
    qkv = torch.randn(B, K, 3, H, D, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    k, v = (part.transpose(1, 2) for part in qkv.unbind(2)[1:])
    step = torch.tensor([2], device=DEVICE)
    plain, fast = (FixedCache(Full(), torch.zeros(2, B, H, T * K, D, device=DEVICE), step, K) for _ in range(2))
    for place, new in zip(plain._by_step, (k, v), strict=True):
        place.index_copy_(2, step, new[:, :, None])
    fast.append_by_kernel(k, v)
    assert torch.equal(plain.room, fast.room)
    assert plain.room[:, :, :, 2 * K : 3 * K].all()
