"""Decoding on static tensors gives the same tokens as plain non-autoregressive decoding.

The models of test_nat.py are used in float64: their attention is so sharp that rounding errors in float32 grow to about
1e-4.
"""

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from regard.attention.multi_head import Attention, use_qkv_hook
from regard.decoding.constraints import DecodingRequest
from regard.decoding.cuda_graph import nat as module
from regard.decoding.cuda_graph.capture import why_not_capture_nat
from regard.decoding.cuda_graph.nat import CapturedNAT
from regard.decoding.nat import NATGenerator
from regard.decoding.settings import NATSettings
from regard.decoding.stepper import NATHypothesis, TokenHypothesis
from regard.errors import UserError
from regard.models.nat import NATransformer
from tests.decoding.test_nat import VOCAB, peaked_model

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
on_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device")
CLOSE = {"abs": 1e-5 if DEVICE.type == "cpu" else 3e-4}  # on a GPU the order of summation depends on the shape
DRAW = random.Random(7)
SOURCES = [[DRAW.randrange(3, VOCAB) for _ in range(DRAW.randint(0, 12))] for _ in range(40)]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("classifier", {"iterations": 1}),
    ("classifier", {"iterations": 4}),
    ("classifier", {"iterations": 4, "lengths": 3, "n_best": 3}),
    ("classifier", {"iterations": 1, "lengths": 50, "n_best": 50}),
    ("end", {"iterations": 1}),
    ("ctc", {"iterations": 1}),
    ("dag", {"iterations": 1}),
    ("dag", {"path": "greedy"}),
]
MODEL_CHANGES: list[dict[str, Any]] = [
    {"norm": "pre"},
    {"positions": "rotary", "norm": "pre"},
    {"positions": "learned", "max_length": 24, "layer_predictions": True, "upsample_mode": "mask"},
    {"positions": "sinusoidal-halves", "activation": "swiglu", "tie": "none", "output_bias": True},
]


def small_model(length: str, **changes: Any) -> NATransformer:
    return peaked_model(length, **changes).to(DEVICE)


MODELS = {length: small_model(length) for length in ("classifier", "end", "ctc", "dag")}


def generate(
    generator: NATGenerator, sources: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[list[TokenHypothesis]]:
    return generator.generate([DecodingRequest(source) for source in sources], NATSettings(**given))


def generate_plain(
    model: NATransformer, sources: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[list[TokenHypothesis]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NATGenerator, "capture_devices", ())
        return generate(NATGenerator(model), sources, given)


def generate_static(
    generator: NATGenerator, sources: Sequence[Sequence[int]], given: dict[str, Any]
) -> list[list[TokenHypothesis]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NATGenerator, "capture_devices", ("cpu", "cuda"))
        patch.setattr(NATGenerator, "_encode", None)  # plain decoding fails
        return generate(generator, sources, given)


def assert_same(found: list[list[TokenHypothesis]], expected: list[list[TokenHypothesis]]) -> None:
    assert [[one.tokens for one in best] for best in found] == [[one.tokens for one in best] for best in expected]
    for mine, theirs in zip(found, expected, strict=True):
        for one, other in zip(mine, theirs, strict=True):
            assert isinstance(one, NATHypothesis)
            assert isinstance(other, NATHypothesis)
            assert one.score == pytest.approx(other.score, **CLOSE)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, **CLOSE)
            assert (one.decoder_input, one.positions) == (other.decoder_input, other.positions)


@pytest.mark.parametrize(("length", "given"), CASES, ids=str)
def test_static_decoding_agrees_with_plain_decoding_in_any_batch(length: str, given: dict[str, Any]) -> None:
    model = MODELS[length]
    shared = NATGenerator(model)
    expected = generate_plain(model, SOURCES, given)
    assert len({tuple(best[0].tokens) for best in expected}) > 10
    assert_same(generate_static(shared, SOURCES, given), expected)
    for size in (1, 7):  # graphs are reused for fewer and shorter sentences
        apart: list[list[TokenHypothesis]] = []
        for start in range(0, 21, size):
            apart += generate_static(shared, SOURCES[start : start + size], given)
        assert_same(apart, expected[:21])


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "given"), CASES, ids=str)
def test_in_lower_precision_most_sentences_agree(length: str, given: dict[str, Any], precision: torch.dtype) -> None:
    model = small_model(length).to(precision)
    found, expected = generate_static(NATGenerator(model), SOURCES, given), generate_plain(model, SOURCES, given)
    pairs = [(one[0], other[0]) for one, other in zip(found, expected, strict=True)]
    same = [(one, other) for one, other in pairs if one.tokens == other.tokens]
    assert len(same) >= (0.95 if precision == torch.float32 else 0.5) * len(pairs)
    tolerance = 2e-3 if precision == torch.float32 else 0.5
    for one, other in same:
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=tolerance)


