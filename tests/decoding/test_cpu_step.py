"""The fused decoder step on a CPU agrees with the modules, which are used where they do more than is fused."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import ablate, probe
from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.decoding import cpu_blocks
from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.constraints import DecodingRequest
from regard.decoding.settings import SearchSettings
from regard.layers import FeedForward
from regard.masks import Mask
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import dispatch
from regard.ops import linear as linear_module
from regard.ops.linear import Precision, prepack, supports

SOURCES = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def make(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"width": 32, "heads": 4, "hidden": 48, "encoder_layers": 1, "decoder_layers": 2}
    with torch.inference_mode(False):
        return Transformer(TransformerConfig(source_vocab=40, target_vocab=40, **sizes | changes)).eval()


def run(model: Transformer, beam_width: int, precision: Precision = "float32") -> tuple[list[Tensor], bool]:
    """Return the log-probabilities of some steps, before and after a sentence is removed, and if blocks were fused."""
    prepack(model, precision)
    stepper, found = TransformerStepper(model), []
    state = stepper.start(SOURCES, beam_width)
    for step, sentences in enumerate((3, 3, 3, 2)):
        if step == 3:
            state = state.select(torch.arange(2 * beam_width))
        found.append(stepper.step(torch.arange(sentences * beam_width) + step + 4, state))
    return found, is_fused(state.decoder.blocks)


def is_fused(blocks: Any) -> bool:
    return all(isinstance(block, cpu_blocks.FusedDecoderBlock) for block in blocks)


def run_modules(model: Transformer, beam_width: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "FUSED_ENABLED", False)
        expected, fused = run(model, beam_width, **options)
    assert not fused
    return expected


@pytest.mark.parametrize("min_size", [linear_module.MIN_FLOAT32_SIZE, 0], ids=["plain weights", "prepacked weights"])
@pytest.mark.parametrize("beam_width", [1, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"activation": "gelu"},
        {"activation": "silu", "norm": "pre"},
        {"activation": "swiglu", "norm": "pre", "qkv_bias": False},
        {"qk_scale": 0.3},
        {"positions": "learned", "max_length": 16, "tie": "none"},
        {"attention": {"kind": "local", "window": 2}},
    ],
    ids=str,
)
def test_fused_blocks_agree_with_modules(
    changes: Any, beam_width: int, min_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_module, "MIN_FLOAT32_SIZE", min_size)
    model = make(**changes)
    found, fused = run(model, beam_width)
    assert fused
    for one, other in zip(found, run_modules(model, beam_width, monkeypatch), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_fused_blocks_agree_with_modules_in_lower_precision(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supports(precision):
        pytest.skip(f"this CPU does not support {precision}")
    model = make(norm="pre")
    found, fused = run(model, 2, precision=precision)
    assert fused
    for one, other in zip(found, run_modules(model, 2, monkeypatch, precision=precision), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_a_search_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(norm="pre")
    for settings in (SearchSettings(beam=1), SearchSettings(beam=3), SearchSettings(temperature=1.0, seed=3)):
        found = search_tokens(TransformerStepper(model), SOURCES, settings)
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "FUSED_ENABLED", False)
            expected = search_tokens(TransformerStepper(model), SOURCES, settings)
        assert [one.tokens for group in found for one in group] == [one.tokens for group in expected for one in group]


def test_weights_changed_between_searches_are_used() -> None:
    model = make()
    stepper = TransformerStepper(model)
    first = search_tokens(stepper, SOURCES, SearchSettings(beam=1))
    block: Any = model.decoder[0]
    with torch.inference_mode(False), torch.no_grad():
        block.cross.qkv.weight.mul_(-3)
        block.feed_forward.outer = type(block.feed_forward.outer)(48, 32)
    model.eval()
    again = search_tokens(stepper, SOURCES, SearchSettings(beam=1))
    assert [one[0].score for one in again] != [one[0].score for one in first]
    assert [one[0].score for one in again] == [
        one[0].score for one in search_tokens(TransformerStepper(model), SOURCES, SearchSettings(beam=1))
    ]


class DoubledFeedForward(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def add_hook(model: Any) -> None:
    model.decoder[1].register_forward_hook(lambda module, inputs, output: None)


def use_subclass(model: Any) -> None:
    model.decoder[0].feed_forward = DoubledFeedForward(32, 48).eval()


def use_unknown_module(model: Any) -> None:
    model.decoder[0].feed_forward.inner = nn.Sequential(nn.Linear(32, 48))


def replace_method_of_instance(model: Any) -> None:
    model.decoder[0].cross.forward = model.decoder[0].cross.forward


def train_one_module(model: Any) -> None:
    model.decoder[1].cross.train()


CHANGES = [add_hook, use_subclass, use_unknown_module, replace_method_of_instance, train_one_module]


@pytest.mark.parametrize("change", CHANGES)
def test_changed_modules_are_not_fused(change: Callable[[Any], None]) -> None:
    model = make()
    assert run(model, 1)[1]
    with torch.inference_mode(False):
        change(model)
    assert not is_fused(TransformerStepper(model).start(SOURCES, 1).decoder.blocks)


def test_a_class_with_a_replaced_method_is_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: x)
    assert not run(make(), 1)[1]


class SharperAttention(Full):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        return super().__call__(3 * q, k, v, mask, dropout)


def use_other_heads_and_norm(model: Any) -> None:
    model.decoder[0].cross = Attention(32, 8).eval()
    model.decoder[0].pre_norm = True


def use_other_kind(model: Any) -> None:
    model.decoder[0].cross.kind = SharperAttention()


@pytest.mark.parametrize("change", [use_other_heads_and_norm, use_other_kind])
def test_blocks_may_differ(change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    before = run(model, 2)[0]
    with torch.inference_mode(False):
        change(model)
    found, fused = run(model, 2)
    assert fused
    assert not torch.allclose(found[-1], before[-1])
    for one, other in zip(found, run_modules(model, 2, monkeypatch), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_rotary_embeddings_and_training_mode_are_not_fused() -> None:
    assert not run(make(positions="rotary"), 1)[1]
    assert not run(make().train(), 1)[1]


def test_probes_and_ablations_are_not_fused() -> None:
    model = make()
    with probe(model) as seen:
        assert not run(model, 1)[1]
    assert any(name.startswith("decoder") for name in seen)
    plain = run(model, 1)[0]
    with ablate(model, {"decoder.0.cross": [0, 1]}):
        changed, fused = run(model, 1)
    assert not fused
    assert not torch.allclose(plain[-1], changed[-1])


def run_single(model: Transformer, steps: int = 9) -> tuple[list[Tensor], bool]:
    """Return the log-probabilities of a single hypothesis, and whether it was decoded by a `SingleStep`."""
    stepper = TransformerStepper(model)
    state = stepper.start(SOURCES[:1], 1)
    return [stepper.step(torch.tensor([step + 4]), state) for step in range(steps)], state.single_step is not None


@pytest.mark.parametrize("capacity", [cpu_blocks.CAPACITY, 4], ids=["one buffer", "growing buffer"])
@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre"},
        {"activation": "swiglu", "qkv_bias": False, "qk_scale": 0.3},
        {"positions": "learned", "max_length": 16, "tie": "none", "output_bias": True},
        {"norm": "pre", "final_norm": False, "activation": "gelu"},
    ],
    ids=str,
)
def test_a_single_hypothesis_agrees_with_modules(changes: Any, capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_blocks, "CAPACITY", capacity)
    model = make(**changes)
    found, single = run_single(model)
    monkeypatch.setattr(dispatch, "FUSED_ENABLED", False)
    expected, plain = run_single(model)
    assert single and not plain
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_layers_of_a_single_hypothesis_may_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    with torch.inference_mode(False):
        use_other_heads_and_norm(model)
    found, single = run_single(model)
    assert single
    monkeypatch.setattr(dispatch, "FUSED_ENABLED", False)
    for one, other in zip(found, run_single(model)[0], strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_other_attention_and_positions_use_the_batched_step() -> None:
    assert not run_single(make(attention={"kind": "local", "window": 2}))[1]
    assert not run_single(make(positions="diagonal"))[1]
    model = make()
    with torch.inference_mode(False):
        use_other_kind(model)
    assert not run_single(model)[1]
    assert TransformerStepper(make()).start(SOURCES[:1], 4).single_step is None


def test_selected_states_of_a_single_hypothesis_are_independent() -> None:
    stepper = TransformerStepper(make())
    state = stepper.start(SOURCES[:1], 1)
    stepper.step(torch.tensor([4]), state)
    other = state.select(torch.tensor([0]))
    stepper.step(torch.tensor([5]), other)
    expected = stepper.step(torch.tensor([6]), other)
    stepper.step(torch.tensor([7]), state)
    again = stepper.start(SOURCES[:1], 1)
    for token in (4, 5):
        stepper.step(torch.tensor([token]), again)
    assert torch.equal(stepper.step(torch.tensor([6]), again), expected)


def test_a_single_sentence_is_translated_as_in_a_batch() -> None:
    model = make(norm="pre")
    stepper = TransformerStepper(model)
    options = SearchSettings(beam=1, max_ratio=0, max_extra=12), SearchSettings(beam=1, min_length=5, no_repeat=1)
    for settings in options:
        batch = search_tokens(stepper, SOURCES, settings)
        single = [search_tokens(stepper, [source], settings)[0] for source in SOURCES]
        assert [beam[0].tokens for beam in single] == [beam[0].tokens for beam in batch]
        assert [beam[0].score for beam in single] == pytest.approx([beam[0].score for beam in batch], abs=1e-5)
    prefix = DecodingRequest(SOURCES[0], prefix=(9, 8))
    (best,) = search_tokens(stepper, [prefix], SearchSettings(beam=1))[0]
    assert best.tokens[:2] == [9, 8]
