"""Details of beam search that few models reach: coverage of an ensemble, and growing shapes of captured search."""

import pytest
import torch

from regard.decoding.autoregressive import EnsembleState, EnsembleStepper, TransformerStepper, search_tokens
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer, TransformerConfig
from tests.decoding.table import TableState


def model(seed: int, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    size = {"width": 16, "heads": 2, "hidden": 24, "encoder_layers": 1, "decoder_layers": 1}
    made = Transformer(TransformerConfig.base(13, **(size | changes))).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return made


SOURCES = [[5, 6, 7], [8, 9], [10, 11, 12, 4]]


def test_an_ensemble_has_the_mean_coverage_penalty_of_its_models() -> None:
    settings = SearchSettings(beam=3, coverage=0.4, max_length=8)
    stepper = TransformerStepper(model(1), coverage=True)
    alone = search_tokens(stepper, SOURCES, settings)
    twice = search_tokens(EnsembleStepper([stepper, TransformerStepper(model(1), coverage=True)]), SOURCES, settings)
    assert [best[0].tokens for best in twice] == [best[0].tokens for best in alone]
    assert [best[0].score for best in twice] == pytest.approx([best[0].score for best in alone], abs=1e-4)
    members = [TableState([(1, 2), (4,)]), TableState([(3,), (2, 2)])]
    expected = torch.stack([member.coverage_penalties() for member in members]).mean(0)
    found = EnsembleState(members).coverage_penalties()  # type: ignore[arg-type]
    assert torch.equal(found, expected)
    assert found.tolist() == pytest.approx([-0.3, -0.4])


def test_an_ensemble_ends_at_the_smallest_number_of_positions() -> None:
    steppers = [
        TransformerStepper(model(seed, positions="learned", max_length=length)) for seed, length in ((1, 9), (2, 7))
    ]
    ensemble = EnsembleStepper(steppers)
    assert [one.max_length for one in (*steppers, ensemble)] == [9, 7, 7]
    assert EnsembleStepper([TransformerStepper(model(1))]).max_length is None
    assert (ensemble.bos, ensemble.eos) == (1, 2)
