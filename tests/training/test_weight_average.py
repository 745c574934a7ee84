"""The average beside a model, held to torch's own."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from regard.attention.positions import Sinusoidal
from regard.training.weight_average import WeightAverage


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_it_is_the_mean_or_the_moving_average_of_the_weights(decay: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = WeightAverage(model, decay)
    expected = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay) if decay else get_swa_multi_avg_fn())
    for _ in range(5):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        model(torch.randn(8, 3))  # from which the norm learns
        average.update(model)
        expected.update_parameters(model)
        torch.testing.assert_close(average.module.state_dict(), expected.module.state_dict())
    assert average.updates == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_update_does_not_wait_for_the_device() -> None:
    model = nn.Linear(3, 4, device="cuda")
    average = WeightAverage(model, 0.9)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            average.update(model)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_table_that_grew_while_the_average_was_validated_is_taken_as_well() -> None:
    model = nn.Sequential(Sinusoidal(8), nn.Linear(8, 8))
    average = WeightAverage(model)
    places = torch.arange(300)[None]
    with torch.inference_mode():
        expected = average.module[0](places, 300)
    model[0](places, 300)
    average.update(model)
    assert torch.equal(average.module[0](places, 300), expected)
    assert torch.equal(average.module[0].table, model[0].table)
