"""Classification tasks: batches, loss and validation."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.pipelines.classifier import Classifier
from regard.training.progress import Progress
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.classification.task import ClassificationTask
from tests.conftest import build_task
from tests.data.images.helpers import folder_of_classes
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


def tensors(task: ClassificationTask, number: int, position: DataPosition, shard: DataShard) -> list[Tensor]:
    return [placed.item.images for placed in islice(task.batches(position, shard), number)]


def test_batches_depend_on_the_seed_and_resume_from_any_position(build: Build) -> None:
    batches = list(islice(build(**STRONG).batches(DataPosition(), DataShard()), 15))  # 54 images: 6 batches per epoch
    assert {item.after.epoch for item in batches} == {0, 1, 2}
    again = build(**STRONG)
    for start in (1, 6, 9):
        rest = again.batches(batches[start - 1].after, DataShard())
        for expected, placed in zip(batches[start:], rest, strict=False):
            assert torch.equal(expected.item.images, placed.item.images)
            assert torch.equal(expected.item.targets, placed.item.targets)
            assert expected.after == placed.after
    other = next(iter(build(**STRONG, training__seed=2).batches(DataPosition(), DataShard())))
    assert not torch.equal(other.item.images, batches[0].item.images)


def test_shards_of_all_processes_partition_the_batches(build: Build) -> None:
    task = build(**STRONG)
    all_batches = tensors(task, 6, DataPosition(), DataShard())
    shards = [tensors(task, 3, DataPosition(), DataShard(rank, 2)) for rank in (0, 1)]
    for number, expected in enumerate(all_batches):
        assert torch.equal(shards[number % 2][number // 2], expected)


@pytest.mark.parametrize("light_end", [0.0, 0.5])
def test_grouped_augmentation_does_not_change_batches(build: Build, light_end: float) -> None:
    task = build(**STRONG, augmentation__light_end=light_end, training__steps=10)
    ungrouped = list(islice(task.batches(DataPosition(), DataShard()), 15))
    task.train_batches.group_size = 4
    for position, start in ((DataPosition(), 0), (ungrouped[1].after, 2)):
        for expected, placed in zip(ungrouped[start:], task.batches(position, DataShard()), strict=False):
            assert torch.equal(expected.item.images, placed.item.images)
            assert torch.equal(expected.item.targets, placed.item.targets)
            assert expected.after == placed.after


def test_augmentation_is_light_at_the_end(build: Build) -> None:
    task = build(
        **STRONG, augmentation__light_end=0.25, optim__label_smoothing=0.0, optim__accumulate=2, training__steps=4
    )
    batches = [placed.item for placed in islice(task.batches(DataPosition(), DataShard()), 10)]
    assert [bool(((batch.targets > 0).sum(1) > 1).any()) for batch in batches] == [True] * 6 + [False] * 4
    light = build(augmentation__preset="light", optim__label_smoothing=0.0, batch__images=8)
    assert torch.equal(batches[7].images, tensors(light, 8, DataPosition(), DataShard())[7])


def test_mixing_can_end_before_other_augmentation(build: Build) -> None:
    settings = STRONG | {"optim__label_smoothing": 0.0, "augmentation__rand_augment_prob": 1, "training__steps": 10}
    task = build(**settings, augmentation__mix_until=0.4, augmentation__light_end=0.2)
    batches = list(islice(task.batches(DataPosition(), DataShard()), 10))
    assert [bool(((placed.item.targets > 0).sum(1) > 1).any()) for placed in batches] == [True] * 4 + [False] * 6
    unmixed = tensors(build(**settings, augmentation__mix_prob=0), 10, DataPosition(), DataShard())
    equal = [torch.equal(placed.item.images, images) for placed, images in zip(batches, unmixed, strict=True)]
    assert equal == [False] * 4 + [True] * 4 + [False] * 2  # mixed, strong, light
    later = next(iter(task.batches(batches[4].after, DataShard())))
    assert torch.equal(later.item.images, batches[5].item.images)
    early = build(**settings, augmentation__mix_until=0.9, augmentation__light_end=0.5)
    ends = [placed.item for placed in islice(early.batches(DataPosition(), DataShard()), 5, 7)]
    assert not any(bool(((batch.targets > 0).sum(1) > 1).any()) for batch in ends)


def test_epoch_contains_each_image_at_most_once(build: Build) -> None:
    task = build(optim__label_smoothing=0.0)
    planned = [placed.item.rows for placed in islice(task.train_batches.plan(DataPosition()), 4)]
    rows = torch.cat(planned)
    assert len(rows) == 48 == len(set(rows.tolist()))


def test_streamed_images_give_the_same_batches(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = tensors(build(**STRONG), 8, DataPosition(), DataShard())
    monkeypatch.setattr("regard.training.tasks.classification.data.should_store", lambda *_: False)
    streamed = build(**STRONG)
    assert type(streamed.train_batches.dataset).__name__ == "StreamedImages"
    for expected, images in zip(resident, tensors(streamed, 8, DataPosition(), DataShard()), strict=True):
        assert torch.equal(expected, images)


def test_smoothed_and_mixed_targets_sum_to_one(build: Build) -> None:
    batch = build(optim__label_smoothing=0.3).largest_batch()
    assert batch.targets.unique().tolist() == pytest.approx([0.1, 0.8])
    mixed = next(iter(build(**STRONG, optim__label_smoothing=0.0).batches(DataPosition(), DataShard()))).item
    assert torch.allclose(mixed.targets.sum(1), torch.ones(8))
    assert ((mixed.targets > 0).sum(1) > 1).any()


def test_losses_of_halves_add_up(build: Build) -> None:
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
def test_steps_do_not_synchronise_with_the_gpu(painted: Path) -> None:
    task = build_task(image_recipe(painted, **STRONG, training__device="cuda"), torch.device("cuda"), Progress(1))
    batches = task.batches(DataPosition(), DataShard())
    task.loss(next(batches).item, 1).total.backward()  # initialises libraries
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(2, 5):  # within the first epoch
            task.loss(next(batches).item, step).total.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class ConstantModel(nn.Module):
    """Returns the same logits for every image."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.expand(len(images), -1)


