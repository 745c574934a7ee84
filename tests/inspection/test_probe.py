"""Contract 7: attention weights are materialised only under `probe`, and seeing them changes no output."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention import Attention, Full, Mask, Packed, Padded, attention_weights, core
from regard.models.transformer import Transformer, TransformerConfig

NAMES = [
    "encoder.0.attention",
    "encoder.1.attention",
    "decoder.0.attention",
    "decoder.0.cross",
    "decoder.1.attention",
    "decoder.1.cross",
]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(2)
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(TransformerConfig.base(13, **size)).eval()


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(3, 13, (rows, length), generator=torch.Generator().manual_seed(length))


def test_every_attention_is_seen_by_its_name_in_the_model(model: Transformer) -> None:
    with regard.probe(model) as seen:
        model(tokens(3, 5), tokens(3, 4))
    assert sorted(seen) == sorted(NAMES)
    sides = {"encoder": (5, 5), "decoder": (4, 4)}
    for name, record in seen.items():
        T, S = (4, 5) if name.endswith("cross") else sides[name.split(".")[0]]
        assert record.weights.shape == (3, 2, T, S)


def test_weights_are_the_softmax_of_the_scores() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2, qk_scale=0.3)
    model = nn.ModuleDict({"only": attention})
    x = torch.randn(2, 5, 8)
    with regard.probe(model) as seen:
        attention(x, mask=Mask(causal=True))
    q, k, _ = (part.view(2, 5, 2, 4).transpose(1, 2) for part in attention.qkv(x).chunk(3, -1))
    scores = (q @ k.transpose(-2, -1)) * 0.3
    expected = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
    assert torch.allclose(seen["only"].weights, expected, atol=1e-6)
    assert torch.equal(seen["only"].weights, attention_weights(q, k, Mask(causal=True), scale=0.3))
    assert not seen["only"].weights.requires_grad


def test_rows_sum_to_one_and_nothing_is_given_to_padding_or_the_future(model: Transformer) -> None:
    source, target = Padded.of([5, 2]), Padded.of([3, 4])
    with regard.probe(model) as seen:
        model(tokens(2, 5), tokens(2, 4), source, target)
    for name, record in seen.items():
        assert torch.allclose(record.weights.sum(-1), torch.ones(()), atol=1e-6), name
    assert (seen["decoder.1.cross"].weights[1, :, :, 2:] == 0).all()
    assert (seen["decoder.0.attention"].weights.triu(1) == 0).all()


def test_a_packed_batch_is_seen_too(model: Transformer) -> None:
    source, target = Packed.of([3, 2]), Packed.of([2, 2])
    with regard.probe(model) as seen:
        model(tokens(1, 5), tokens(1, 4), source, target)
    weights = seen["decoder.0.cross"].weights
    assert weights.shape == (1, 2, 4, 5)
    assert (weights[:, :, :2, 3:] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-6)


def test_a_translators_records_hold_the_whole_sentence(translator: regard.Translator) -> None:
    with regard.probe(translator.model) as seen:
        (best,) = translator("I love apples and books", n_best=1)
    S = len(translator.vocabularies.source.encode("I love apples and books")) + 1
    T = len(best.tokens) + 1
    assert T > 3
    assert seen["decoder.1.cross"].weights.shape == (1, 2, T, S)
    assert seen["decoder.1.attention"].weights.shape == (1, 2, T, T)
    assert seen["encoder.0.attention"].weights.shape == (1, 2, S, S)
    for record in seen.values():
        assert torch.allclose(record.weights.sum(-1), torch.ones(()), atol=1e-5)


def test_several_sentences_are_rows_in_the_order_given(translator: regard.Translator) -> None:
    texts = ["You buy tea", "", "I love apples and books"]
    with regard.probe(translator.model, ["decoder.1.cross"]) as together:
        translator(texts)
    with regard.probe(translator.model, ["decoder.1.cross"]) as alone:
        translator(texts[0])
    _, _, T, S = alone["decoder.1.cross"].weights.shape
    first = together["decoder.1.cross"].weights[0]
    assert together["decoder.1.cross"].weights.shape[0] == 2  # a blank text is not read
    assert torch.allclose(first[:, :T, :S], alone["decoder.1.cross"].weights[0], atol=1e-5)
    assert (first[:, :, S:] == 0).all()


def test_the_trained_model_looks_at_the_word_it_translates(translator: regard.Translator) -> None:
    source = translator.vocabularies.source
    with regard.probe(translator.model) as seen:
        (best,) = translator("I love dogs", n_best=1)
    assert best.text == "我喜欢狗"
    words = source.pieces(source.encode("I love dogs"))
    dog = next(t for t, piece in enumerate(best.pieces) if "狗" in piece)
    most = max(float(seen[f"decoder.{i}.cross"].weights[0, :, dog, -2:].sum(-1).max()) for i in range(2))
    assert words[-1].endswith("s")
    assert most > 0.5


@pytest.mark.parametrize("beam", [1, 3])
def test_looking_changes_no_translation(beam: int, translator: regard.Translator) -> None:
    texts = ["I love apples", "They see dogs and cats"]
    before = translator(texts, beam=beam, n_best=beam)
    with regard.probe(translator.model):
        during = translator(texts, beam=beam, n_best=beam)
    assert during == before


def test_looking_changes_no_logit(model: Transformer) -> None:
    before = model(tokens(2, 5), tokens(2, 4))
    with regard.probe(model):
        during = model(tokens(2, 5), tokens(2, 4))
    assert torch.equal(before, during)


def test_only_the_named_attentions_are_seen(model: Transformer) -> None:
    with regard.probe(model, ["decoder.1.cross"]) as seen:
        model(tokens(1, 5), tokens(1, 4))
    assert list(seen) == ["decoder.1.cross"]


def test_an_unknown_name_is_refused_with_the_known_ones(model: Transformer) -> None:
    known = r"decoder\.7\.cross.*decoder\.1\.cross"
    with pytest.raises(KeyError, match=known), regard.probe(model, ["decoder.7.cross"]):
        pass
    assert all(module.observer is None for module in model.modules() if isinstance(module, Attention))


def test_observers_are_put_back_also_after_an_error(model: Transformer) -> None:
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    with pytest.raises(RuntimeError, match="inner"), regard.probe(model) as seen:
        assert all(module.observer is not None for module in attentions)
        raise RuntimeError("inner")
    assert all(module.observer is None for module in attentions)
    model(tokens(1, 5), tokens(1, 4))
    assert seen == {}


def test_an_error_in_a_translation_leaves_the_probe_in_place(
    translator: regard.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with regard.probe(translator.model) as seen:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr("regard.decoding.stepwise.search", lambda *_: 1 / 0)
            translator("I love apples")
        assert not seen
        translator("I love apples")
        assert seen


def test_the_outer_of_two_probes_sees_again_once_the_inner_is_done(model: Transformer) -> None:
    with regard.probe(model) as outer:
        with regard.probe(model) as inner:
            model(tokens(1, 5), tokens(1, 4))
        assert (len(outer), len(inner)) == (0, 6)
        model(tokens(2, 5), tokens(2, 4))
    assert (len(outer), len(inner)) == (6, 6)
    assert inner["decoder.0.cross"].weights.shape[0] == 1


def test_without_a_probe_no_weights_are_made(translator: regard.Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object, **__: object) -> Tensor:
        raise AssertionError("weights were made")

    monkeypatch.setattr(Full, "weights", made)
    monkeypatch.setattr(core, "attention_weights", made)
    assert translator("I love apples") == "我喜欢苹果"
    with regard.probe(translator.model), pytest.raises(AssertionError, match="weights were made"):
        translator("I love apples")
