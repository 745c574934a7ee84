"""Canvases filled in memory of fixed size say what those filled pass by pass say, token for token.

Models are those of test_parallel.py, in float64 on either device: their attention is so sharp that in float32 rounding
errors grow to some 1e-4.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding import nat as parallel
from regard.decoding.config import NATSettings
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import nat as module
from regard.decoding.cuda_graph.conditions import obstacle_to_canvases, obstacle_to_canvases_anywhere
from regard.decoding.cuda_graph.nat import CapturedNAT
from regard.decoding.cuda_graph.nat_graphs import FillingShape, PassShape
from regard.decoding.nat import NATGenerator, NATHypothesis
from regard.decoding.search import TokenHypothesis
from regard.errors import UserError
from regard.models.nat import NATransformer
from tests.decoding.test_nat import VOCAB, decided_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no CUDA device")
CLOSE = {"abs": 1e-5 if DEVICE.type == "cpu" else 3e-4}  # a GPU adds float32 in another order for every shape
DRAW = random.Random(7)
SOURCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(0, 12))] for _ in range(40)]
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("classifier", {"iterations": 1}),
    ("classifier", {"iterations": 4}),
    ("classifier", {"iterations": 4, "lengths": 3, "n_best": 3}),
    ("classifier", {"iterations": 1, "lengths": 50, "n_best": 50}),
    ("end", {"iterations": 1}),
    ("ctc", {"iterations": 1}),
]
KINDS: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"positions": "rotary", "norm": "pre"},
    {"positions": "learned", "max_length": 24},
    {"positions": "sinusoidal-halves", "activation": "swiglu", "tie": "none", "output_bias": True},
]


def small_model(length: str, **changes: Any) -> NATransformer:
    return decided_model(length, **changes).to(DEVICE)


MODELS = {length: small_model(length) for length in ("classifier", "end", "ctc")}


def write(
    generator: NATGenerator, sources: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[list[TokenHypothesis]]:
    return generator.generate([DecodingRequest(source) for source in sources], NATSettings(**given))


def pass_by_pass(
    model: NATransformer, sources: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[list[TokenHypothesis]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "obstacle_to_canvases", lambda *given: "a test wants the other way")
        return write(NATGenerator(model), sources, given)


def by_programs(
    generator: NATGenerator, sources: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[list[TokenHypothesis]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "obstacle_to_canvases", obstacle_to_canvases_anywhere)
        patch.setattr(NATGenerator, "_encode", None)
        return write(generator, sources, given)


def assert_same(found: list[list[TokenHypothesis]], expected: list[list[TokenHypothesis]]) -> None:
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert isinstance(one, NATHypothesis)
            assert isinstance(other, NATHypothesis)
            assert one.score == pytest.approx(other.score, **CLOSE)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, **CLOSE)
            assert (one.canvas, one.places) == (other.canvas, other.places)


@pytest.mark.parametrize(("length", "given"), WAYS, ids=str)
def test_they_say_the_same_in_whatever_company(length: str, given: dict[str, Any]) -> None:
    model = MODELS[length]
    shared = NATGenerator(model)
    expected = pass_by_pass(model, SOURCES, given)
    assert len({tuple(best[0].tokens) for best in expected}) > 10
    assert_same(by_programs(shared, SOURCES, given), expected)
    for size in (1, 7):  # programs are used again, for fewer and for shorter sentences than before
        apart: list[list[TokenHypothesis]] = []
        for start in range(0, 21, size):
            apart += by_programs(shared, SOURCES[start : start + size], given)
        assert_same(apart, expected[:21])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "given"), WAYS, ids=str)
def test_in_lower_precision_they_say_nearly_the_same(
    length: str, given: dict[str, Any], precision: torch.dtype
) -> None:
    model = small_model(length).to(precision)
    found, expected = by_programs(NATGenerator(model), SOURCES, given), pass_by_pass(model, SOURCES, given)
    pairs = [(one[0], other[0]) for one, other in zip(found, expected, strict=True)]
    same = [(one, other) for one, other in pairs if one.tokens == other.tokens]
    assert len(same) >= (0.95 if precision == torch.float32 else 0.5) * len(pairs)
    tolerance = 2e-3 if precision == torch.float32 else 0.5
    for one, other in same:
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=tolerance)


@pytest.mark.parametrize("changes", KINDS, ids=str)
@pytest.mark.parametrize(("length", "given"), [WAYS[1], WAYS[5]], ids=str)
def test_they_do_so_with_every_kind_of_model(changes: dict[str, Any], length: str, given: dict[str, Any]) -> None:
    model = small_model(length, **changes)
    assert_same(by_programs(NATGenerator(model), SOURCES, given), pass_by_pass(model, SOURCES, given))


@pytest.mark.parametrize(("length", "given"), WAYS, ids=str)
@pytest.mark.parametrize("sizes", [[0], [0, 0], [1], [23], [0, 1, 23], [300, 0]], ids=str)
def test_empty_and_long_sources_are_no_exception(sizes: list[int], length: str, given: dict[str, Any]) -> None:
    model = small_model(length)
    sources = [[DRAW.randrange(3, VOCAB) for _ in range(size)] for size in sizes]
    assert_same(by_programs(NATGenerator(model), sources, given), pass_by_pass(model, sources, given))


@pytest.mark.parametrize("length", ["classifier", "end", "ctc"])
def test_room_ends_where_learned_positions_do(length: str) -> None:
    model = small_model(length, positions="learned", max_length=24)
    sources = [[5] * 23, [6] * 20, []]
    assert_same(
        by_programs(NATGenerator(model), sources, {"iterations": 1}), pass_by_pass(model, sources, {"iterations": 1})
    )
    with pytest.raises(UserError, match="24 learned positions"):
        by_programs(NATGenerator(model), [[5] * 24], {"iterations": 1})


def test_the_shortest_canvases_need_no_further_round() -> None:
    model = small_model("classifier")
    model.length.weight.zero_()
    model.length.bias[3] = 9.0  # one less than the source
    sources = [[5, 6], [7, 8, 9], [10, 11, 12, 13]]
    found = by_programs(NATGenerator(model), sources, {"iterations": 4})
    assert [len(best[0].tokens) for best in found] == [1, 2, 3]
    assert_same(found, [pass_by_pass(model, [source], {"iterations": 4})[0] for source in sources])


@pytest.mark.parametrize(("length", "given"), [WAYS[2], WAYS[5]], ids=str)
def test_large_batches_are_neither_padded_nor_kept(
    length: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_TOKENS", 100)
    generator = NATGenerator(MODELS[length])
    assert_same(by_programs(generator, SOURCES, given), pass_by_pass(MODELS[length], SOURCES, given))
    with_room = [[5] * 30] * 3  # fewer than 100 tokens, but for the room
    assert_same(by_programs(generator, with_room, given), pass_by_pass(MODELS[length], with_room, given))
    assert not generator._fixed._programs


def test_few_programs_serve_many_batches_and_those_not_used_for_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = NATGenerator(MODELS["ctc"])
    for source in SOURCES:
        by_programs(generator, [source], {"iterations": 1})
    assert len(generator._fixed._programs) == 1
    monkeypatch.setattr(module, "MOST_PROGRAMS", 1)
    by_programs(generator, SOURCES[:2], {"iterations": 1})
    assert [shape.sentences for shape in generator._fixed._programs] == [2]


def test_weights_that_change_in_place_or_move_are_seen() -> None:
    model = small_model("ctc")
    generator = NATGenerator(model)
    before = by_programs(generator, SOURCES, {})
    model.target_embedding.weight.copy_(model.target_embedding.weight.flip(0))
    after = by_programs(generator, SOURCES, {})
    assert_same(after, pass_by_pass(model, SOURCES, {}))
    assert [best[0].tokens for best in after] != [best[0].tokens for best in before]
    kept = dict(generator._fixed._programs)
    model.target_embedding.weight.data = model.target_embedding.weight.flip(1)
    assert_same(by_programs(generator, SOURCES, {}), pass_by_pass(model, SOURCES, {}))
    assert all(generator._fixed._programs[shape] is not program for shape, program in kept.items())


# When they are taken


def test_plain_canvases_have_no_obstacle_but_the_device() -> None:
    for length, given in WAYS:
        model = decided_model(length)
        assert obstacle_to_canvases_anywhere(model, NATSettings(**given), False) is None
        assert "cpu" in str(obstacle_to_canvases(model, NATSettings(**given), False))


def test_what_is_an_obstacle() -> None:
    plain, model = NATSettings(), MODELS["ctc"]
    assert "prefix" in str(obstacle_to_canvases_anywhere(model, NATSettings(beam=2), False))
    assert "snapshots" in str(obstacle_to_canvases_anywhere(model, plain, trace=True))
    assert "16 iterations" in str(
        obstacle_to_canvases_anywhere(MODELS["classifier"], NATSettings(iterations=17), False)
    )
    linear = small_model("ctc", attention={"kind": "linear"})
    assert "linear" in str(obstacle_to_canvases_anywhere(linear, plain, False))
    for name in ("encoder.0.attention", "decoder.0.cross"):
        attention = model.get_submodule(name)
        assert isinstance(attention, Attention)
        with use_qkv_hook([attention], lambda *seen: None):
            assert "observes" in str(obstacle_to_canvases_anywhere(model, plain, False))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert "autocast" in str(obstacle_to_canvases_anywhere(model, plain, False))


def test_where_memory_does_not_suffice_they_are_filled_pass_by_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CapturedNAT, *given: object) -> None:
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(parallel, "obstacle_to_canvases", obstacle_to_canvases_anywhere)
    monkeypatch.setattr(CapturedNAT, "fill", fail)
    assert write(NATGenerator(MODELS["end"]), SOURCES, {}) == pass_by_pass(MODELS["end"], SOURCES, {})


# On a GPU


@on_gpu
@pytest.mark.parametrize(("length", "given"), WAYS, ids=str)
def test_on_a_gpu_recorded_programs_do_what_the_programs_do(length: str, given: dict[str, Any]) -> None:
    recorded, done = NATGenerator(MODELS[length]), NATGenerator(MODELS[length])
    done._fixed = CapturedNAT(MODELS[length], records=False)
    expected = by_programs(done, SOURCES, given)
    for _ in range(2):
        assert_same(write(recorded, SOURCES, given), expected)
    assert recorded._fixed._programs
    assert_same(expected, pass_by_pass(decided_model(length), SOURCES, given))


@on_gpu
def test_on_a_gpu_programs_that_share_memory_do_not_disturb_each_other() -> None:
    generator = NATGenerator(MODELS["classifier"])
    given = {"iterations": 4, "lengths": 3}
    batches = [SOURCES[:1], SOURCES[:9], [[5] * 40], SOURCES]
    expected = [pass_by_pass(MODELS["classifier"], batch, given) for batch in batches]
    for _ in range(2):
        for batch, wanted in zip(batches, expected, strict=True):
            assert_same(write(generator, batch, given), wanted)


@on_gpu
@pytest.mark.parametrize("length", ["classifier", "ctc"])
def test_on_a_gpu_replaying_waits_for_nothing(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    write(generator, SOURCES[:8], {})
    programs = list(generator._fixed._programs.values())
    assert any(isinstance(program.shape, FillingShape if length == "classifier" else PassShape) for program in programs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for program in programs:
            program._play()
    finally:
        torch.cuda.set_sync_debug_mode("default")
