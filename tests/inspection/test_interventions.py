"""`ablate` and `scale_heads` are equivalent to scaling columns of the output projection, on every path."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.interventions import scale_heads, scale_scores, score_scale
from regard.inspection.probe import find_attentions
from regard.masks import Packed, Padded
from regard.models.transformer import Transformer, TransformerConfig

KINDS = ["full", {"kind": "local", "window": 2}, "linear", {"kind": "routing", "clusters": 2}]
ABLATED = {"encoder.1.attention": [0], "decoder.0.attention": [1], "decoder.1.cross": [0, 1]}


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


@pytest.fixture(params=KINDS, ids=str)
def model(request: pytest.FixtureRequest) -> Transformer:
    torch.manual_seed(2)
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 2, "decoder_layers": 2}
    return Transformer(TransformerConfig.base(13, **size, attention=request.param)).eval()


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(3, 13, (rows, length), generator=torch.Generator().manual_seed(length))


@contextmanager
def scaled_columns(model: torch.nn.Module, heads: dict[str, list[int]], factor: float = 0.0) -> Iterator[None]:
    """Multiplies the columns of the output projection that belong to these heads by a factor."""
    originals = []
    with torch.no_grad():
        for name, indices in heads.items():
            attention = model.get_submodule(name)
            assert isinstance(attention, Attention)
            originals.append((attention.out.weight, attention.out.weight.clone()))
            D = attention.width // attention.heads
            for head in indices:
                attention.out.weight[:, head * D : (head + 1) * D] *= factor
    yield
    with torch.no_grad():
        for weight, original in originals:
            weight.copy_(original)


@pytest.mark.parametrize("layout", [Padded, Packed])
def test_ablation_equals_zero_columns_in_the_output_projection(
    model: Transformer, layout: type[Padded] | type[Packed]
) -> None:
    rows = 2 if layout is Padded else 1
    arguments = tokens(rows, 5 * (3 - rows)), tokens(rows, 4 * (3 - rows)), layout.of([5, 5]), layout.of([4, 4])
    original = model(*arguments)
    with regard.ablate(model, ABLATED):
        ablated = model(*arguments)
    with scaled_columns(model, ABLATED):
        torch.testing.assert_close(ablated, model(*arguments))
    assert not torch.allclose(ablated, original, atol=1e-3)
    assert torch.equal(model(*arguments), original)


def test_scaling_equals_scaled_columns_in_the_output_projection(model: Transformer) -> None:
    arguments = tokens(2, 5), tokens(2, 4)
    with scale_heads(model, {name: dict.fromkeys(heads, 0.4) for name, heads in ABLATED.items()}):
        scaled = model(*arguments)
    with scaled_columns(model, ABLATED, 0.4):
        torch.testing.assert_close(scaled, model(*arguments))


def test_cached_decoding_is_ablated_like_a_full_pass(model: Transformer) -> None:
    source, target = tokens(2, 5), tokens(2, 4)
    with regard.ablate(model, ABLATED):
        full = model.logits(model.decode(target, model.encode(source)))
        state = model.start(model.encode(source))
        steps = torch.cat([model.step(target[:, t : t + 1], state) for t in range(4)], 1)
    torch.testing.assert_close(steps, full, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_ablation_applies_to_beam_search_of_a_batch(beam: int, translator: regard.Translator) -> None:
    texts = ["I love apples", "They see dogs and cats", "You buy tea"]
    heads = {"decoder.0.cross": [0, 1], "decoder.1.cross": [0]}
    original = translator(texts, beam=beam, n_best=beam)
    with regard.ablate(translator.model, heads):
        ablated = translator(texts, beam=beam, n_best=beam)
    with scaled_columns(translator.model, heads):
        expected = translator(texts, beam=beam, n_best=beam)
    assert [[h.text for h in beam] for beam in ablated] == [[h.text for h in beam] for beam in expected]
    for actual_beam, expected_beam in zip(ablated, expected, strict=True):
        assert [h.score for h in actual_beam] == pytest.approx([h.score for h in expected_beam], abs=1e-4)
    assert [beam[0].text for beam in ablated] != [beam[0].text for beam in original]
    assert translator(texts, beam=beam, n_best=beam) == original


def test_nested_factors_are_multiplied(model: Transformer) -> None:
    arguments = tokens(1, 5), tokens(1, 4)
    with scale_heads(model, {"decoder.0.cross": {0: 0.5}}):
        with scale_heads(model, {"decoder.0.cross": {0: 0.5, 1: 3.0}}):
            both = model(*arguments)
        half = model(*arguments)
    with scale_heads(model, {"decoder.0.cross": {0: 0.25, 1: 3.0}}):
        torch.testing.assert_close(model(*arguments), both)
    with scale_heads(model, {"decoder.0.cross": {0: 0.5}}):
        assert torch.equal(model(*arguments), half)


def test_probe_records_zero_context_for_ablated_heads(model: Transformer) -> None:
    with regard.ablate(model, {"decoder.0.cross": [1]}), regard.probe(model, record=["context"]) as records:
        model(tokens(2, 5), tokens(2, 4))
    context = records["decoder.0.cross"].context
    assert (context[:, 1] == 0).all()
    assert (context[:, 0] != 0).all()


def test_model_is_restored_after_an_error(model: Transformer) -> None:
    original = model(tokens(1, 5), tokens(1, 4))
    with pytest.raises(ZeroDivisionError), regard.ablate(model, ABLATED):
        _ = 1 / 0
    assert torch.equal(model(tokens(1, 5), tokens(1, 4)), original)
    assert all(m.head_scales is None for m in model.modules() if isinstance(m, Attention))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({"decoder.7.cross": [0]}, r"'decoder.7.cross' is not an attention module of .* .*decoder.1.cross"),
        ({"decoder.0.cross": [0], "decoder.1.cross": [2]}, "decoder.1.cross has no head 2; it has heads 0 to 1"),
        ({"decoder.0.cross": [-1]}, "no head -1"),
        ({"decoder.0.cross": ["0"]}, "no head '0'"),
    ],
)
def test_unknown_names_and_heads_are_rejected(heads: dict[str, list[int]], message: str) -> None:
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(TransformerConfig.base(13, **size))
    with pytest.raises(UserError, match=message), regard.ablate(model, heads):
        pass
    assert all(m.head_scales is None for m in model.modules() if isinstance(m, Attention))


def test_ablated_heads_receive_no_gradient(model: Transformer) -> None:
    with regard.ablate(model, {"decoder.0.cross": [1]}):
        model(tokens(1, 5), tokens(1, 4)).sum().backward()
    gradient = model.get_submodule("decoder.0.cross").out.weight.grad
    assert (gradient[:, 8:] == 0).all()
    assert gradient[:, :8].abs().sum() > 0


@pytest.mark.parametrize("kind", [{"kind": "full"}, {"kind": "routing", "clusters": 2}], ids=str)
@torch.no_grad()
def test_scores_are_scaled_only_inside_the_block(kind: dict[str, object]) -> None:
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 1}
    model = Transformer(TransformerConfig.base(13, **size, attention=kind)).eval()
    attentions = list(find_attentions(model).values())
    kinds = [attention.kind for attention in attentions]
    with scale_scores(model, 3.0):
        assert [score_scale(attention) for attention in attentions] == pytest.approx([3 * 8**-0.5] * len(attentions))
    assert [attention.kind for attention in attentions] == kinds
    assert [score_scale(attention) for attention in attentions] == pytest.approx([8**-0.5] * len(attentions))
    with pytest.raises(UserError, match="sharpness: 0 must be greater than 0"), scale_scores(model, 0):
        pass
