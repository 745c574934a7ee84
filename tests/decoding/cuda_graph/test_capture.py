"""When a search is captured, and when it falls back to plain search."""

from typing import Any

import pytest
import torch

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding import autoregressive
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph.capture import padded_batch_size, padded_length, why_not_capture_search
from regard.decoding.cuda_graph.search import CapturedSearch
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from tests.decoding.cuda_graph.models import peaked_model

MODEL = peaked_model()
REQUESTS = [DecodingRequest((5, 6, 7)), DecodingRequest((8, 9))]


@pytest.mark.parametrize("settings", [{}, {"beam": 1, "min_length": 3, "stop": "first", "alpha": 0.6}], ids=str)
def test_plain_searches_can_be_captured(settings: dict[str, Any]) -> None:
    assert why_not_capture_search([MODEL], REQUESTS, SearchSettings(**settings), False) is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"temperature": 0.7}, "sampling"),
        ({"coverage": 0.2}, "coverage"),
        ({"beam": 4, "groups": 2}, "groups"),
        ({"no_repeat": 3}, "no_repeat"),
        ({"beam": 17}, "wider than 16"),
    ],
)
def test_unsupported_settings_are_reasons_against_capture(settings: dict[str, Any], reason: str) -> None:
    assert reason in str(why_not_capture_search([MODEL], REQUESTS, SearchSettings(**settings), False))


@pytest.mark.parametrize("constraint", [{"prefix": (4,)}, {"required": ((4, 5),)}, {"forbidden": ((4,),)}])
def test_constraints_are_reasons_against_capture(constraint: dict[str, Any]) -> None:
    requests = [*REQUESTS, DecodingRequest((3,), **constraint)]
    assert "phrase" in str(why_not_capture_search([MODEL], requests, SearchSettings(), False))


def test_ensembles_traces_other_attention_and_hooks_are_reasons_against_capture() -> None:
    plain = SearchSettings()
    assert "ensemble" in str(why_not_capture_search([MODEL, MODEL], REQUESTS, plain, False))
    assert "traced" in str(why_not_capture_search([MODEL], REQUESTS, plain, trace=True))
    linear = peaked_model(attention={"kind": "linear"})
    assert "linear" in str(why_not_capture_search([linear], REQUESTS, plain, False))
    cross = MODEL.get_submodule("decoder.0.cross")
    assert isinstance(cross, Attention)
    with use_qkv_hook([cross], lambda *seen: None):
        assert "hook" in str(why_not_capture_search([MODEL], REQUESTS, plain, False))
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in str(why_not_capture_search([MODEL], REQUESTS, plain, False))


def test_the_generator_uses_captured_search_where_it_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings())
    monkeypatch.setattr(AutoregressiveGenerator, "capture_devices", ("cpu",))
    monkeypatch.setattr(autoregressive, "search_tokens", None)
    found = AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings())
    assert [best[0].tokens for best in found] == [best[0].tokens for best in expected]


def test_plain_search_is_used_if_memory_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(
        self: CapturedSearch, requests: list[DecodingRequest], settings: SearchSettings
    ) -> list[list[TokenHypothesis]]:
        raise torch.OutOfMemoryError("out of memory")

    expected = AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings())
    monkeypatch.setattr(AutoregressiveGenerator, "capture_devices", ("cpu",))
    monkeypatch.setattr(CapturedSearch, "search", fail)
    assert AutoregressiveGenerator([MODEL]).generate(REQUESTS, SearchSettings()) == expected


def test_sizes_are_rounded_up_to_few_values() -> None:
    assert [padded_batch_size(n) for n in (1, 3, 16, 17, 24, 25, 49, 64)] == [1, 4, 16, 24, 24, 32, 64, 64]
    assert [padded_length(n) for n in (1, 32, 33, 128, 129, 1000)] == [32, 32, 64, 128, 256, 1024]
    assert [padded_length(n, 40) for n in (30, 33, 41)] == [32, 40, 41]
