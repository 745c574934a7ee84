"""CroCo tasks: batches, resuming, initialisation and photographs."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.data.two_view.scene import SceneRandom
from regard.errors import UserError
from regard.evaluation.croco import choose_visible
from regard.models.croco import CroCo
from regard.models.folder import load_model
from regard.training.progress import Progress
from regard.training.run import run_recipe
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.croco import (
    HELD_OUT,
    CompletionSettings,
    CompletionTask,
    CroCoRecipe,
    PhotoPairs,
    StereoPairs,
    find_pairs,
    take_scenes,
)
from regard.training.tasks.registry import TASKS, load_recipe
from tests.conftest import build_task

TINY = {
    "model.kind": "croco",
    "model.preset": "micro",
    "model.patch": 4,
    "model.width": 16,
    "model.heads": 2,
    "model.decoder_width": 16,
    "model.decoder_heads": 2,
    "model.decoder_layers": 2,
    "model.drop_path": 0.2,
    "data.scenes": {"size": [16, 16], "objects": 2},
    "data.hold_out": 6,
    "batch.pairs": 4,
    "optim.warmup": 2,
    "training.steps": 6,
    "training.validate_every": 3,
    "training.checkpoint_every": 1,
    "training.log_every": 2,
    "training.device": "cpu",
}
DENSE = {"model.head": "dense", "model.head_width": 4}


def recipe(**changes: object) -> CroCoRecipe:
    given = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return load_recipe(None, [], given, expected=CroCoRecipe)


def task_of(run_settings: CroCoRecipe) -> CompletionTask:
    torch.manual_seed(0)
    task = build_task(run_settings, torch.device("cpu"), Progress(1))
    assert isinstance(task, CompletionTask)
    return task


def checkpoint_tensors(out: Path) -> dict[str, torch.Tensor]:
    checkpoint = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    return safetensors.torch.load_file(checkpoint / "state.safetensors")


# Batches


def test_batches_resume_from_any_position_and_are_sharded() -> None:
    task = task_of(recipe())
    first = list(islice(task.batches(DataPosition(), DataShard()), 4))
    later = next(iter(task.batches(first[1].after, DataShard())))
    assert torch.equal(later.item.view1, first[2].item.view1)
    assert torch.equal(later.item.visible, first[2].item.visible)
    second_of_two = next(iter(task.batches(DataPosition(), DataShard(1, 2))))
    assert torch.equal(second_of_two.item.view2, first[1].item.view2)
    assert second_of_two.after == first[1].after
    assert not torch.equal(first[0].item.visible, first[1].item.visible)
    assert not torch.allclose(first[0].item.view1, first[1].item.view1)


def test_patches_are_masked_and_some_second_views_dropped() -> None:
    task = task_of(recipe(completion__drop_second_view=0.5, batch__pairs=40))
    batch = task.largest_batch()
    assert batch.visible.shape == (40, 2)  # of 16 patches
    assert all(len(set(row)) == 2 for row in batch.visible.tolist())
    blank = (batch.view2 == 0.5).flatten(1).all(1)
    assert 10 <= blank.sum() <= 30
    assert not (task_of(recipe(completion__drop_second_view=0.0)).largest_batch().view2 == 0.5).flatten(1).all(1).any()


def test_mask_ratio_can_be_lower_at_first() -> None:
    task = task_of(recipe(completion__initial_mask_ratio=0.5, completion__ramp_steps=4))
    visible = [placed.item.visible.shape[1] for placed in islice(task.batches(DataPosition(), DataShard()), 6)]
    assert visible == [8, 7, 5, 4, 2, 2]
    assert task.largest_batch().visible.shape[1] == 8
    with pytest.raises(UserError, match=r"initial_mask_ratio 0\.95 is more than mask_ratio 0\.9"):
        recipe(completion__initial_mask_ratio=0.95)


@given(
    ratios=st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)),
    ramp_steps=st.integers(1, 300),
    ramp_levels=st.integers(2, 12),
)
def test_mask_ratio_rises_in_equal_steps(ratios: tuple[float, float], ramp_steps: int, ramp_levels: int) -> None:
    first, last = sorted(ratios)
    settings = CompletionSettings(
        mask_ratio=last, initial_mask_ratio=first, ramp_steps=ramp_steps, ramp_levels=ramp_levels
    )
    values = [settings.mask_ratio_at(batch) for batch in range(2 * ramp_steps + 1)]
    assert (values[0], set(values[ramp_steps:])) == (first, {last})
    assert all(one <= other for one, other in pairwise(values))
    assert len(set(values)) <= ramp_levels
    if ramp_steps % (ramp_levels - 1) == 0 and last - first > 0.01:
        steps = [other - one for one, other in pairwise(sorted(set(values)))]
        assert steps == pytest.approx([(last - first) / (ramp_levels - 1)] * (ramp_levels - 1))


def test_number_of_batch_shapes_is_limited_by_the_levels() -> None:
    task = task_of(recipe(data__scenes={"size": [48, 48]}, model__patch=4, completion__initial_mask_ratio=0.6))
    view1, numbers = torch.zeros(1, 3, 48, 48), torch.zeros(1, dtype=torch.long)
    ratios = [task.recipe.completion.mask_ratio_at(batch) for batch in range(1100)]
    shapes = [
        choose_visible(task.model, view1, ratio, SceneRandom(0, numbers)).shape[1] for ratio in dict.fromkeys(ratios)
    ]
    assert shapes == [58, 49, 40, 32, 23, 14]
    assert [ratios.count(ratio) for ratio in dict.fromkeys(ratios)] == [200] * 5 + [100]


def test_losses_of_halves_add_up() -> None:
    task = task_of(recipe(model__drop_path=0.0))
    batch = task.largest_batch()
    halves = task.split(batch)
    assert halves is not None
    whole, parts = task.loss(batch, 1), [task.loss(half, 1) for half in halves]
    assert sum(part.count for part in parts) == whole.count == 4
    assert torch.allclose(sum(part.total for part in parts), whole.total, atol=1e-5)
    (single,) = [half for half in task.split(halves[0]) or () if half is not None][:1]
    assert task.split(single) is None
    assert task.advise(batch) == "batch.pairs=2"


def test_validation_pairs_are_not_used_for_training() -> None:
    task = task_of(recipe())
    numbers = torch.cat(task.held_out())
    assert len(numbers) == 6 and numbers.min() >= HELD_OUT
    assert (torch.arange(4) + 10**9 * 4).max() < HELD_OUT  # after a billion steps


def test_disparity_is_scored_in_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    task = build_task(load_recipe(None, [], TINY | DENSE), torch.device("cpu"), Progress(1))
    monkeypatch.setattr(CroCo, "forward", lambda self, left, right: torch.full((len(left), 1, 16, 16), 0.5))
    batch = task.make(0)
    assert isinstance(batch, StereoPairs)
    loss = task.loss(replace(batch, disparity=torch.full((4, 16, 16), 4.5)), 1)  # half a patch is 2 pixels
    assert (loss.count, float(loss.total)) == (4, 4 * (2.5 - 0.5))
    assert {name: float(total) for name, total in loss.logged.items()} == {"pixels_off": 4 * 2.5}
    disparity = torch.cat([task.make_pairs(numbers, 0).disparity for numbers in task.held_out()])
    assert len(disparity) == 6
    scores = task.validate(task.model).scores
    assert scores["pixels_off"] == -scores["score"] == pytest.approx(float((disparity - 2).abs().mean()))
    assert scores["share_off_by_one"] == pytest.approx(float(((disparity - 2).abs() > 1).float().mean()))
    medians = torch.stack([one.flatten().median() for one in disparity])[:, None, None]
    assert scores["pixels_off_flat"] == pytest.approx(float((disparity - medians).abs().mean()))
    assert not torch.equal(task.make(0).left, task.make(1).left)


# Runs


@pytest.mark.parametrize("head", [{}, DENSE], ids=["completion", "disparity"])
def test_resumed_run_has_bit_identical_weights(
    head: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_settings = load_recipe(None, [], TINY | head)
    run_recipe(run_settings, tmp_path / "uninterrupted")
    forward, calls = CroCo.forward, 0

    def failing(self: CroCo, *views: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += self.training
        if calls == 5:
            raise RuntimeError("power cut")
        return forward(self, *views)

    monkeypatch.setattr(CroCo, "forward", failing)
    with pytest.raises(RuntimeError, match="power cut"):
        run_recipe(run_settings, tmp_path / "resumed")
    monkeypatch.setattr(CroCo, "forward", forward)
    result = run_recipe(run_settings, tmp_path / "resumed")
    assert result.steps == 6
    expected, resumed = checkpoint_tensors(tmp_path / "uninterrupted"), checkpoint_tensors(tmp_path / "resumed")
    assert expected.keys() == resumed.keys()
    assert [name for name in expected if not torch.equal(expected[name], resumed[name])] == []


def test_training_lowers_the_loss_with_the_true_second_view(tmp_path: Path) -> None:
    changes = {"training__steps": 60, "training__validate_every": 30, "batch__pairs": 16, "optim__lr": 5e-3}
    run_settings = recipe(
        **changes,
        model__drop_path=0.0,
        data__scenes={"size": [16, 16], "max_turn": 0, "max_baseline": 0, "max_roll": 0},
    )
    result = run_recipe(run_settings, tmp_path / "run")
    assert result.scores.keys() == {"loss", "shuffled", "none", "score"}
    assert result.scores["loss"] < 0.95
    assert result.scores["loss"] < result.scores["shuffled"]
    model, _ = load_model(tmp_path / "run" / "best")
    assert isinstance(model, CroCo)


def test_disparity_is_initialised_from_completion(tmp_path: Path) -> None:
    run_recipe(recipe(training__steps=2), tmp_path / "completion")
    init = {"init__from": str(tmp_path / "completion")}
    run_settings = load_recipe(None, [], {"model": {"kind": "croco", "head": "dense", "head_width": 4}} | {
        key: value for key, value in TINY.items() if not key.startswith("model.")
    } | {"init.from": str(tmp_path / "completion"), "training.steps": 1, "optim.lr": 1e-12})  # fmt: skip
    run_recipe(run_settings, tmp_path / "disparity")
    before, _ = load_model(tmp_path / "completion" / "last")
    after, _ = load_model(tmp_path / "disparity" / "last")
    assert after.config.head == "dense" and after.config.width == 16
    croco_task = TASKS["croco"]
    assert "train disparity-scenes --init-from" in croco_task.next_command(tmp_path / "completion")
    assert croco_task.next_command(tmp_path / "disparity").startswith(f"regard look {tmp_path / 'disparity'} ")
    assert torch.allclose(before.decoder[1].cross.qkv.weight, after.decoder[1].cross.qkv.weight, atol=1e-6)
    assert torch.allclose(before.patch_embedding.weight, after.patch_embedding.weight, atol=1e-6)
    with pytest.raises(UserError, match=r"model.width: 32 contradicts 16 of .*completion.*; omit it"):
        run_recipe(recipe(model__width=32, **init), tmp_path / "other")


# Errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__wdith": 8}, "unknown key model.wdith; did you mean model.width"),
        ({"model__preset": "huge"}, "'huge' is not one of micro, mini, small, base, large"),
        ({"data__scenes": {"size": [18, 16]}}, "data.scenes.size: an image of 18×16 .* 16×16 or 20×16 would fit"),
        ({"data__scenes": {"objets": 3}}, "did you mean data.scenes.objects"),
        ({"completion__mask_ratio": 1.0}, "completion.mask_ratio"),
        ({"model__head": "dense", "data__images": "photos"}, "data.images: photographs have no disparities"),
    ],
)
def test_contradictory_recipe_is_rejected(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe(**changes)


@pytest.mark.parametrize("name", ["croco-scenes", "disparity-scenes"])
def test_builtin_recipes_are_valid(name: str) -> None:
    assert isinstance(load_recipe(Path(name)), CroCoRecipe)


# Photographs


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three pairs; the second view is a copy of the first with pixel values increased by 1."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        pixels = rng.integers(0, 200, (20, 24, 3), dtype=np.uint8)
        for view in (1, 2):
            Image.fromarray(pixels + view).save(tmp_path / "photos" / name / f"view{view}.png")
    return tmp_path / "photos"


def test_photographs_are_cropped_at_the_same_position(photos: Path) -> None:
    source = PhotoPairs(find_pairs(photos), (16, 16), seed=3, held_out=1)
    one, other = source.take(torch.arange(20))
    assert one.shape == (20, 3, 16, 16)
    assert torch.allclose(other - one, torch.tensor(1 / 255), atol=1e-6)
    assert torch.equal(source.take(torch.tensor([7]))[0][0], one[7])
    held_out_crops, _ = source.take(torch.arange(60) + HELD_OUT)
    last = source.images[2][0].float() / 255
    crops = last.unfold(1, 16, 1).unfold(2, 16, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
    assert all((crops == crop).flatten(1).all(1).any() for crop in held_out_crops)
    assert not any((crops == crop).flatten(1).all(1).any() for crop in one)
    corners = {divmod(int((crops == crop).flatten(1).all(1).nonzero()), 9) for crop in held_out_crops}
    assert {top for top, _ in corners} == set(range(5))
    assert {0, 8} <= {left for _, left in corners}


def test_changed_photograph_is_rejected_on_resuming(photos: Path, tmp_path: Path) -> None:
    run_settings = recipe(data__images=str(photos), training__steps=2)
    run_recipe(run_settings, tmp_path / "run")
    Image.new("RGB", (24, 20)).save(photos / "a" / "view1.png")
    longer = recipe(data__images=str(photos), training__steps=4)
    with pytest.raises(UserError, match=r"view1.png: has changed since the run"):
        run_recipe(longer, tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "b" / "view2.png").unlink(), r"b: 1 images; a pair is a folder with two images"),
        (lambda folder: (folder / "b" / "view2.png").write_text("no"), r"view2.png: a text file, not an image"),
        (lambda folder: Image.new("RGB", (24, 8)).save(folder / "c" / "view1.png"), r"c: .*same size"),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), r"photos: no such folder"),
    ],
    ids=["missing", "text", "size", "gone"],
)
def test_bad_photographs_are_rejected(
    damage: Callable[[Path], object], message: str, photos: Path, tmp_path: Path
) -> None:
    damage(photos)
    with pytest.raises(UserError, match=message):
        run_recipe(recipe(data__images=str(photos)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_rendering_in_chunks_does_not_change_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = recipe().data.scenes
    at_once = take_scenes(settings, 1, torch.arange(5))
    monkeypatch.setattr("regard.training.tasks.croco.MAX_RENDERED_PIXELS", 2 * math.prod(settings.size))
    assert all(
        torch.allclose(one, other, atol=1e-5)
        for one, other in zip(at_once, take_scenes(settings, 1, torch.arange(5)), strict=True)
    )
