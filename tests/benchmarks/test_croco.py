"""benchmarks/croco.py: criteria, labels of crops, and portable commands."""

import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import croco, croco_evaluation
from benchmarks.croco_scores import CompletionScores, LabelledPairs
from benchmarks.stereo import StereoPair
from regard.attention.multi_head import grid_positions
from regard.models.croco import CroCo, CroCoConfig
from regard.training.tasks.croco import CroCoRecipe
from regard.training.tasks.registry import load_recipe

LAYER = "decoder.0.cross"
CPU = torch.device("cpu")
TINY = [
    *("model.preset=micro", "model.width=16", "model.heads=2", "model.decoder_width=16", "model.decoder_heads=2"),
    *("data.scenes.size=[16,16]", "data.scenes.objects=1", "data.hold_out=4", "batch.pairs=4", "training.device=cpu"),
]


def scores(
    true: float, shuffled: float, none: float, hits: float = 0.8, same_position: float = 0.3
) -> CompletionScores:
    losses = {"true": true, "shuffled": shuffled, "none": none}
    moved = 1 - same_position
    return CompletionScores(8, 0.7, losses, losses, losses, {LAYER: hits}, same_position, moved, {LAYER: hits})


GOOD = (scores(0.4, 0.9, 0.85), scores(0.5, 0.9, 0.85), scores(0.86, 0.86, 0.85))


def test_good_scores_meet_all_criteria() -> None:
    assert all(croco_evaluation.check_criteria(*GOOD, LAYER).values())


@pytest.mark.parametrize(
    ("index", "bad", "missed"),
    [
        (0, scores(0.5, 0.9, 0.85), ["the loss with the true"]),
        (0, scores(0.3, 0.8, 0.85), ["a shuffled second view"]),
        (2, scores(0.7, 0.86, 0.85), ["the gap closes"]),
        (2, scores(1.0, 1.0, 0.85), ["the gap closes"]),  # any second view is worse than none
        (2, scores(0.85, 0.7, 0.85), ["the gap closes"]),
        (1, scores(0.5, 0.9, 0.85, hits=0.6), ["attention peaks", "the same holds for moved"]),
        (1, scores(0.5, 0.9, 0.85, same_position=0.76), ["the same holds for moved"]),
        (1, replace(GOOD[1], moved_hits={LAYER: 0.5}), ["the same holds for moved"]),
    ],
)
def test_each_criterion_can_fail(index: int, bad: CompletionScores, missed: list[str]) -> None:
    given = [bad if i == index else good for i, good in enumerate(GOOD)]
    criteria = croco_evaluation.check_criteria(*given, LAYER)
    failed = [criterion for criterion, met in criteria.items() if not met]
    assert len(failed) == len(missed)
    assert all(criterion.startswith(start) for criterion, start in zip(failed, missed, strict=True))


def share_at_same_position(pairs: LabelledPairs, patch: int) -> float:
    truth, covisible = pairs.true_patches(patch)
    rows, columns = (size // patch for size in pairs.view1.shape[-2:])
    near = (grid_positions(rows, columns, "cpu")[None] - truth).abs().amax(-1) <= 1
    return float((near & covisible).sum() / covisible.sum())


def test_most_matches_are_not_at_the_same_position() -> None:
    recipe = load_recipe(Path("croco-scenes"), [], {}, expected=CroCoRecipe)
    settings = recipe.data.scenes.changed(disjoint=0.0, gradual=False)
    patch = recipe.model_settings().patch
    (pairs,) = croco_evaluation.render_labelled(settings, 1, croco_evaluation.LARGE_BASELINE, 96, CPU)
    assert share_at_same_position(pairs, patch) <= croco_evaluation.MAX_SAME_POSITION - 0.05
    assert share_at_same_position(pairs, 2 * patch) > 0.9, "larger patches would prove nothing"


def make_photo(seed: int) -> StereoPair:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.rand(3, 16, 40, generator=generator) for _ in range(2))
    disparity = torch.full((16, 40), 4.0)
    known = torch.ones(16, 40, dtype=torch.bool)
    known[:, 10:12] = False
    return StereoPair(f"photo {seed}", left, right, disparity, known, known & (torch.arange(40) >= 4))


def test_crops_of_photographs_have_correct_labels() -> None:
    photos = [make_photo(1), make_photo(2)]
    first, *others = croco_evaluation.crop_photos(photos, (8, 16), CPU)
    assert len(others) == 5 and len(first.view1) == 2
    assert torch.equal(first.view1[1], photos[1].left[:, :8, :16])
    assert torch.equal(others[-1].view2[0], photos[0].right[:, 8:, 24:])
    assert first.positions[0, 2, 7].tolist() == [3.5, 2.5]
    assert first.covisible[0, 0].tolist() == [False] * 4 + [True] * 6 + [False] * 2 + [True] * 4
    assert first.unseen[0, 0].tolist() == [True] * 4 + [False] * 12, "unknown disparities may be visible"
    assert first.unseen_patches(4)[0].tolist() == [True, False, False, False] * 2


