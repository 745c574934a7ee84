"""Batches of images that depend on the seed alone, the loss, and what a validation says."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.pipelines.classifier import Classifier
from regard.training.progress import Progress
from regard.training.run import build_task
from regard.training.state import DataShard, Position
from regard.training.tasks.classification.task import ClassificationTask
from tests.images import image_recipe

Build = Callable[..., ClassificationTask]
STRONG = {"augmentation__preset": "strong", "batch__images": 8}


@pytest.fixture
def build(painted: Path) -> Build:
    def make(**changes: object) -> ClassificationTask:
        torch.manual_seed(1)
        task = build_task(image_recipe(painted, **changes), torch.device("cpu"), Progress(1))
        assert isinstance(task, ClassificationTask)
        return task

    return make


def tensors(task: ClassificationTask, number: int, position: Position, share: DataShard) -> list[Tensor]:
    return [placed.batch.images for placed in islice(task.batches(position, share), number)]


def test_batches_follow_from_the_seed_and_go_on_from_any_position(build: Build) -> None:
    whole = list(islice(build(**STRONG).batches(Position(), DataShard()), 15))  # 54 images: 6 batches an epoch
    assert {placed.after.epoch for placed in whole} == {0, 1, 2}
    again = build(**STRONG)
    for start in (1, 6, 9):
        rest = again.batches(whole[start - 1].after, DataShard())
        for expected, placed in zip(whole[start:], rest, strict=False):
            assert torch.equal(expected.batch.images, placed.batch.images)
            assert torch.equal(expected.batch.targets, placed.batch.targets)
            assert expected.after == placed.after
    other = next(iter(build(**STRONG, training__seed=2).batches(Position(), DataShard())))
    assert not torch.equal(other.batch.images, whole[0].batch.images)


def test_processes_share_the_batches_of_one(build: Build) -> None:
    task = build(**STRONG)
    alone = tensors(task, 6, Position(), DataShard())
    shares = [tensors(task, 3, Position(), DataShard(rank, 2)) for rank in (0, 1)]
    for number, expected in enumerate(alone):
        assert torch.equal(shares[number % 2][number // 2], expected)


@pytest.mark.parametrize("settle", [0.0, 0.5])
def test_batches_that_are_made_at_once_are_those_made_one_by_one(build: Build, settle: float) -> None:
    task = build(**STRONG, augmentation__light_end=settle, training__steps=10)
    alone = list(islice(task.batches(Position(), DataShard()), 15))
    task.train_batches.at_once = 4
    for position, start in ((Position(), 0), (alone[1].after, 2)):
        for expected, placed in zip(alone[start:], task.batches(position, DataShard()), strict=False):
            assert torch.equal(expected.batch.images, placed.batch.images)
            assert torch.equal(expected.batch.targets, placed.batch.targets)
            assert expected.after == placed.after


def test_a_run_settles_at_its_end(build: Build) -> None:
    task = build(
        **STRONG, augmentation__light_end=0.25, optim__label_smoothing=0.0, optim__accumulate=2, training__steps=4
    )
    batches = [placed.batch for placed in islice(task.batches(Position(), DataShard()), 10)]
    assert [bool(((batch.targets > 0).sum(1) > 1).any()) for batch in batches] == [True] * 6 + [False] * 4
    light = build(augmentation__preset="light", optim__label_smoothing=0.0, batch__images=8)
    assert torch.equal(batches[7].images, tensors(light, 8, Position(), DataShard())[7])


def test_mixing_may_end_before_all_else_does(build: Build) -> None:
    settings = STRONG | {"optim__label_smoothing": 0.0, "augmentation__rand_augment_prob": 1, "training__steps": 10}
    task = build(**settings, augmentation__mix_until=0.4, augmentation__light_end=0.2)
    seen = list(islice(task.batches(Position(), DataShard()), 10))
    assert [bool(((placed.batch.targets > 0).sum(1) > 1).any()) for placed in seen] == [True] * 4 + [False] * 6
    unmixed = tensors(build(**settings, augmentation__mix_prob=0), 10, Position(), DataShard())
    alike = [torch.equal(placed.batch.images, images) for placed, images in zip(seen, unmixed, strict=True)]
    assert alike == [False] * 4 + [True] * 4 + [False] * 2  # mixed, strong, settled
    later = next(iter(task.batches(seen[4].after, DataShard())))
    assert torch.equal(later.batch.images, seen[5].batch.images)
    early = build(**settings, augmentation__mix_until=0.9, augmentation__light_end=0.5)
    ends = [placed.batch for placed in islice(early.batches(Position(), DataShard()), 5, 7)]
    assert not any(bool(((batch.targets > 0).sum(1) > 1).any()) for batch in ends)


def test_an_epoch_shows_no_image_twice(build: Build) -> None:
    task = build(optim__label_smoothing=0.0)
    planned = [placed.batch.rows for placed in islice(task.train_batches.plan(Position()), 4)]
    rows = torch.cat(planned)
    assert len(rows) == 48 == len(set(rows.tolist()))


def test_images_that_are_decoded_when_asked_for_make_the_same_batches(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    resident = tensors(build(**STRONG), 8, Position(), DataShard())
    monkeypatch.setattr("regard.training.tasks.classification.data.should_store", lambda *_: False)
    streamed = build(**STRONG)
    assert type(streamed.train_batches.dataset).__name__ == "StreamedImages"
    for expected, images in zip(resident, tensors(streamed, 8, Position(), DataShard()), strict=True):
        assert torch.equal(expected, images)


def test_targets_are_smoothed_and_mixed_and_sum_to_one(build: Build) -> None:
    batch = build(optim__label_smoothing=0.3).largest_batch()
    assert batch.targets.unique().tolist() == pytest.approx([0.1, 0.8])
    mixed = next(iter(build(**STRONG, optim__label_smoothing=0.0).batches(Position(), DataShard()))).batch
    assert torch.allclose(mixed.targets.sum(1), torch.ones(8))
    assert ((mixed.targets > 0).sum(1) > 1).any()


def test_halves_of_a_batch_add_up_to_it(build: Build) -> None:
    task = build(**STRONG)
    batch = task.largest_batch()
    halves = task.split(batch)
    assert halves is not None
    whole, parts = task.loss(batch, 1), [task.loss(half, 1) for half in halves]
    assert sum(part.count for part in parts) == whole.count == 8
    assert sum(part.total.item() for part in parts) == pytest.approx(whole.total.item(), rel=1e-5)
    (single, _) = task.split(task.split(halves[0])[0]) or (None, None)
    assert single is not None and task.split(single) is None
    assert task.describe(single) == "an image of 8×8 pixels"
    assert task.advise(batch) == "batch.images=4"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_no_step_waits_for_the_device(painted: Path) -> None:
    task = build_task(image_recipe(painted, **STRONG, training__device="cuda"), torch.device("cuda"), Progress(1))
    batches = task.batches(Position(), DataShard())
    task.loss(next(batches).batch, 1).total.backward()  # what is made once is made here
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(2, 5):  # within the first epoch
            task.loss(next(batches).batch, step).total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Fixed(nn.Module):
    """Says the same class of every image."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(len(images), -1)


