"""Which way a search goes, and why."""

from typing import Any

import pytest
import torch

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding import autoregressive
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph.conditions import obstacle, obstacle_anywhere
from regard.decoding.cuda_graph.search import CapturedSearch
from regard.decoding.search import TokenHypothesis
from tests.decoding.cuda_graph.models import decided_model

MODEL = decided_model()
REQUESTS = [DecodingRequest((5, 6, 7)), DecodingRequest((8, 9))]


def test_a_plain_search_has_no_obstacle_but_the_device() -> None:
    for settings in (SearchSettings(), SearchSettings(beam=1, min_length=3, stop="first", alpha=0.6)):
        assert obstacle_anywhere([MODEL], REQUESTS, settings, False) is None
        assert "cpu" in str(obstacle([MODEL], REQUESTS, settings, False))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": 0.7}, "sampling"),
        ({"coverage": 0.2}, "coverage"),
        ({"beam": 4, "groups": 2}, "groups"),
        ({"no_repeat": 3}, "no_repeat"),
        ({"beam": 17}, "wider than 16"),
    ],
)
def test_settings_that_it_does_not_know_are_an_obstacle(given: dict[str, Any], said: str) -> None:
    assert said in str(obstacle_anywhere([MODEL], REQUESTS, SearchSettings(**given), False))


@pytest.mark.parametrize("wish", [{"prefix": (4,)}, {"required": ((4, 5),)}, {"forbidden": ((4,),)}])
def test_wishes_are_an_obstacle(wish: dict[str, Any]) -> None:
    requests = [*REQUESTS, DecodingRequest((3,), **wish)]
    assert "phrase" in str(obstacle_anywhere([MODEL], requests, SearchSettings(), False))


def test_so_are_votes_trees_other_attention_and_whoever_looks_on() -> None:
    plain = SearchSettings()
    assert "vote" in str(obstacle_anywhere([MODEL, MODEL], REQUESTS, plain, False))
    assert "tree" in str(obstacle_anywhere([MODEL], REQUESTS, plain, trace=True))
    linear = decided_model(attention={"kind": "linear"})
    assert "linear" in str(obstacle_anywhere([linear], REQUESTS, plain, False))
    cross = MODEL.get_submodule("decoder.0.cross")
    assert isinstance(cross, Attention)
    with use_qkv_hook([cross], lambda *seen: None):
        assert "observes" in str(obstacle_anywhere([MODEL], REQUESTS, plain, False))
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in str(obstacle_anywhere([MODEL], REQUESTS, plain, False))


def test_where_there_is_none_the_writer_goes_the_fixed_way(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings())
    monkeypatch.setattr(autoregressive, "obstacle", obstacle_anywhere)
    monkeypatch.setattr(autoregressive, "search", None)
    found = AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings())
    assert [best[0].tokens for best in found] == [best[0].tokens for best in expected]


def test_where_memory_does_not_suffice_it_goes_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(
        self: CapturedSearch, requests: list[DecodingRequest], settings: SearchSettings
    ) -> list[list[TokenHypothesis]]:
        raise torch.OutOfMemoryError("no more")

    expected = AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings())
    monkeypatch.setattr(autoregressive, "obstacle", obstacle_anywhere)
    monkeypatch.setattr(CapturedSearch, "search", fail)
    assert AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings()) == expected