def test_disjoint_crops_have_no_covisible_pixels() -> None:
    photos = [make_photo(1), make_photo(2)]
    for pairs in croco_evaluation.crop_disjoint(photos, (8, 16), CPU):
        assert pairs.unseen.all() and not pairs.covisible.any()
    assert torch.equal(pairs.view1[0], photos[0].left[:, 8:, :16])
    assert torch.equal(pairs.view2[0], photos[0].right[:, 8:, 24:])


def run(steps: int, pixels_off: float, scored: int | None = None) -> dict[str, Any]:
    last = {"step": steps if scored is None else scored, "pixels_off": pixels_off, "pixels_off_flat": 1.5}
    return {"steps": steps, "log": [last]}


@pytest.mark.parametrize(
    ("pretrained", "scratch", "expected"),
    [
        (run(20, 1.0), run(20, 2.0), [True, True]),
        (run(20, 1.4), run(20, 1.0), [False, True]),
        (run(20, 1.6), run(20, 2.0), [True, False]),  # neither has learned anything
        (run(20, 1.0), run(12, 2.0), [False, False]),
        (run(20, 1.0), run(20, 2.0, scored=18), [False, False]),
        (run(20, 1.0), {"steps": 2, "log": []}, [False, False]),
    ],
)
def test_pretraining_is_compared_after_equal_steps(
    pretrained: dict[str, Any], scratch: dict[str, Any], expected: list[bool]
) -> None:
    assert list(croco.check_disparity(pretrained, scratch).values()) == expected


def test_fewer_steps_shorten_the_ramp_and_the_warm_up() -> None:
    recipe = croco.load_shortened_recipe("croco-scenes", TINY, 50, {})
    assert (recipe.training.steps, recipe.training.validate_every) == (50, 5)
    assert (recipe.completion.ramp_steps, recipe.optim.warmup) == (10, 5)


def test_training_reports_steps_and_pairs(tmp_path: Path) -> None:
    result = croco.train(Namespace(steps=3, set=TINY, device="cpu", out=tmp_path))
    assert (result["steps"], result["pairs"]) == (3, 12)
    assert result["log"][-1]["step"] == 3


@pytest.mark.parametrize("out", ["/home/user/runs/bench", "../elsewhere/bench", "bench/"])
def test_commands_contain_no_folders_of_this_machine(out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["all", "--steps", "7", f"--out={out}", "--data", "/srv/stereo-middlebury", "--set", "optim.lr=2e-3"]
    monkeypatch.setattr(sys, "argv", ["croco.py", *words, "--set", "data.images=/srv/pairs"])
    assert croco.portable_command(Path(out)) == (
        "python benchmarks/croco.py all --steps 7 --out=runs/bench --data stereo-middlebury --set optim.lr=2e-3 "
        "--set data.images=pairs"
    )


def test_stages_are_merged_into_one_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for stage in ("train", "evaluate"):
        monkeypatch.setattr(sys, "argv", ["croco.py", stage, "--out", str(tmp_path)])
        croco.save_stage(tmp_path, stage, {"steps": 1}, CPU)
    result = json.loads((tmp_path / "croco.json").read_text("utf-8"))
    assert result["train"] == result["evaluate"] == {"steps": 1}
    assert result["commands"][1] == f"python benchmarks/croco.py evaluate --out runs/{tmp_path.name}"


def test_reconstructions_keep_visible_patches() -> None:
    torch.manual_seed(0)
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2, "decoder_layers": 2}
    model = CroCo(CroCoConfig.micro(**sizes)).eval()
    view1, view2, view3 = torch.rand(3, 2, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    seen = torch.tensor([[0, 3], [1, 7]])
    sheet = np.asarray(croco_evaluation.draw_reconstructions(model, view1, seen, [view2, view3]))
    height, width, gap = 12 * 2, 16 * 2, croco_evaluation.GAP
    assert sheet.shape == (2 * height + gap, 6 * width + 5 * gap, 3)

    def cell(row: int, column: int) -> np.ndarray:
        top, left = row * (height + gap), column * (width + gap)
        return sheet[top : top + height : 2, left : left + width : 2].astype(int)

    true = (view1 * 255).round().permute(0, 2, 3, 1).numpy().astype(int)
    assert (cell(1, 5) == true[1]).all()
    for column in (0, 2, 4):
        assert (cell(0, column)[:4, :4] == true[0, :4, :4]).all()  # patch 0 is visible
        assert (cell(0, column)[4:8, :4] != true[0, 4:8, :4]).mean() > 0.5  # patch 4 is not
    assert (cell(0, 1) == (view2[0] * 255).round().permute(1, 2, 0).numpy().astype(int)).all()
    assert (cell(0, 2) != cell(0, 4)).any()
