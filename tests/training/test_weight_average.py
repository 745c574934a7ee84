"""Weight averages agree with torch's AveragedModel."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from regard.layers import Sinusoidal
from regard.training.state import WeightAverage


@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_average_equals_torchs_mean_and_exponential_moving_average(decay: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    average = WeightAverage(model, decay)
    expected = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay) if decay else get_swa_multi_avg_fn())
    for _ in range(5):
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        model(torch.randn(8, 3))  # updates the running statistics
        average.update()
        expected.update_parameters(model)
        torch.testing.assert_close(average.module.state_dict(), expected.module.state_dict())
    assert average.updates == 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_update_does_not_synchronise_with_the_device() -> None:
    model = nn.Linear(3, 4, device="cuda")
    average = WeightAverage(model, 0.9)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            average.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_position_table_grown_in_inference_mode_is_updated() -> None:
    model = nn.Sequential(Sinusoidal(8), nn.Linear(8, 8))
    average = WeightAverage(model)
    positions = torch.arange(300)[None]
    with torch.inference_mode():
        expected = average.module[0](positions, 300)
    model[0](positions, 300)
    average.update()
    assert torch.equal(average.module[0](positions, 300), expected)
    assert torch.equal(average.module[0].table, model[0].table)
