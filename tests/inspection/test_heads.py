"""Heads switched off or scaled: exactly what the output projection would give without them, on every path."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard
from regard.attention.masks import Packed, Padded
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.interventions import scale_heads
from regard.models.transformer import Transformer, TransformerConfig

KINDS = ["full", {"kind": "local", "window": 2}, "linear", {"kind": "routing", "clusters": 2}]
OFF = {"encoder.1.attention": [0], "decoder.0.attention": [1], "decoder.1.cross": [0, 1]}


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
def without_columns(model: torch.nn.Module, heads: dict[str, list[int]], factor: float = 0.0) -> Iterator[None]:
    """The definition: the columns of the output projection that belong to these heads, times the factor."""
    changed = []
    with torch.no_grad():
        for name, off in heads.items():
            attention = model.get_submodule(name)
            assert isinstance(attention, Attention)
            changed.append((attention.out.weight, attention.out.weight.clone()))
            D = attention.width // attention.heads
            for head in off:
                attention.out.weight[:, head * D : (head + 1) * D] *= factor
    yield
    with torch.no_grad():
        for weight, before in changed:
            weight.copy_(before)


@pytest.mark.parametrize("layout", [Padded, Packed])
def test_a_head_switched_off_is_its_columns_of_the_output_projection_set_to_zero(
    model: Transformer, layout: type[Padded] | type[Packed]
) -> None:
    rows = 2 if layout is Padded else 1
    arguments = tokens(rows, 5 * (3 - rows)), tokens(rows, 4 * (3 - rows)), layout.of([5, 5]), layout.of([4, 4])
    usual = model(*arguments)
    with regard.ablate(model, OFF):
        ablated = model(*arguments)
    with without_columns(model, OFF):
        torch.testing.assert_close(ablated, model(*arguments))
    assert not torch.allclose(ablated, usual, atol=1e-3)
    assert torch.equal(model(*arguments), usual)


def test_a_factor_scales_a_head(model: Transformer) -> None:
    arguments = tokens(2, 5), tokens(2, 4)
    with scale_heads(model, {name: dict.fromkeys(heads, 0.4) for name, heads in OFF.items()}):
        scaled = model(*arguments)
    with without_columns(model, OFF, 0.4):
        torch.testing.assert_close(scaled, model(*arguments))


def test_decoding_step_by_step_is_ablated_alike(model: Transformer) -> None:
    source, target = tokens(2, 5), tokens(2, 4)
    with regard.ablate(model, OFF):
        whole = model.decode(target, model.encode(source))
        state = model.start(model.encode(source))
        steps = torch.cat([model.step(target[:, t : t + 1], state) for t in range(4)], 1)
    torch.testing.assert_close(steps, whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("beam", [1, 3])
def test_translations_with_caches_beams_and_batches_are_those_without_the_columns(
    beam: int, translator: regard.Translator
) -> None:
    texts = ["I love apples", "They see dogs and cats", "You buy tea"]
    off = {"decoder.0.cross": [0, 1], "decoder.1.cross": [0]}
    usual = translator(texts, beam=beam, n_best=beam)
    with regard.ablate(translator.model, off):
        ablated = translator(texts, beam=beam, n_best=beam)
    with without_columns(translator.model, off):
        expected = translator(texts, beam=beam, n_best=beam)
    assert [[h.text for h in some] for some in ablated] == [[h.text for h in some] for some in expected]
    for ours, theirs in zip(ablated, expected, strict=True):
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-4)
    assert [some[0].text for some in ablated] != [some[0].text for some in usual]
    assert translator(texts, beam=beam, n_best=beam) == usual


def test_one_within_another_multiplies(model: Transformer) -> None:
    arguments = tokens(1, 5), tokens(1, 4)
    with scale_heads(model, {"decoder.0.cross": {0: 0.5}}):
        with scale_heads(model, {"decoder.0.cross": {0: 0.5, 1: 3.0}}):
            both = model(*arguments)
        half = model(*arguments)
    with scale_heads(model, {"decoder.0.cross": {0: 0.25, 1: 3.0}}):
        torch.testing.assert_close(model(*arguments), both)
    with scale_heads(model, {"decoder.0.cross": {0: 0.5}}):
        assert torch.equal(model(*arguments), half)


def test_a_probe_sees_zeros_where_a_head_is_off(model: Transformer) -> None:
    with regard.ablate(model, {"decoder.0.cross": [1]}), regard.probe(model, record=["context"]) as seen:
        model(tokens(2, 5), tokens(2, 4))
    context = seen["decoder.0.cross"].context
    assert (context[:, 1] == 0).all()
    assert (context[:, 0] != 0).all()


def test_everything_is_as_before_after_an_error(model: Transformer) -> None:
    usual = model(tokens(1, 5), tokens(1, 4))
    with pytest.raises(ZeroDivisionError), regard.ablate(model, OFF):
        _ = 1 / 0
    assert torch.equal(model(tokens(1, 5), tokens(1, 4)), usual)
    assert all(m.head_scales is None for m in model.modules() if isinstance(m, Attention))


@pytest.mark.parametrize(
    ("heads", "sentence"),
    [
        ({"decoder.7.cross": [0]}, r"'decoder.7.cross' is not an attention module of .* .*decoder.1.cross"),
        ({"decoder.0.cross": [0], "decoder.1.cross": [2]}, "decoder.1.cross has no head 2; it has heads 0 to 1"),
        ({"decoder.0.cross": [-1]}, "no head -1"),
        ({"decoder.0.cross": ["0"]}, "no head '0'"),
    ],
)
def test_unknown_names_and_heads_are_refused_with_what_exists(heads: dict[str, list[int]], sentence: str) -> None:
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 2}
    model = Transformer(TransformerConfig.base(13, **size))
    with pytest.raises(UserError, match=sentence), regard.ablate(model, heads):
        pass
    assert all(m.head_scales is None for m in model.modules() if isinstance(m, Attention))


def test_gradients_flow_round_a_head_that_is_off(model: Transformer) -> None:
    with regard.ablate(model, {"decoder.0.cross": [1]}):
        model(tokens(1, 5), tokens(1, 4)).sum().backward()
    columns = model.get_submodule("decoder.0.cross").out.weight.grad
    assert (columns[:, 8:] == 0).all()
    assert columns[:, :8].abs().sum() > 0