@pytest.mark.parametrize("changes", MODEL_CHANGES, ids=str)
@pytest.mark.parametrize(("length", "given"), [CASES[1], CASES[5]], ids=str)
def test_every_model_variant_agrees(changes: dict[str, Any], length: str, given: dict[str, Any]) -> None:
    model = small_model(length, **changes)
    assert_same(generate_static(NATGenerator(model), SOURCES, given), generate_plain(model, SOURCES, given))


@pytest.mark.parametrize(("length", "given"), CASES, ids=str)
@pytest.mark.parametrize("sizes", [[0], [0, 0], [1], [23], [0, 1, 23], [300, 0]], ids=str)
def test_empty_and_long_sources_agree(sizes: list[int], length: str, given: dict[str, Any]) -> None:
    model = small_model(length)
    sources = [[DRAW.randrange(3, VOCAB) for _ in range(size)] for size in sizes]
    assert_same(generate_static(NATGenerator(model), sources, given), generate_plain(model, sources, given))


@pytest.mark.parametrize("length", ["classifier", "end", "ctc", "dag"])
def test_padding_does_not_exceed_learned_positions(length: str) -> None:
    model = small_model(length, positions="learned", max_length=24)
    sources = [[5] * 23, [6] * 20, []]
    assert_same(
        generate_static(NATGenerator(model), sources, {"iterations": 1}),
        generate_plain(model, sources, {"iterations": 1}),
    )
    with pytest.raises(UserError, match="24 learned positions"):
        generate_static(NATGenerator(model), [[5] * 24], {"iterations": 1})


def test_very_short_targets_agree() -> None:
    model = small_model("classifier")
    model.length.weight.zero_()
    model.length.bias[3] = 9.0  # one token shorter than the source
    sources = [[5, 6], [7, 8, 9], [10, 11, 12, 13]]
    found = generate_static(NATGenerator(model), sources, {"iterations": 4})
    assert [len(best[0].tokens) for best in found] == [1, 2, 3]
    assert_same(found, [generate_plain(model, [source], {"iterations": 4})[0] for source in sources])


