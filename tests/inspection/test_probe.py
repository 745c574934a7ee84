"""Attention weights are materialised only under `probe`, which does not change outputs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.attention import core
from regard.attention.biased import Relative
from regard.attention.core import attention_weights
from regard.attention.kinds import Full
from regard.attention.linear import Linear
from regard.attention.local import Local
from regard.attention.multi_head import Attention, Rotary
from regard.attention.routing import Routing
from regard.errors import UserError
from regard.inspection.probe import QUANTITIES
from regard.masks import Mask, Packed, Padded
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


def test_every_attention_module_is_recorded_by_name(model: Transformer) -> None:
    with regard.probe(model) as records:
        model(tokens(3, 5), tokens(3, 4))
    assert sorted(records) == sorted(NAMES)
    lengths = {"encoder": (5, 5), "decoder": (4, 4)}
    for name, record in records.items():
        T, S = (4, 5) if name.endswith("cross") else lengths[name.split(".")[0]]
        assert record.weights.shape == (3, 2, T, S)


def test_weights_are_the_softmax_of_the_scores() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2, qk_scale=0.3)
    model = nn.ModuleDict({"only": attention})
    x = torch.randn(2, 5, 8)
    with regard.probe(model) as records:
        attention(x, mask=Mask(causal=True))
    q, k, _ = (part.view(2, 5, 2, 4).transpose(1, 2) for part in attention.qkv(x).chunk(3, -1))
    scores = (q @ k.transpose(-2, -1)) * 0.3
    expected = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf).softmax(-1)
    assert torch.allclose(records["only"].weights, expected, atol=1e-6)
    assert torch.equal(records["only"].weights, attention_weights(q, k, Mask(causal=True), scale=0.3))
    assert not records["only"].weights.requires_grad


def test_weights_sum_to_one_and_are_zero_for_padding_and_future_tokens(model: Transformer) -> None:
    source, target = Padded.of([5, 2]), Padded.of([3, 4])
    with regard.probe(model) as records:
        model(tokens(2, 5), tokens(2, 4), source, target)
    for name, record in records.items():
        assert torch.allclose(record.weights.sum(-1), torch.ones(()), atol=1e-6), name
    assert (records["decoder.1.cross"].weights[1, :, :, 2:] == 0).all()
    assert (records["decoder.0.attention"].weights.triu(1) == 0).all()


def test_packed_batches_are_recorded(model: Transformer) -> None:
    source, target = Packed.of([3, 2]), Packed.of([2, 2])
    with regard.probe(model) as records:
        model(tokens(1, 5), tokens(1, 4), source, target)
    weights = records["decoder.0.cross"].weights
    assert weights.shape == (1, 2, 4, 5)
    assert (weights[:, :, :2, 3:] == 0).all()
    assert torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-6)


def test_records_of_a_translator_hold_complete_sentences(translator: regard.Translator) -> None:
    with regard.probe(translator.model) as records:
        (best,) = translator("I love apples and books", n_best=1)
    S = len(translator.vocabularies.source.encode("I love apples and books")) + 1
    T = len(best.tokens) + 1
    assert T > 3
    assert records["decoder.1.cross"].weights.shape == (1, 2, T, S)
    assert records["decoder.1.attention"].weights.shape == (1, 2, T, T)
    assert records["encoder.0.attention"].weights.shape == (1, 2, S, S)
    for record in records.values():
        assert torch.allclose(record.weights.sum(-1), torch.ones(()), atol=1e-5)


def test_sentences_are_recorded_in_the_given_order(translator: regard.Translator) -> None:
    texts = ["You buy tea", "", "I love apples and books"]
    with regard.probe(translator.model, ["decoder.1.cross"]) as batch:
        translator(texts)
    with regard.probe(translator.model, ["decoder.1.cross"]) as single:
        translator(texts[0])
    _, _, T, S = single["decoder.1.cross"].weights.shape
    first = batch["decoder.1.cross"].weights[0]
    assert batch["decoder.1.cross"].weights.shape[0] == 2  # blank texts are not translated
    assert torch.allclose(first[:, :T, :S], single["decoder.1.cross"].weights[0], atol=1e-5)
    assert (first[:, :, S:] == 0).all()


def test_trained_model_attends_to_the_word_it_translates(translator: regard.Translator) -> None:
    source = translator.vocabularies.source
    with regard.probe(translator.model) as records:
        (best,) = translator("I love dogs", n_best=1)
    assert best.text == "我喜欢狗"
    words = source.tokens(source.encode("I love dogs"))
    dog = next(t for t, piece in enumerate(best.subwords) if "狗" in piece)
    weight = max(float(records[f"decoder.{i}.cross"].weights[0, :, dog, -2:].sum(-1).max()) for i in range(2))
    assert words[-1].endswith("s")
    assert weight > 0.5


@pytest.mark.parametrize("beam", [1, 3])
def test_probe_does_not_change_translations(beam: int, translator: regard.Translator) -> None:
    texts = ["I love apples", "They see dogs and cats"]
    before = translator(texts, beam=beam, n_best=beam)
    with regard.probe(translator.model):
        during = translator(texts, beam=beam, n_best=beam)
    assert during == before


def test_probe_does_not_change_logits(model: Transformer) -> None:
    before = model(tokens(2, 5), tokens(2, 4))
    with regard.probe(model):
        during = model(tokens(2, 5), tokens(2, 4))
    assert torch.equal(before, during)


def test_only_the_named_modules_are_recorded(model: Transformer) -> None:
    with regard.probe(model, ["decoder.1.cross"]) as records:
        model(tokens(1, 5), tokens(1, 4))
    assert list(records) == ["decoder.1.cross"]


def test_unknown_name_is_rejected_with_the_known_names(model: Transformer) -> None:
    known = r"decoder\.7\.cross.*decoder\.1\.cross"
    with pytest.raises(UserError, match=known), regard.probe(model, ["decoder.7.cross"]):
        pass
    assert all(module.qkv_hook is None for module in model.modules() if isinstance(module, Attention))


def test_record_that_does_not_exist_is_explained(model: Transformer) -> None:
    with regard.probe(model, ["decoder.1.cross", "decoder.0.cross"]) as seen:
        with pytest.raises(UserError, match=r"'decoder\.1\.cross' has not been called yet; run the model inside"):
            seen["decoder.1.cross"]
        model(tokens(1, 5), tokens(1, 4))
    for error in (UserError, KeyError):
        with pytest.raises(error) as found:
            seen["decoder.9.cross"]
        expected = "'decoder.9.cross' is not among the probed modules: decoder.0.cross, decoder.1.cross"
        assert str(found.value) == expected
    assert seen.get("decoder.9.cross") is None and "decoder.9.cross" not in seen


def test_hooks_are_removed_after_an_error(model: Transformer) -> None:
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    with pytest.raises(RuntimeError, match="inner"), regard.probe(model) as records:
        assert all(module.qkv_hook is not None for module in attentions)
        raise RuntimeError("inner")
    assert all(module.qkv_hook is None for module in attentions)
    model(tokens(1, 5), tokens(1, 4))
    assert records == {}


def test_error_in_a_translation_does_not_remove_the_probe(
    translator: regard.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with regard.probe(translator.model) as records:
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr("regard.decoding.autoregressive.search_tokens", lambda *_: 1 / 0)
            translator("I love apples")
        assert not records
        translator("I love apples")
        assert records


def test_inner_probe_replaces_the_outer_one_temporarily(model: Transformer) -> None:
    with regard.probe(model) as outer:
        with regard.probe(model) as inner:
            model(tokens(1, 5), tokens(1, 4))
        assert (len(outer), len(inner)) == (0, 6)
        model(tokens(2, 5), tokens(2, 4))
    assert (len(outer), len(inner)) == (6, 6)
    assert inner["decoder.0.cross"].weights.shape[0] == 1


def test_no_weights_are_computed_without_a_probe(
    translator: regard.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Tensor:
        raise AssertionError("weights were computed")

    monkeypatch.setattr(Full, "weights", fail)
    monkeypatch.setattr(core, "attention_weights", fail)
    assert translator("I love apples") == "我喜欢苹果"
    with regard.probe(translator.model), pytest.raises(AssertionError, match="weights were computed"):
        translator("I love apples")


KINDS = {
    "full": Full(),
    "full-scaled": Full(scale=0.7),
    "local": Local(1, 1),
    "local-sparse": Local(1, 1, dilation=2, global_tokens=1),
    "linear": Linear(8),
    "linear-random": Linear(8, "random"),
    "linear-plain": Linear(8, "plain"),
    "routing": Routing(2, 8, 2).eval(),
}


def test_scores_include_the_relative_position_bias() -> None:
    torch.manual_seed(1)
    attention = Attention(16, 2, kind=Relative((2, 3), 2)).eval()
    with regard.probe(attention, record=QUANTITIES) as records:
        attention(torch.randn(4, 6, 16))
    (record,) = records.values()
    torch.testing.assert_close(record.scores.softmax(-1), record.weights)
    torch.testing.assert_close(record.weights @ record.v, record.context, atol=1e-5, rtol=1e-4)


def layouts(packed: bool) -> Mask:
    layout = Packed.of([3, 4]) if packed else Padded.of([7, 4])
    return Mask(queries=layout, keys=layout)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_context_equals_weights_times_values_for_every_kind(name: str, packed: bool) -> None:
    torch.manual_seed(1)
    attention = Attention(16, 2, kind=KINDS[name], rotary=Rotary(8)).eval()
    mask = layouts(packed)
    x = torch.randn(1 if packed else 2, 7, 16)
    with regard.probe(attention, record=QUANTITIES) as records:
        y = attention(x, mask=mask, positions=torch.arange(7)[None])
    (record,) = records.values()
    torch.testing.assert_close(record.weights @ record.v, record.context, atol=1e-5, rtol=1e-4)
    concatenated = record.context.transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.out(concatenated), y)
    assert (record.q @ record.k.transpose(-2, -1)).shape == record.scores.shape


@pytest.mark.parametrize("name", KINDS)
def test_normalised_scores_equal_the_weights(name: str) -> None:
    torch.manual_seed(1)
    attention = Attention(16, 2, kind=KINDS[name]).eval()
    with regard.probe(attention, record=["weights", "scores"]) as records:
        attention(torch.randn(2, 7, 16), mask=Mask(causal=True))
    (record,) = records.values()
    future = torch.ones(7, 7).triu(1).bool()
    if name.startswith("linear"):
        expected = record.scores if name.endswith("plain") else record.scores / record.scores.sum(-1, keepdim=True)
        assert (record.scores[..., future] == 0).all()
    else:
        expected = record.scores.softmax(-1).nan_to_num()  # routing may leave a query without keys
        assert (record.scores[..., future] == -torch.inf).all()
    torch.testing.assert_close(expected, record.weights, atol=1e-5, rtol=1e-4)


def test_worked_example_of_scaled_dot_product_attention() -> None:
    """Scores 2 and 0 divided by √4 give the weights 0.73 and 0.27."""
    attention = Attention(4, 1, qkv_bias=False)
    x = torch.tensor([[[1.0, 0, 1, 0], [0, 1, 0, 1]]])
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.eye(4).repeat(3, 1))
    with regard.probe(attention, record=("scores", "weights")) as records:
        attention(x)
    (record,) = records.values()
    torch.testing.assert_close(record.scores[0, 0], torch.eye(2))
    torch.testing.assert_close(record.weights[0, 0], torch.tensor([[0.73, 0.27], [0.27, 0.73]]), atol=5e-3, rtol=0)


def test_only_the_selected_heads_are_kept(model: Transformer) -> None:
    names = ["decoder.0.cross", "decoder.1.cross"]
    with regard.probe(model, names, heads={"decoder.0.cross": [1]}, record=QUANTITIES) as records:
        model(tokens(3, 5), tokens(3, 4))
    with regard.probe(model, names, record=QUANTITIES) as full_pass:
        model(tokens(3, 5), tokens(3, 4))
    assert [records[name].heads for name in names] == [[1], [0, 1]]
    for quantity in QUANTITIES:
        selected, full = getattr(records[names[0]], quantity), getattr(full_pass[names[0]], quantity)
        assert torch.equal(selected, full[:, 1:])
        assert selected.untyped_storage().size() <= selected.numel() * 4


def test_quantities_that_are_not_recorded_are_not_computed(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Full, "weights", lambda *_: 1 / 0)
    with regard.probe(model, record=["q"]) as records:
        model(tokens(1, 5), tokens(1, 4))
    with pytest.raises(UserError, match=r"not recorded; record it with probe\(model, record=\['weights'\]\)"):
        records["decoder.0.cross"].weights  # noqa: B018


def test_concatenated_decoding_steps_equal_a_full_pass(model: Transformer) -> None:
    source, target = tokens(2, 5), tokens(2, 4)
    with regard.probe(model, record=QUANTITIES) as full_pass:
        model(source, target)
    with regard.probe(model, record=QUANTITIES, keep=None) as records:
        state = model.start(model.encode(source))
        for t in range(4):
            model.step(target[:, t : t + 1], state)
    for name in ("decoder.0.attention", "decoder.1.cross"):
        assert len(records[name].calls) == 4
        assert records[name].weights.shape[2] == 1
        for quantity in QUANTITIES:
            actual, expected = records[name].concatenated(quantity), getattr(full_pass[name], quantity)
            torch.testing.assert_close(actual, expected, msg=quantity)


def test_only_the_most_recent_calls_are_kept(model: Transformer) -> None:
    for keep in (1, 2):
        with regard.probe(model, keep=keep) as records:
            for length in (3, 4, 5):
                model(tokens(1, length), tokens(1, 2))
        assert [call["weights"].shape[-1] for call in records["encoder.0.attention"].calls] == [3, 4, 5][-keep:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"names": ["decoder.0.cross"], "heads": [2]}, "decoder.0.cross has no head 2; it has heads 0 to 1"),
        ({"heads": {"decoder.7.cross": [0]}}, "decoder.7.cross.*not among.*decoder.1.cross"),
        ({"names": "decoder.0.cross"}, "names must be a list"),
        ({"record": ["weight"]}, "'weight' is not one of weights, scores, q, k, v, context"),
        ({"keep": 0}, "keep: 0"),
    ],
)
def test_invalid_options_are_rejected(model: Transformer, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message), regard.probe(model, **options):
        pass


def test_only_the_final_pass_of_a_translator_is_recorded(translator: regard.Translator) -> None:
    with regard.probe(translator.model, ["decoder.1.cross"], record=QUANTITIES, keep=None) as records:
        translator("I love apples", beam=3)
    (call,) = records["decoder.1.cross"].calls
    torch.testing.assert_close(call["weights"] @ call["v"], call["context"], atol=1e-5, rtol=1e-4)
