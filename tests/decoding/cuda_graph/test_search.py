"""Search in memory of fixed size finds what search over a stepper finds, token for token."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from regard.decoding.config import SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import search as module
from regard.decoding.cuda_graph.capture import padded_batch_size, padded_length
from regard.decoding.cuda_graph.model_step import Reader, Shape
from regard.decoding.cuda_graph.search import CapturedSearch, bytes_of
from regard.decoding.cuda_graph.step_graph import Program
from regard.decoding.search import TokenHypothesis, search
from regard.decoding.stepper import TransformerStepper, pad_batch
from regard.errors import UserError
from regard.models.transformer import Transformer
from tests.decoding.cuda_graph.models import VOCAB, peaked_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
DRAW = random.Random(5)
SOURCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(1, 12))] for _ in range(80)]
MODEL = peaked_model().to(DEVICE)
KINDS: list[dict[str, Any]] = [
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


def fixed(model: Transformer, sources: Sequence[Sequence[int]], settings: SearchSettings, **how: Any) -> list[Any]:
    return CapturedSearch(model, **how).search([DecodingRequest(source) for source in sources], settings)


def settings_of(given: dict[str, Any]) -> SearchSettings:
    return SearchSettings(**({"max_ratio": 1.5, "max_extra": 3} | given))


def assert_same(found: list[list[TokenHypothesis]], expected: list[list[TokenHypothesis]]) -> None:
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_it_finds_what_the_reference_finds(given: dict[str, Any]) -> None:
    expected = search(TransformerStepper(MODEL), SOURCES, settings_of(given))
    assert_same(fixed(MODEL, SOURCES, settings_of(given)), expected)


@pytest.mark.parametrize("changes", KINDS, ids=str)
@pytest.mark.parametrize("beam", [1, 4])
def test_it_does_so_with_every_kind_of_model(changes: dict[str, Any], beam: int) -> None:
    model = peaked_model(**changes).to(DEVICE)
    settings = settings_of({"beam": beam, "n_best": min(beam, 2)})
    expected = search(TransformerStepper(model), SOURCES[:40], settings)
    assert len({len(best[0].tokens) for best in expected}) >= 4
    assert_same(fixed(model, SOURCES[:40], settings), expected)


@pytest.mark.parametrize("beam", [1, 4])
def test_company_changes_nothing(beam: int) -> None:
    settings = settings_of({"beam": beam})
    shared = CapturedSearch(MODEL)
    together = shared.search([DecodingRequest(source) for source in SOURCES], settings)
    for size in (1, 7):
        apart: list[list[TokenHypothesis]] = []
        for start in range(0, 35, size):
            apart += shared.search([DecodingRequest(source) for source in SOURCES[start : start + size]], settings)
        assert_same(apart, together[:35])


def test_one_search_leaves_nothing_behind_for_the_next() -> None:
    shared = CapturedSearch(MODEL)
    for given in (SETTINGS[2], SETTINGS[3], {"beam": 4, "max_length": 3}, SETTINGS[2]):
        settings = settings_of(given)
        expected = search(TransformerStepper(MODEL), SOURCES[:9], settings)
        assert_same(shared.search([DecodingRequest(source) for source in SOURCES[:9]], settings), expected)


@pytest.mark.parametrize("patience", [0, 2])
def test_what_is_left_goes_on_in_a_smaller_program(patience: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", patience)
    monkeypatch.setattr(module, "SMALL_BATCH", 4)
    moves = []
    monkeypatch.setattr(
        Program, "take_over", lambda self, *rest, do=Program.take_over: (moves.append(self.shape), do(self, *rest))
    )
    settings = settings_of({"beam": 4, "n_best": 2, "max_extra": 20})
    expected = search(TransformerStepper(MODEL), SOURCES, settings)
    assert_same(fixed(MODEL, SOURCES, settings), expected)
    assert moves
    assert all(2 * after.sentences <= before.sentences for before, after in pairwise(moves))


def test_too_many_sentences_for_the_memory_are_searched_in_parts() -> None:
    settings = settings_of({"beam": 4})
    few = CapturedSearch(MODEL)
    few.search([DecodingRequest(SOURCES[0])] * 8, settings)
    (shape,) = few._programs
    room = bytes_of(MODEL, shape)
    small = CapturedSearch(MODEL, memory=room)
    assert_same(
        small.search([DecodingRequest(source) for source in SOURCES[:20]], settings),
        search(TransformerStepper(MODEL), SOURCES[:20], settings),
    )
    assert sum(bytes_of(MODEL, shape) for shape in small._programs) <= room


def test_a_model_that_gives_nan_is_refused_and_does_no_harm_to_later_searches() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 4})
    shared = CapturedSearch(model)
    kept = model.target_embedding.weight.clone()
    model.target_embedding.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="not numbers"):
        shared.search([DecodingRequest(source) for source in SOURCES[:3]], settings)
    model.target_embedding.weight.copy_(kept)
    expected = search(TransformerStepper(model), SOURCES[:3], settings)
    assert_same(shared.search([DecodingRequest(source) for source in SOURCES[:3]], settings), expected)


def test_weights_that_change_in_place_are_seen() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 2})
    shared = CapturedSearch(model)
    before = shared.search([DecodingRequest(SOURCES[0])], settings)
    model.load_state_dict(peaked_model(seed=3).state_dict())
    after = shared.search([DecodingRequest(SOURCES[0])], settings)
    assert_same(after, search(TransformerStepper(model), SOURCES[:1], settings))
    assert after[0][0].tokens != before[0][0].tokens


def test_a_min_length_beyond_the_learned_positions_is_refused() -> None:
    model = peaked_model(positions="learned", max_length=16).to(DEVICE)
    with pytest.raises(UserError, match="learned positions end at 16"):
        fixed(model, SOURCES[:1], SearchSettings(beam=2, min_length=16))


def test_room_for_a_source_ends_where_learned_positions_do() -> None:
    model = peaked_model(positions="learned", max_length=24).to(DEVICE)
    fixed_search = CapturedSearch(model)
    fixed_search.search([DecodingRequest([5] * 20)], SearchSettings(beam=1, max_length=3))
    assert [shape.source for shape in fixed_search._programs] == [24]
    with pytest.raises(UserError, match="a sequence of 31 tokens is longer than this model's 24 learned positions"):
        fixed_search.search([DecodingRequest([5] * 30)], SearchSettings(beam=1, max_length=3))


def test_sources_encoded_with_room_to_spare_are_the_same() -> None:
    rows, layout = pad_batch([[5, 6, 7, 2], [8, 2]], 0, DEVICE)
    tight, roomy = (Reader(MODEL, Shape(4, 2, 32, 32)) for _ in range(2))
    with torch.inference_mode():
        for reader in (tight, roomy):
            reader.load(rows, layout)
        tight.encode(rows, layout)
        roomy.encode_room()
    for row, length in enumerate((4, 2)):
        torch.testing.assert_close(tight._sources[:, :, row, :, :length], roomy._sources[:, :, row, :, :length])


@pytest.mark.parametrize("beam", [1, 3])
def test_a_table_of_positions_that_must_grow_does(beam: int) -> None:
    model = peaked_model().to(DEVICE)
    long = [DRAW.randrange(3, VOCAB) for _ in range(300)]
    shared = CapturedSearch(model)
    for sources in ([SOURCES[0]], [long], [SOURCES[0], long]):
        settings = settings_of({"beam": beam, "max_length": 12})
        expected = search(TransformerStepper(model), sources, settings)
        assert_same(shared.search([DecodingRequest(source) for source in sources], settings), expected)


def test_there_are_few_sizes() -> None:
    sizes = {padded_batch_size(count) for count in range(1, 1025)}
    assert sorted(sizes) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert all(padded_batch_size(count) >= count for count in range(1, 1025))
    assert {padded_length(tokens) for tokens in range(1, 257)} == {32, 64, 96, 128, 256}
    assert all(padded_length(tokens) >= tokens for tokens in range(1, 600))


@on_gpu
@pytest.mark.parametrize("beam", [1, 4])
def test_on_a_gpu_a_recorded_step_does_what_the_step_does(beam: int) -> None:
    settings = settings_of({"beam": beam})
    recorded, done = fixed(MODEL, SOURCES, settings), fixed(MODEL, SOURCES, settings, capture=False)
    assert_same(recorded, done)
    on_cpu = search(TransformerStepper(peaked_model()), SOURCES, settings)
    assert_same(recorded, on_cpu)


@on_gpu
def test_on_a_gpu_weights_that_lie_elsewhere_are_recorded_anew() -> None:
    model = peaked_model().to(DEVICE)
    settings = settings_of({"beam": 2})
    shared = CapturedSearch(model)
    shared.search([DecodingRequest(SOURCES[0])], settings)
    other = peaked_model(seed=3).to(DEVICE)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        mine.data = theirs.data
    assert_same(
        shared.search([DecodingRequest(SOURCES[0])], settings), search(TransformerStepper(other), SOURCES[:1], settings)
    )


@on_gpu
def test_on_a_gpu_a_replayed_step_waits_for_nothing() -> None:
    shared = CapturedSearch(MODEL)
    settings = settings_of({"beam": 4})
    shared.search([DecodingRequest(source) for source in SOURCES[:8]], settings)
    (program,) = shared._programs.values()
    torch.cuda.set_sync_debug_mode("error")
    try:
        program.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@on_gpu
@pytest.mark.parametrize("beam", [1, 4])
def test_on_a_gpu_half_precision_seldom_says_anything_else(beam: int) -> None:
    settings = settings_of({"beam": beam})
    half = peaked_model().to(DEVICE, torch.bfloat16)
    expected = search(TransformerStepper(half), SOURCES, settings)
    found = fixed(half, SOURCES, settings)
    same = sum(one[0].tokens == other[0].tokens for one, other in zip(found, expected, strict=True))
    assert same >= 0.8 * len(SOURCES)
