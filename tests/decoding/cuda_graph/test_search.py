"""Search in static tensors finds the same tokens as search with a stepper."""

import gc
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import search as module
from regard.decoding.cuda_graph.capture import padded_batch_size, padded_length
from regard.decoding.cuda_graph.captured_step import CapturedStep, SearchShape
from regard.decoding.cuda_graph.search import CapturedSearch, memory_of
from regard.decoding.settings import SearchSettings
from regard.decoding.stepper import TokenHypothesis
from regard.errors import UserError
from regard.masks import pad_batch
from regard.models.transformer import Transformer
from tests.decoding.cuda_graph.models import VOCAB, peaked_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
DRAW = random.Random(5)
SOURCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(1, 12))] for _ in range(80)]
MODEL = peaked_model().to(DEVICE)
MODEL_CHANGES: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"positions": "rotary", "norm": "pre"},
    {"positions": "learned", "max_length": 24},
    {"positions": "sinusoidal-halves", "activation": "swiglu", "tie": "none", "output_bias": True},
]
SETTINGS: list[dict[str, Any]] = [
    {"beam": 1},
    {"beam": 1, "min_length": 4},
    {"beam": 4},
    {"beam": 4, "stop": "first", "n_best": 3},
    {"beam": 5, "n_best": 5, "length_penalty": "wu", "alpha": 0.6},
    {"beam": 3, "length_penalty": "none", "min_length": 3},
    {"beam": 4, "alpha": 2.0, "n_best": 2},
    {"beam": 2, "max_length": 5, "min_length": 4},
    {"beam": 4, "max_length": 1},
]


def requests_of(sources: Sequence[Sequence[int]]) -> list[DecodingRequest]:
    return [DecodingRequest(source) for source in sources]


def static_search(
    model: Transformer, sources: Sequence[Sequence[int]], settings: SearchSettings, capture: bool | None = None
) -> list[list[TokenHypothesis]]:
    return CapturedSearch(model, capture).search(requests_of(sources), settings)


def settings_of(given: dict[str, Any]) -> SearchSettings:
    return SearchSettings(**({"max_ratio": 1.5, "max_extra": 3} | given))


def assert_same(found: list[list[TokenHypothesis]], expected: list[list[TokenHypothesis]]) -> None:
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_static_search_agrees_with_plain_search(given: dict[str, Any]) -> None:
    expected = search_tokens(TransformerStepper(MODEL), SOURCES, settings_of(given))
    assert_same(static_search(MODEL, SOURCES, settings_of(given)), expected)


@pytest.mark.parametrize("changes", MODEL_CHANGES, ids=str)
@pytest.mark.parametrize("beam", [1, 4])
def test_every_model_variant_agrees(changes: dict[str, Any], beam: int) -> None:
    model = peaked_model(**changes).to(DEVICE)
    settings = settings_of({"beam": beam, "n_best": min(beam, 2)})
    expected = search_tokens(TransformerStepper(model), SOURCES[:40], settings)
    assert len({len(best[0].tokens) for best in expected}) >= 4
    assert_same(static_search(model, SOURCES[:40], settings), expected)


@pytest.mark.parametrize("beam", [1, 4])
def test_results_do_not_depend_on_the_batch(beam: int) -> None:
    settings = settings_of({"beam": beam})
    shared = CapturedSearch(MODEL)
    together = shared.search(requests_of(SOURCES), settings)
    for size in (1, 7):
        apart: list[list[TokenHypothesis]] = []
        for start in range(0, 35, size):
            apart += shared.search(requests_of(SOURCES[start : start + size]), settings)
        assert_same(apart, together[:35])


def test_a_search_does_not_affect_the_next_one() -> None:
    shared = CapturedSearch(MODEL)
    for given in (SETTINGS[2], SETTINGS[3], {"beam": 4, "max_length": 3}, SETTINGS[2]):
        settings = settings_of(given)
        expected = search_tokens(TransformerStepper(MODEL), SOURCES[:9], settings)
        assert_same(shared.search(requests_of(SOURCES[:9]), settings), expected)