@pytest.mark.parametrize(("length", "given"), [CASES[2], CASES[5]], ids=str)
def test_large_batches_are_neither_padded_nor_kept(
    length: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CAPTURED_TOKENS", 100)
    generator = NATGenerator(MODELS[length])
    assert_same(generate_static(generator, SOURCES, given), generate_plain(MODELS[length], SOURCES, given))
    large_if_padded = [[5] * 30] * 3  # fewer than 100 tokens without padding
    assert_same(
        generate_static(generator, large_if_padded, given), generate_plain(MODELS[length], large_if_padded, given)
    )
    assert not generator._precompiled._graphs


def test_graphs_are_reused_and_the_least_recently_used_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = NATGenerator(MODELS["ctc"])
    for source in SOURCES:
        generate_static(generator, [source], {"iterations": 1})
    (graph,) = generator._precompiled._graphs.values()
    generate_static(generator, SOURCES[:1], {"iterations": 1})
    assert list(generator._precompiled._graphs.values()) == [graph]
    monkeypatch.setattr(module, "MAX_GRAPHS", 1)
    generate_static(generator, SOURCES[:2], {"iterations": 1})
    assert [sentences for _, sentences, *_ in generator._precompiled._graphs] == [2]


def test_changed_and_moved_weights_are_used() -> None:
    model = small_model("ctc")
    generator = NATGenerator(model)
    before = generate_static(generator, SOURCES, {})
    model.target_embedding.weight.copy_(model.target_embedding.weight.flip(0))
    after = generate_static(generator, SOURCES, {})
    assert_same(after, generate_plain(model, SOURCES, {}))
    assert [best[0].tokens for best in after] != [best[0].tokens for best in before]
    kept = dict(generator._precompiled._graphs)
    model.target_embedding.weight.data = model.target_embedding.weight.flip(1)
    assert_same(generate_static(generator, SOURCES, {}), generate_plain(model, SOURCES, {}))
    assert all(generator._precompiled._graphs[key] is not graph for key, graph in kept.items())


# Conditions


def test_plain_decoding_can_be_captured() -> None:
    for length, given in CASES:
        model = peaked_model(length)
        assert why_not_capture_nat(model, NATSettings(**given), False) is None


def test_reasons_against_capture() -> None:
    plain, model = NATSettings(), MODELS["ctc"]
    assert "beam search" in str(why_not_capture_nat(model, NATSettings(beam=2), False))
    assert "as a whole" in str(why_not_capture_nat(MODELS["dag"], NATSettings(path="viterbi"), False))
    assert "traced" in str(why_not_capture_nat(model, plain, trace=True))
    assert "16 iterations" in str(why_not_capture_nat(MODELS["classifier"], NATSettings(iterations=17), False))
    linear = small_model("ctc", attention={"kind": "linear"})
    assert "linear" in str(why_not_capture_nat(linear, plain, False))
    for name in ("encoder.0.attention", "decoder.0.cross"):
        attention = model.get_submodule(name)
        assert isinstance(attention, Attention)
        with use_qkv_hook([attention], lambda *seen: None):
            assert "hook" in str(why_not_capture_nat(model, plain, False))
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert "autocast" in str(why_not_capture_nat(model, plain, False))


def test_plain_decoding_is_used_if_memory_is_exhausted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CapturedNAT, *given: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(NATGenerator, "capture_devices", ("cpu", "cuda"))
    monkeypatch.setattr(CapturedNAT, "decode", fail)
    assert generate(NATGenerator(MODELS["end"]), SOURCES, {}) == generate_plain(MODELS["end"], SOURCES, {})


# Replayed graphs


def capturing_generator(length: str) -> NATGenerator:
    generator = NATGenerator(MODELS[length])
    generator._precompiled = CapturedNAT(MODELS[length], capture=True)
    return generator


@pytest.mark.usefixtures("graphs")
@pytest.mark.parametrize(("length", "given"), CASES, ids=str)
def test_replayed_graphs_agree_with_static_decoding(length: str, given: dict[str, Any]) -> None:
    replayed, called = capturing_generator(length), NATGenerator(MODELS[length])
    called._precompiled = CapturedNAT(MODELS[length], capture=False)
    expected = generate_static(called, SOURCES, given)
    for start in (0, 3):  # 37 sentences are padded to the shape of 40
        assert_same(generate_static(replayed, SOURCES[start:], given), expected[start:])
    graphs = replayed._precompiled._graphs.values()
    assert graphs and all(graph._graph is not None for graph in graphs)
    assert_same(expected, generate_plain(peaked_model(length), SOURCES, given))


@pytest.mark.usefixtures("graphs")
def test_graphs_that_share_a_memory_pool_do_not_interfere() -> None:
    generator = capturing_generator("classifier")
    given = {"iterations": 4, "lengths": 3}
    batches = [SOURCES[:1], SOURCES[:9], [[5] * 40], SOURCES]
    expected = [generate_plain(MODELS["classifier"], batch, given) for batch in batches]
    for _ in range(2):
        for batch, wanted in zip(batches, expected, strict=True):
            assert_same(generate_static(generator, batch, given), wanted)


@on_gpu
@pytest.mark.parametrize("length", ["classifier", "ctc"])
def test_replaying_does_not_synchronise(length: str) -> None:
    generator = NATGenerator(MODELS[length])
    generate(generator, SOURCES[:8], {})
    graphs = generator._precompiled._graphs
    assert ("decode" if length == "classifier" else "one pass") in {name for name, *_ in graphs}
    torch.cuda.set_sync_debug_mode("error")
    try:
        for graph in graphs.values():
            graph._graph.replay()
    finally:
        torch.cuda.set_sync_debug_mode("default")
