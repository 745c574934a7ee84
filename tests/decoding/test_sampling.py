"""Samples follow the filtered distribution and do not depend on rounding errors."""

from typing import Any

import pytest
import torch

from regard.decoding.greedy import _sample_tokens, gumbel_noise, keep_probable, sample
from regard.decoding.settings import SearchSettings


@pytest.mark.parametrize("options", [{}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.7}], ids=str)
def test_samples_follow_the_filtered_distribution(options: dict[str, Any]) -> None:
    log_probs = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    keys = torch.randint(2**62, (20_000,), generator=torch.Generator().manual_seed(0))
    tokens = sample(log_probs.expand(20_000, -1), gumbel_noise(keys, 0, 4), **options)
    share = torch.bincount(tokens, minlength=4) / 20_000
    expected = {
        "{}": [0.1, 0.4, 0.2, 0.3],
        "{'temperature': 0.5}": [1 / 30, 16 / 30, 4 / 30, 9 / 30],
        "{'top_k': 2}": [0, 4 / 7, 0, 3 / 7],
        "{'top_p': 0.7}": [0, 4 / 7, 0, 3 / 7],
    }[str(options)]
    torch.testing.assert_close(share, torch.tensor(expected), atol=0.02, rtol=0)


def test_noise_depends_only_on_key_step_and_token() -> None:
    keys = torch.tensor([5, 7, 2**61])
    noise = gumbel_noise(keys, 3, 100)
    assert torch.equal(gumbel_noise(keys[1:2], 3, 100), noise[1:2])
    assert not torch.equal(gumbel_noise(keys, 4, 100), noise)
    assert len(noise.unique()) == 300
    assert noise.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"top_k": 50}, {"top_p": 0.9}], ids=str)
def test_rounding_errors_hardly_ever_change_a_sample(options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = (2 * torch.randn(4000, 1200, generator=generator)).log_softmax(-1)
    rounded = log_probs + 1e-6 * torch.randn(log_probs.shape, generator=generator)
    noise = gumbel_noise(torch.randint(2**62, (4000,), generator=generator), 3, 1200)
    assert int((sample(log_probs, noise, **options) != sample(rounded, noise, **options)).sum()) <= 1


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5}, {"top_p": 0.9}], ids=str)
@pytest.mark.parametrize("epsilon", [0.001, 0.02, 0.3, 0.99])
def test_epsilon_keeps_tokens_with_at_least_this_probability(epsilon: float, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = (2 * torch.randn(2000, 90, generator=generator)).log_softmax(-1)
    keys = torch.randint(2**62, (2000,), generator=generator)
    found = _sample_tokens(log_probs, keys, 3, SearchSettings.parse({"epsilon": epsilon, **options}, "test"))
    kept = keep_probable(log_probs, epsilon)
    assert torch.equal(found, sample(kept, gumbel_noise(keys, 3, 90), **options))
    chosen = log_probs.gather(1, found[:, None])[:, 0]
    assert bool(((chosen.exp() >= epsilon) | (chosen == log_probs.amax(1))).all())