def test_validation_counts_right_answers_and_shows_some(build: Build) -> None:
    task = build()
    found = task.validate(Fixed([0.0, 5.0, 0.0]))
    assert found.scores["accuracy"] == pytest.approx(100 / 3)
    assert found.scores["score"] == found.scores["accuracy"]
    assert "top5" not in found.scores
    assert [sample.translation for sample in found.samples] == ["green"] * 3
    assert {sample.reference for sample in found.samples} == {"blue", "green", "red"}
    assert all(Path(sample.source).parent.name == sample.reference for sample in found.samples)
    with pytest.raises(UserError, match="the validation loss is nan, so the model has diverged"):
        task.validate(Fixed([float("nan")] * 3))


def test_the_loss_can_be_watched_instead(build: Build) -> None:
    scores = build(training__monitor="loss").validate(Fixed([0.0, 0.0, 0.0])).scores
    assert scores["score"] == -scores["loss"] == pytest.approx(-torch.tensor(3.0).log().item())


def test_what_is_saved_says_what_the_task_said(build: Build, tmp_path: Path, painted: Path) -> None:
    task = build()
    task.save(tmp_path, task.model, {"step": 1})
    paths = [painted / "test" / "red" / "000.png", painted / "test" / "blue" / "001.png"]
    loaded = Classifier.load(tmp_path)
    assert loaded.classes == ("blue", "green", "red")
    before = Classifier(task.model, task.preprocessing).probabilities(paths)
    assert (loaded.probabilities(paths) == before).all()