@pytest.mark.parametrize("steps", [0, 2])
def test_remaining_sentences_continue_in_a_smaller_shape(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEPS_BEFORE_CAPTURE", steps)
    monkeypatch.setattr(module, "SMALL_BATCH", 4)
    shapes = []
    copy_rows = CapturedStep.copy_rows

    def spy(self: CapturedStep, *arguments: Any) -> None:
        shapes.append(self.shape)
        copy_rows(self, *arguments)

    monkeypatch.setattr(CapturedStep, "copy_rows", spy)
    settings = settings_of({"beam": 4, "n_best": 2, "max_extra": 20})
    expected = search_tokens(TransformerStepper(MODEL), SOURCES, settings)
    assert_same(static_search(MODEL, SOURCES, settings), expected)
    assert shapes
    assert all(2 * after.sentences <= before.sentences for before, after in pairwise(shapes))


def test_remaining_sentences_continue_in_an_existing_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    copy_rows = CapturedStep.copy_rows

    def spy(self: CapturedStep, *arguments: Any) -> None:
        used.append(self)
        copy_rows(self, *arguments)

    monkeypatch.setattr(CapturedStep, "copy_rows", spy)
    settings = settings_of({"beam": 4})
    shared = CapturedSearch(MODEL)
    shared.search(requests_of(SOURCES[:16]), settings)
    shared.search(requests_of(SOURCES[:16]), settings.changed(beam=3))
    (existing,) = (step for shape, step in shared._steps.items() if shape.beam_width == 4)
    found = shared.search(requests_of(SOURCES), settings)
    assert_same(found, search_tokens(TransformerStepper(MODEL), SOURCES, settings))
    assert used == [existing]
    assert len(shared._steps) == 3


def test_batches_that_exceed_the_memory_are_split() -> None:
    settings = settings_of({"beam": 4})
    few = CapturedSearch(MODEL)
    few.search([DecodingRequest(SOURCES[0])] * 8, settings)
    (shape,) = few._steps
    memory = memory_of(MODEL, shape)
    small = CapturedSearch(MODEL, memory=memory)
    assert_same(
        small.search(requests_of(SOURCES[:20]), settings),
        search_tokens(TransformerStepper(MODEL), SOURCES[:20], settings),
    )
    assert sum(memory_of(MODEL, shape) for shape in small._steps) <= memory


def test_nan_is_rejected_and_does_not_affect_later_searches() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 4})
    shared = CapturedSearch(model)
    kept = model.target_embedding.weight.clone()
    model.target_embedding.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="NaN"):
        shared.search(requests_of(SOURCES[:3]), settings)
    model.target_embedding.weight.copy_(kept)
    expected = search_tokens(TransformerStepper(model), SOURCES[:3], settings)
    assert_same(shared.search(requests_of(SOURCES[:3]), settings), expected)


@pytest.mark.usefixtures("graphs")
def test_memory_pool_is_replaced_with_its_last_graph() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 2})
    shared = CapturedSearch(model, capture=True)
    first = shared.search(requests_of(SOURCES[:3]), settings)
    shared._steps.clear()
    gc.collect()
    assert_same(shared.search(requests_of(SOURCES[:3]), settings), first)


def test_weights_changed_in_place_are_used() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 2})
    shared = CapturedSearch(model)
    before = shared.search([DecodingRequest(SOURCES[0])], settings)
    model.load_state_dict(peaked_model(seed=3).state_dict())
    after = shared.search([DecodingRequest(SOURCES[0])], settings)
    assert_same(after, search_tokens(TransformerStepper(model), SOURCES[:1], settings))
    assert after[0][0].tokens != before[0][0].tokens


def test_a_min_length_beyond_the_learned_positions_is_rejected() -> None:
    model = peaked_model(positions="learned", max_length=16).to(DEVICE)
    with pytest.raises(UserError, match="16 learned positions"):
        static_search(model, SOURCES[:1], SearchSettings(beam=2, min_length=16))


def test_padding_of_sources_does_not_exceed_learned_positions() -> None:
    model = peaked_model(positions="learned", max_length=24).to(DEVICE)
    captured = CapturedSearch(model)
    captured.search([DecodingRequest([5] * 20)], SearchSettings(beam=1, max_length=3))
    assert [shape.source for shape in captured._steps] == [24]
    with pytest.raises(UserError, match="a sequence of 31 tokens is longer than this model's 24 learned positions"):
        captured.search([DecodingRequest([5] * 30)], SearchSettings(beam=1, max_length=3))