def test_validation_returns_accuracy_and_samples(build: Build) -> None:
    task = build()
    validation = task.validate(ConstantModel([0.0, 5.0, 0.0]))
    assert validation.scores["accuracy"] == pytest.approx(100 / 3)
    assert validation.scores["score"] == validation.scores["accuracy"]
    assert "top5" not in validation.scores
    assert [sample.translation for sample in validation.samples] == ["green"] * 3
    assert {sample.reference for sample in validation.samples} == {"blue", "green", "red"}
    assert all(Path(sample.source).parent.name == sample.reference for sample in validation.samples)
    with pytest.raises(UserError, match="the validation loss is nan, so the model has diverged"):
        task.validate(ConstantModel([float("nan")] * 3))


def test_top_5_accuracy_is_reported_for_more_than_five_classes(tmp_path: Path) -> None:
    images = folder_of_classes(tmp_path, dict.fromkeys("abcdefg", 2))
    task = build_task(image_recipe(images), torch.device("cpu"), Progress(1))
    scores = task.validate(ConstantModel([0.0, 7.0, 6.0, 5.0, 4.0, 3.0, -1.0])).scores
    assert (scores["accuracy"], scores["top5"]) == (pytest.approx(100 / 7), pytest.approx(500 / 7))


def test_loss_can_be_monitored(build: Build) -> None:
    scores = build(training__monitor="loss").validate(ConstantModel([0.0, 0.0, 0.0])).scores
    assert scores["score"] == -scores["loss"] == pytest.approx(-torch.tensor(3.0).log().item())


def test_saved_classifier_gives_the_same_probabilities(build: Build, tmp_path: Path, painted: Path) -> None:
    task = build()
    task.save(tmp_path, task.model)
    paths = [painted / "test" / "red" / "000.png", painted / "test" / "blue" / "001.png"]
    loaded = Classifier.load(tmp_path)
    assert loaded.classes == ("blue", "green", "red")
    before = Classifier(task.model, task.preprocessing).probabilities(paths)
    assert (loaded.probabilities(paths) == before).all()
