"""A step of the decoder without its modules gives what the modules give, and leaves the step to them where it must."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard import ablate, probe
from regard.attention.core import Full
from regard.attention.masks import Mask
from regard.attention.multi_head import Attention
from regard.decoding import direct
from regard.decoding.search import SearchSettings, search
from regard.decoding.stepper import TransformerStepper
from regard.layers import FeedForward, Residual
from regard.models.transformer import Transformer, TransformerConfig
from regard.ops import quantized_weights as packed
from regard.ops.linear import PackedWeights
from regard.ops.quantization import Precision, supports

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


def read(model: Transformer, copies: int, precision: Precision = "float32") -> tuple[list[Tensor], bool]:
    """Log-probabilities of some steps, before and after a sentence has left; and whether they were made directly."""
    stepper, found = TransformerStepper(model, products=PackedWeights(precision)), []
    state, left = stepper.start(SOURCES, copies), torch.arange(2 * copies)
    for step, rows in enumerate((3 * copies, 3 * copies, 3 * copies, 2 * copies)):
        if step == 3:
            state = state.select(left)
        logp, state = stepper.step(torch.arange(rows) + step + 4, state)
        found.append(logp)
    return found, state.direct is not None


def through_modules(model: Transformer, copies: int, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[Tensor]:
    with monkeypatch.context() as patch:
        patch.setattr(direct, "_can_be_passed_by", lambda model: False)
        expected, directly = read(model, copies, **given)
    assert not directly
    return expected


@pytest.mark.parametrize("worth", [packed.WORTH, 0], ids=["weights as they are", "weights packed"])
@pytest.mark.parametrize("copies", [1, 4])
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
    ],
)
def test_it_is_what_the_modules_give(changes: Any, copies: int, worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "WORTH", worth)
    model = make(**changes)
    found, directly = read(model, copies)
    assert directly
    for one, other in zip(found, through_modules(model, copies, monkeypatch), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_it_is_what_the_modules_give_in_smaller_numbers(precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supports(precision):
        pytest.skip(f"this machine has no products in {precision}")
    model = make(norm="pre")
    found, directly = read(model, 2, precision=precision)
    assert directly
    for one, other in zip(found, through_modules(model, 2, monkeypatch, precision=precision), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_a_search_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(norm="pre")
    for settings in (SearchSettings(beam=1), SearchSettings(beam=3), SearchSettings(temperature=1.0, seed=3)):
        found = search(TransformerStepper(model), SOURCES, settings)
        with monkeypatch.context() as patch:
            patch.setattr(direct, "_can_be_passed_by", lambda model: False)
            expected = search(TransformerStepper(model), SOURCES, settings)
        assert [one.tokens for group in found for one in group] == [one.tokens for group in expected for one in group]


def test_weights_that_changed_between_two_searches_are_seen() -> None:
    model = make()
    stepper = TransformerStepper(model)
    first = search(stepper, SOURCES, SearchSettings(beam=1))
    block: Any = model.decoder[0]
    with torch.inference_mode(False), torch.no_grad():
        block.cross.qkv.weight.mul_(-3)
        block.feed_forward.outer = type(block.feed_forward.outer)(48, 32)
    model.eval()
    again = search(stepper, SOURCES, SearchSettings(beam=1))
    assert [one[0].score for one in again] != [one[0].score for one in first]
    assert [one[0].score for one in again] == [
        one[0].score for one in search(TransformerStepper(model), SOURCES, SearchSettings(beam=1))
    ]


class Louder(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hook(model: Any) -> None:
    model.decoder[1].register_forward_hook(lambda module, given, made: None)


def put_another_in_place(model: Any) -> None:
    model.decoder[0].feed_forward = Louder(32, 48).eval()


def put_a_stranger_in_place(model: Any) -> None:
    model.decoder[0].feed_forward.inner = nn.Sequential(nn.Linear(32, 48))


def replace_a_method(model: Any) -> None:
    model.decoder[0].cross.forward = model.decoder[0].cross.forward


def drop_in_one_place(model: Any) -> None:
    model.decoder[1].cross.train()


CHANGES = [hook, put_another_in_place, put_a_stranger_in_place, replace_a_method, drop_in_one_place]


@pytest.mark.parametrize("change", CHANGES)
def test_modules_are_gone_through_where_they_do_more(change: Callable[[Any], None]) -> None:
    model = make()
    assert read(model, 1)[1]
    with torch.inference_mode(False):
        change(model)
    assert TransformerStepper(model).start(SOURCES, 1).direct is None


def test_a_class_whose_method_was_replaced_is_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: x)
    assert not read(make(), 1)[1]


class Sharper(Full):
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout: float = 0.0) -> Tensor:
        return super().__call__(3 * q, k, v, mask, dropout)


def unlike(model: Any) -> None:
    model.decoder[0].cross = Attention(32, 8).eval()
    model.decoder[0].around_cross = Residual(32, "pre").eval()


def sharpen(model: Any) -> None:
    model.decoder[0].cross.kind = Sharper()


@pytest.mark.parametrize("change", [unlike, sharpen])
def test_blocks_may_differ_in_what_they_are_made_of(
    change: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    before = read(model, 2)[0]
    with torch.inference_mode(False):
        change(model)
    found, directly = read(model, 2)
    assert directly
    assert not torch.allclose(found[-1], before[-1])
    for one, other in zip(found, through_modules(model, 2, monkeypatch), strict=True):
        torch.testing.assert_close(one, other, atol=2e-6, rtol=1e-5)


def test_modules_are_gone_through_for_what_is_not_plain() -> None:
    assert not read(make(positions="rotary"), 1)[1]
    assert not read(make().train(), 1)[1]


def test_who_looks_or_switches_off_is_heard() -> None:
    model = make()
    with probe(model) as seen:
        assert not read(model, 1)[1]
    assert any(name.startswith("decoder") for name in seen)
    plain = read(model, 1)[0]
    with ablate(model, {"decoder.0.cross": [0, 1]}):
        changed, directly = read(model, 1)
    assert not directly
    assert not torch.allclose(plain[-1], changed[-1])
