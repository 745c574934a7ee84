"""Search with every kind of attention: cached scores agree with those of a complete forward pass."""

from typing import Any

import pytest
import torch
from torch import nn

from regard.decoding.autoregressive import TransformerStepper, search_tokens
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer, TransformerConfig

VOCAB = 40
SIZE = {"width": 32, "heads": 4, "hidden": 48, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
KINDS: dict[str, Any] = {
    "local": {"kind": "local", "window": 3},
    "local sparse": {"kind": "local", "window": 2, "dilation": 2, "global_tokens": 1},
    "linear": "linear",
    "linear random": {"kind": "linear", "features": "random"},
    "linear plain": {"kind": "linear", "features": "plain"},
    "routing": {"kind": "routing", "clusters": 3},
}
SOURCES = [[5, 9, 3], [4], [8, 8, 30, 6, 17, 22, 11], [12, 7, 25, 31, 19]]


def model(attention: Any, positions: str = "rotary") -> Transformer:
    """Return a model with random weights whose translations neither repeat one token nor end at once."""
    torch.manual_seed(3)
    made = Transformer(TransformerConfig.base(VOCAB, **SIZE, attention=attention, positions=positions)).eval()
    for module in made.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.data.normal_().sign_()
    return made.requires_grad_(False)


def forward_log_probs(model: Transformer, source: list[int], tokens: list[int]) -> list[float]:
    """Return the log-probability of each token and of END from one forward pass without a cache."""
    bos, eos = model.config.bos, model.config.eos
    logits = model(torch.tensor([[*source, eos]]), torch.tensor([[bos, *tokens]]))[0]
    predicted = torch.tensor([*tokens, eos])
    return logits.log_softmax(-1).gather(1, predicted[:, None])[:, 0].tolist()


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)
def test_search_scores_agree_with_a_forward_pass(attention: Any, beam: int) -> None:
    made = model(attention)
    settings = SearchSettings(beam=beam, n_best=beam, min_length=6, max_length=16)
    found = search_tokens(TransformerStepper(made), SOURCES, settings)
    for source, best in zip(SOURCES, found, strict=True):
        for one in best:
            assert one.token_log_probs == pytest.approx(forward_log_probs(made, source, one.tokens), abs=1e-4)
    assert len({tuple(one.tokens) for best in found for one in best}) > 0.7 * len(SOURCES) * beam


@pytest.mark.parametrize("attention", KINDS.values(), ids=KINDS)
def test_translations_do_not_depend_on_the_batch(attention: Any) -> None:
    stepper = TransformerStepper(model(attention, "sinusoidal"))
    settings = SearchSettings(beam=3, max_length=12)
    together = search_tokens(stepper, SOURCES, settings)
    for source, best in zip(SOURCES, together, strict=True):
        assert search_tokens(stepper, [source], settings)[0][0].tokens == best[0].tokens


@pytest.mark.parametrize("beam", [1, 3])
def test_evicting_keys_outside_the_window_does_not_change_scores(beam: int) -> None:
    made = model({"kind": "local", "window": 3, "dilation": 2})
    stepper, stored = TransformerStepper(made), []
    step = stepper.step

    def spy(tokens: torch.Tensor, state: Any) -> Any:
        log_probs = step(tokens, state)
        stored.append(state.decoder.caches[0].stored)
        return log_probs

    stepper.step = spy  # type: ignore[method-assign]
    (best,) = search_tokens(stepper, SOURCES[:1], SearchSettings(beam=beam, min_length=69, max_length=70))
    assert best[0].token_log_probs == pytest.approx(forward_log_probs(made, SOURCES[0], best[0].tokens), abs=1e-4)
    assert len(stored) >= 70
    assert max(stored) <= 32 * beam