def test_padding_does_not_change_encoded_sources() -> None:
    tokens, layout = pad_batch([[5, 6, 7, 2], [8, 2]], 0, DEVICE)
    tight, padded = (CapturedStep(MODEL, SearchShape(4, 2, 32, 32), capture=False).decoder for _ in range(2))
    with torch.inference_mode():
        for state in (tight, padded):
            state.load(tokens, layout)
        tight.encode(tokens, layout)
        padded.encode_padded()
    for row, length in enumerate((4, 2)):
        torch.testing.assert_close(tight._source[:, :, row, :, :length], padded._source[:, :, row, :, :length])


@pytest.mark.parametrize("beam", [1, 3])
def test_position_tables_grow(beam: int) -> None:
    model = peaked_model().to(DEVICE)
    long = [DRAW.randrange(3, VOCAB) for _ in range(300)]
    shared = CapturedSearch(model)
    for sources in ([SOURCES[0]], [long], [SOURCES[0], long]):
        settings = settings_of({"beam": beam, "max_length": 12})
        expected = search_tokens(TransformerStepper(model), sources, settings)
        assert_same(shared.search(requests_of(sources), settings), expected)


def test_all_batches_have_few_padded_sizes() -> None:
    sizes = {padded_batch_size(count) for count in range(1, 1025)}
    assert sorted(sizes) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(padded_batch_size(count) >= count for count in range(1, 1025))
    assert {padded_length(tokens) for tokens in range(1, 257)} == {32, 64, 96, 128, 256}
    assert all(padded_length(tokens) >= tokens for tokens in range(1, 600))


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize("beam", [1, 4])
def test_replayed_steps_agree_with_direct_calls(beam: int) -> None:
    settings = settings_of({"beam": beam})
    shared = CapturedSearch(MODEL, capture=True)
    expected = search_tokens(TransformerStepper(peaked_model()), SOURCES, settings)
    for sources in (SOURCES, SOURCES[60:], SOURCES):  # the second batch is smaller but has the same padded shape
        replayed = shared.search(requests_of(sources), settings)
        assert_same(replayed, static_search(MODEL, sources, settings, capture=False))
        assert_same(replayed, expected[-len(sources) :])
    step = next(iter(shared._steps.values()))
    assert step._step_graph is not None
    assert step._encoder_graph is not None


@pytest.mark.usefixtures("graphs")
def test_large_sources_are_encoded_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.decoding.cuda_graph.captured_step.MAX_CAPTURED_TOKENS", 127)
    settings = settings_of({"beam": 2})
    for count, has_graph in ((2, True), (4, False)):  # 2 · 32 and 4 · 32 padded tokens
        shared = CapturedSearch(MODEL, capture=True)
        found = shared.search(requests_of(SOURCES[:count]), settings)
        assert_same(found, search_tokens(TransformerStepper(MODEL), SOURCES[:count], settings))
        (step,) = shared._steps.values()
        assert (step._encoder_graph is not None) == has_graph


@pytest.mark.usefixtures("graphs")
def test_steps_are_captured_again_after_weights_moved() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 2})
    shared = CapturedSearch(model, capture=True)
    shared.search([DecodingRequest(SOURCES[0])], settings)
    other = peaked_model(seed=3).to(DEVICE)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data
    assert_same(
        shared.search([DecodingRequest(SOURCES[0])], settings),
        search_tokens(TransformerStepper(other), SOURCES[:1], settings),
    )


@on_gpu
def test_a_replayed_step_does_not_synchronise() -> None:
    shared = CapturedSearch(MODEL)
    settings = settings_of({"beam": 4})
    shared.search(requests_of(SOURCES[:8]), settings)
    (step,) = shared._steps.values()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
@pytest.mark.parametrize("beam", [1, 4])
def test_most_sentences_agree_in_bfloat16(beam: int) -> None:
    settings = settings_of({"beam": beam})
    half = peaked_model().to(DEVICE, torch.bfloat16)
    expected = search_tokens(TransformerStepper(half), SOURCES, settings)
    found = static_search(half, SOURCES, settings)
    same = sum(one[0].tokens == other[0].tokens for one, other in zip(found, expected, strict=True))
    assert same >= 0.8 * len(SOURCES)
