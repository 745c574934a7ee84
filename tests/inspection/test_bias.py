"""A bias on the attention scores of source tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.attention.biased import Biased
from regard.attention.kinds import Full
from regard.errors import UserError
from regard.inspection.html import pack
from regard.inspection.interventions import bias_scores, scale_scores
from regard.inspection.probe import find_attentions, probe
from regard.inspection.translation import translation_scene
from regard.masks import Mask, Padded
from tests.conftest import Command

SENTENCE = "I love apples"


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


def weights(translator: regard.Translator) -> torch.Tensor:
    with probe(translator.model, ["decoder.1.cross"], record=["weights", "scores"]) as seen:
        translator.score([SENTENCE], ["我喜欢苹果"])
        source, target = translator.vocabularies.source, translator.vocabularies.target
        translator.log_probs([source.encode(SENTENCE)], [target.encode("我喜欢苹果")])
    found: torch.Tensor = seen["decoder.1.cross"].weights[0]
    return found


def test_bias_multiplies_weights_before_they_are_normalised(translator: regard.Translator) -> None:
    with bias_scores(translator.model, {}, ["decoder.1.cross"]):
        plain = weights(translator)
    with bias_scores(translator.model, {2: -3.0, 0: 1.5}, ["decoder.1.cross"]):
        biased = weights(translator)
    factors = torch.ones(plain.shape[-1])
    factors[2], factors[0] = torch.tensor(-3.0).exp(), torch.tensor(1.5).exp()
    expected = plain * factors / (plain * factors).sum(-1, keepdim=True)
    assert torch.allclose(biased, expected, atol=1e-5)
    assert torch.equal(weights(translator), plain)


def test_hidden_word_lowers_the_score_and_search_uses_the_bias_too(translator: regard.Translator) -> None:
    love = len(translator.vocabularies.source.encode("I love")) - 1
    plain = translator.score(SENTENCE, "我喜欢苹果").score
    with bias_scores(translator.model, {love: -100.0}):
        assert translator.score(SENTENCE, "我喜欢苹果").score < plain - 0.1
        scored = translator.hypotheses([SENTENCE])[0][0]
        assert scored.score == pytest.approx(translator.score(SENTENCE, scored.text).score, abs=1e-3)
    assert translator(SENTENCE) == "我喜欢苹果"


def test_nested_biases_add_up(translator: regard.Translator) -> None:
    with bias_scores(translator.model, {2: -3.0}):
        once = weights(translator)
    with bias_scores(translator.model, {2: -1.0}), bias_scores(translator.model, {2: -2.0}):
        assert torch.allclose(weights(translator), once, atol=1e-6)
    with scale_scores(translator.model, 2.0), bias_scores(translator.model, {2: -3.0}):
        assert not torch.allclose(weights(translator), once, atol=1e-3)


def test_attention_equals_the_reference(translator: regard.Translator) -> None:
    attention = find_attentions(translator.model)["decoder.0.cross"]
    q, k, v = torch.randn(3, 2, 2, 5, 16).unbind(0)
    mask = Mask(keys=Padded.of([5, 3]))
    with bias_scores(translator.model, {1: 2.0}):
        kind: Any = attention.kind
        context = kind(q, k, v, mask)
        assert torch.allclose(context, kind.weights(q, k, mask) @ v, atol=1e-5)


def refusal(model: torch.nn.Module, names: list[str] | None = None) -> str:
    with pytest.raises(UserError) as error, bias_scores(model, {0: 1.0}, names):
        pass
    return str(error.value)


def test_modules_without_a_bias_are_refused(translator: regard.Translator) -> None:
    model = translator.model
    assert "keys of decoder.0.attention are target tokens" in refusal(model, ["decoder.0.attention"])
    linear = regard.Transformer(model.config.changed(attention={"kind": "linear"}))
    message = "encoder.0.attention is linear attention, whose weights are not a softmax"
    assert message in refusal(linear, ["encoder.0.attention"])
    assert "no cross-attention" in refusal(torch.nn.Identity())
    with pytest.raises(UserError, match="positions 0 to 4"), bias_scores(model, {9: 1.0}):
        translator(SENTENCE)
    with pytest.raises(UserError, match="put bias_scores inside"), bias_scores(model, {0: 1.0}), scale_scores(model, 2):
        pass
    assert translator(SENTENCE) == "我喜欢苹果"


def test_command_hides_a_word(
    command: Command, translator: regard.Translator, trained_run: Path, tmp_path: Path
) -> None:
    out = ("--out", tmp_path / "look.html")
    love = len(translator.vocabularies.source.encode("I love")) - 1
    for value in (-100, 10):
        changed = command("look", trained_run, SENTENCE, "--bias", f"love={value}", *out)
        with bias_scores(translator.model, {love: value}):
            assert changed.out.startswith(f"{translator(SENTENCE)}\n")
            expected = translation_scene(translator, SENTENCE).alignment
        page = (tmp_path / "look.html").read_text("utf-8")
        assert pack(expected[None])["packed"] in page
    assert command("look", trained_run, SENTENCE, "--bias", "2=0", *out).out.startswith("我喜欢苹果")
    for option, message in (
        ("love", "write WORD=NUMBER"),
        ("love=x", "such as old=-5"),
        ("hate=1", "1:I 2:love 3:apples"),
    ):
        assert message in command("look", trained_run, SENTENCE, "--bias", option, *out).error


@pytest.mark.parametrize(("T", "lengths"), [(5, [5, 3]), (5, [5, 5]), (1, [5, 3]), (1, [5, 5])])
def test_every_shape_of_decoding_equals_the_reference(T: int, lengths: list[int]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 2, T, 16), torch.randn(2, 2, 5, 16), torch.randn(2, 2, 5, 16)
    kind = Biased(Full(), {1: 2.0, 4: -3.0})
    for mask in (Mask(keys=Padded.of(lengths)), Mask(), Mask(causal=True)):
        expected = kind.weights(q, k, mask) @ v
        assert torch.allclose(kind(q, k, v, mask), expected, atol=1e-5)
        q.requires_grad_()  # another path
        assert torch.allclose(kind(q, k, v, mask), expected, atol=1e-5)
        q = q.detach()
