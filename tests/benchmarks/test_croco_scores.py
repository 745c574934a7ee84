"""Scores of cross-view completion: losses by covisibility and hits of cross-attention."""

import math

import pytest
import torch
from torch import Tensor

from benchmarks.croco_scores import LabelledPairs, score_completion
from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.evaluation.croco import choose_masked, choose_visible, masked_loss
from regard.inspection import two_view
from regard.inspection.two_view import AttentionPeaks
from regard.models.croco import CroCo, CroCoConfig

SETTINGS = SceneSettings(size=(16, 24), objects=2, disjoint=0.0)


@pytest.fixture
def model() -> CroCo:
    torch.manual_seed(0)
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 2}
    return CroCo(CroCoConfig.micro(**sizes)).eval()


def pairs(count: int = 6, **changes: object) -> LabelledPairs:
    return LabelledPairs.rendered(SETTINGS.changed(**changes), 1, torch.arange(count))


def test_true_patch_is_the_match_of_the_patch_centre() -> None:
    same = pairs(max_turn=0.0, max_baseline=0.0, max_roll=0.0)
    positions, covisible = same.true_patches(4)
    own = torch.stack((torch.arange(24) // 6, torch.arange(24) % 6), -1).float()
    assert covisible.all()
    assert torch.equal(positions, own.expand(6, -1, -1))
    _, covisible = pairs(disjoint=1.0).true_patches(4)
    assert not covisible.any()


def test_patch_is_covisible_if_its_centre_and_half_of_its_pixels_are() -> None:
    view, positions = torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4, 2)
    covisible = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 0, 1]]).bool()[None]
    labelled = LabelledPairs(view, view, positions, covisible, ~covisible)
    _, found = labelled.true_patches(2)  # the centre of a patch is its lower right pixel
    assert found.tolist() == [[True, False, True, False]]
    assert labelled.unseen_patches(2).tolist() == [[False, False, False, False]]
    assert LabelledPairs(view, view, positions, covisible, covisible).unseen_patches(1).sum() == covisible.sum()


def set_peaks(monkeypatch: pytest.MonkeyPatch, patches: Tensor) -> None:
    """Replace the attention peaks of every module with these patches."""

    def fixed_peaks(model: CroCo, view1: Tensor, *rest: object) -> dict[str, AttentionPeaks]:
        chosen = patches.expand(len(view1), -1, -1)
        return {name: AttentionPeaks(chosen, chosen[..., 0].float()) for name in two_view.cross_attention_names(model)}

    monkeypatch.setattr("benchmarks.croco_scores.find_peaks", fixed_peaks)


def test_hit_is_the_true_patch_or_a_neighbour(model: CroCo, monkeypatch: pytest.MonkeyPatch) -> None:
    same = pairs(max_turn=0.0, max_baseline=0.0, max_roll=0.0)
    own = torch.stack((torch.arange(24) // 6, torch.arange(24) % 6), -1)
    for shift, expected in (((0, 0), 1.0), ((1, -1), 1.0), ((2, 0), 0.0), ((0, -2), 0.0)):
        set_peaks(monkeypatch, own + torch.tensor(shift))
        scores = score_completion(model, [same], 0.9)
        assert scores.hits == {"decoder.0.cross": expected, "decoder.1.cross": expected}
        assert (scores.same_position, scores.moved) == (1.0, 0.0)
        assert set(scores.moved_hits.values()) == {0.0} and scores.unseen_losses == {}


def test_moved_patches_are_scored_separately(model: CroCo, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = pairs(max_turn=20.0)
    truth, covisible = turned.true_patches(4)
    own = torch.stack((torch.arange(24) // 6, torch.arange(24) % 6), -1)
    moved = covisible & ((truth - own).abs().amax(-1) > 1)
    set_peaks(monkeypatch, own)
    scores = score_completion(model, [turned], 0.9)
    assert scores.moved == pytest.approx(float(moved.sum() / covisible.sum())) and 0 < scores.moved < 1
    assert set(scores.hits.values()) == {scores.same_position}
    assert scores.same_position == pytest.approx(1 - scores.moved)
    assert set(scores.moved_hits.values()) == {0.0}, "by definition, the same position is not a hit for moved patches"
    set_peaks(monkeypatch, torch.where(moved[..., None], truth, -9).nan_to_num(-9))
    scores = score_completion(model, [turned], 0.9)
    assert set(scores.moved_hits.values()) == {1.0}
    assert set(scores.hits.values()) == {scores.moved}


def test_losses_are_separated_by_covisibility(model: CroCo) -> None:
    view1, view2 = pairs().view1, pairs().view2
    covisible = torch.zeros(6, 16, 24, dtype=torch.bool)
    covisible[:, :, :8], covisible[:, :, 8] = True, True  # two columns of patches and a part of the third
    positions = torch.zeros(6, 16, 24, 2)
    scores = score_completion(model, [LabelledPairs(view1, view2, positions, covisible, ~covisible)], 0.9)
    visible = choose_visible(model, view1, 0.9, SceneRandom(0, torch.arange(6)))
    column = choose_masked(visible, 24) % 6
    with torch.no_grad():
        losses = masked_loss(model, view1, view2, visible)
    assert scores.covisible_losses["true"] == pytest.approx(float(losses[column < 2].mean()), rel=1e-5)
    assert scores.unseen_losses["true"] == pytest.approx(float(losses[column > 2].mean()), rel=1e-5)
    assert scores.gap == scores.losses["shuffled"] - scores.losses["true"]
    assert scores.gain == scores.losses["none"] - scores.losses["true"]


def test_scores_are_summed_over_batches(model: CroCo) -> None:
    together = pairs(8)
    parts = [LabelledPairs.rendered(SETTINGS, 1, torch.arange(8)[start : start + 4]) for start in (0, 4)]
    whole, split = score_completion(model, [together], 0.9), score_completion(model, parts, 0.9)
    assert split.pairs == whole.pairs == 8
    assert split.overlap == pytest.approx(whole.overlap, abs=1e-4)
    for name in ("true", "none"):  # the shuffled view depends on the batch
        assert split.losses[name] == pytest.approx(whole.losses[name], abs=1e-4)
        assert split.covisible_losses[name] == pytest.approx(whole.covisible_losses[name], abs=1e-4)
    assert split.hits == pytest.approx(whole.hits, abs=0.02)
    assert all(math.isfinite(value) for value in whole.covisible_losses.values())
    assert 0.2 < whole.overlap < 1


def test_views_without_overlap_have_no_hits(model: CroCo) -> None:
    scores = score_completion(model, [pairs(disjoint=1.0)], 0.9)
    assert scores.overlap < 0.01 and set(scores.hits.values()) == {0.0}
