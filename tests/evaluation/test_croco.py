"""Cross-view completion (CroCo): visible patches, loss and compared second views."""

import pytest
import torch
from torch import Tensor

from regard.data.two_view.pairs import render_pairs
from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.evaluation.croco import choose_masked, choose_visible, masked_loss, second_views
from regard.models.croco import CroCo, CroCoConfig

SETTINGS = SceneSettings(size=(16, 24), objects=2, disjoint=0.0)


@pytest.fixture
def model() -> CroCo:
    torch.manual_seed(0)
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 2}
    return CroCo(CroCoConfig.micro(**sizes)).eval()


@pytest.fixture
def views() -> tuple[Tensor, Tensor]:
    first, second = render_pairs(SETTINGS, 1, torch.arange(6)).views
    return first.image, second.image


def test_visible_and_masked_patches_partition_the_view(model: CroCo, views: tuple[Tensor, Tensor]) -> None:
    visible = choose_visible(model, views[0], 0.9, SceneRandom(0, torch.arange(6)))
    masked = choose_masked(visible, 24)
    assert visible.shape == (6, 2) and masked.shape == (6, 22)
    assert torch.equal(torch.cat((visible, masked), 1).sort(1).values, torch.arange(24).expand(6, -1))
    assert choose_visible(model, views[0], 0.999, SceneRandom(0, torch.arange(6))).shape == (6, 1)


def test_loss_covers_masked_patches_only(model: CroCo, views: tuple[Tensor, Tensor]) -> None:
    view1, view2 = views
    visible = choose_visible(model, view1, 0.75, SceneRandom(0, torch.arange(6)))
    with torch.no_grad():
        every = (model(view1, view2, visible) - model.normalised_patches(view1)).square().mean(-1)
        losses = masked_loss(model, view1, view2, visible)
    assert torch.allclose(losses, every.gather(1, choose_masked(visible, 24)))


def test_second_views_are_true_shuffled_or_blank(views: tuple[Tensor, Tensor]) -> None:
    view2 = views[1]
    compared = second_views(view2)
    assert compared["true"] is view2
    assert torch.equal(compared["shuffled"][1], view2[0]) and torch.equal(compared["shuffled"][0], view2[5])
    assert compared["none"].std() == 0
