"""Batches and models that do not fit into memory, simulated: training continues with the same result."""

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.data.text.tokens import ParallelTokens
from regard.errors import UserError
from regard.models.transformer import TransformerConfig
from regard.training import memory
from regard.training.memory import build_model, is_out_of_memory, read_peak
from regard.training.parallelism import SingleProcess
from regard.training.progress import Progress
from regard.training.recipe import Recipe, TrainingSettings
from regard.training.run import run_recipe
from regard.training.task import LossSum, Step
from regard.training.tasks.translation.data import TranslationData
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch
from tests.conftest import build_task, small_recipe
from tests.training.test_loop import Batch, Line, log, points, run, saved


class LimitedLine(Line):
    """A line whose memory holds a limited number of points; backward fails after changing some gradients.

    Args:
        batches: the points.
        limit: number of points that fit.
        spared: number of losses at the beginning to which the limit does not apply.
    """

    def __init__(self, batches: list[Batch], limit: int, spared: int = 0) -> None:
        super().__init__(batches)
        self.limit, self.spared, self.tried = limit, spared, list[int]()

    def loss(self, batch: Batch, step: Step) -> LossSum:
        self.tried.append(len(batch[0]))
        loss = super().loss(batch, step)
        if len(self.tried) > self.spared and len(batch[0]) > self.limit:
            loss.total.register_hook(self.fail)
        return loss

    def fail(self, gradient: Tensor) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e6)  # as after a partial backward pass
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_splitting_does_not_change_the_weights(tmp_path: Path, limit: int) -> None:
    run(Line(points(12, 5, 9)), tmp_path / "unlimited", {"accumulate": 2})
    run(LimitedLine(points(12, 5, 9), limit), tmp_path / "limited", {"accumulate": 2})
    assert saved(tmp_path / "limited" / "last") == pytest.approx(saved(tmp_path / "unlimited" / "last"), abs=1e-12)
    one, other = (
        [entry["loss"] for entry in log(tmp_path / name) if "loss" in entry] for name in ("unlimited", "limited")
    )
    assert one == pytest.approx(other)


def test_largest_batch_is_tried_before_the_first_step_and_reported_once(tmp_path: Path) -> None:
    task = LimitedLine(points(12, 5), 4)
    run(task, tmp_path / "out")
    message = "the largest batch does not fit into memory (12 points): batches of that size are split into "
    message += "microbatches, with the same result; points=3 would avoid it"
    assert [(entry["step"], entry["event"]) for entry in log(tmp_path / "out") if "event" in entry] == [
        (0, message),
        (2, "out of memory (5 points): batches of that size are split into microbatches, with the same result; "
         "points=2 would avoid it"),
    ]  # fmt: skip
    assert f"step 0: {message}" in (tmp_path / "out" / "shown").read_text().splitlines()
    assert task.tried[:6] == [12, 6, 3, 3, 3, 3]
    assert [entry["split_batches"] for entry in log(tmp_path / "out") if "loss" in entry] == [1, 2, 3, 4]
    assert sum(size > 4 for size in task.tried) == 3, "sizes that have failed are not tried again"


def test_later_lack_of_memory_is_reported_and_counted(tmp_path: Path) -> None:
    task = LimitedLine(points(8), 4, spared=3)
    run(task, tmp_path / "out")
    (event,) = [entry for entry in log(tmp_path / "out") if "event" in entry]
    assert event["step"] == 3
    assert event["event"].startswith("out of memory (8 points): batches of that size are split into microbatches")
    assert [entry.get("split_batches") for entry in log(tmp_path / "out") if "loss" in entry] == [None, None, 1, 2]
    assert task.tried == [8, 8, 8, 8, 4, 4, 4, 4]


def test_single_example_that_does_not_fit_is_rejected_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^1 points does not fit into memory; try points=0$"):
        run(LimitedLine(points(3), 0), tmp_path / "out")


def test_single_example_that_does_not_fit_later_is_dropped_and_reported(tmp_path: Path) -> None:
    (batch,) = points(4)
    large = batch[0][2]

    class OneLargeExample(LimitedLine):
        def loss(self, batch: Batch, step: Step) -> LossSum:
            self.limit = 0 if (batch[0] == large).all(1).any() else 100
            return super().loss(batch, step)

    run(OneLargeExample([batch], 0, spared=1), tmp_path / "limited", steps=2)
    run(Line([(batch[0][[0, 1, 3]], batch[1][[0, 1, 3]])]), tmp_path / "without", steps=2)
    assert saved(tmp_path / "limited" / "last") == pytest.approx(saved(tmp_path / "without" / "last"), abs=1e-12)
    events = [entry["event"] for entry in log(tmp_path / "limited") if "event" in entry]
    assert events.count("1 points does not fit into memory even alone and was dropped") == 2
    assert [entry["dropped_examples"] for entry in log(tmp_path / "limited") if "loss" in entry] == [1, 2]


def test_step_without_fitting_examples_is_skipped(tmp_path: Path) -> None:
    one_step = LimitedLine(points(2), 0, spared=2)
    run(one_step, tmp_path / "one", {"max_skips": 100}, steps=1)
    three_steps = LimitedLine(points(2), 0, spared=2)
    run(three_steps, tmp_path / "three", {"max_skips": 100}, steps=3)
    assert torch.equal(three_steps.model.weight, one_step.model.weight)
    assert [entry["skipped_steps"] for entry in log(tmp_path / "three") if "skipped_steps" in entry][-1] == 2


def test_other_errors_are_not_treated_as_lack_of_memory(tmp_path: Path) -> None:
    class Broken(Line):
        def loss(self, batch: Batch, step: Step) -> LossSum:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        run(Broken(points(4)), tmp_path / "out")


def test_all_forms_of_out_of_memory_are_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**52)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("anything"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("device-side assert triggered"))
    assert not is_out_of_memory(KeyError("out of memory"))


def test_model_beyond_any_memory_is_rejected() -> None:
    config = TransformerConfig(source_vocab=8, target_vocab=8, width=4 * 10**9, heads=4, positions="rotary")
    with torch.device("meta"), pytest.raises(UserError, match="is too large for any memory; choose smaller model keys"):
        build_model(config, torch.device("cpu"))


def test_model_too_large_for_its_optimizer_is_rejected(tmp_path: Path) -> None:
    task = Line(points(4))
    expanded = torch.empty(1, 1, dtype=torch.float64).expand(1, 2**45)  # occupies 8 bytes
    task.model.weight = torch.nn.Parameter(expanded)
    with pytest.raises(
        UserError, match=r"^the model does not fit into memory: its 35,184,372 M parameters take 281,475"
    ):
        run(task, tmp_path / "out")


def test_sizes_that_have_failed_are_split_without_trying() -> None:
    task = Line(points(16))
    sizes: list[int] = []

    class Limited(SingleProcess[Batch]):
        def add_gradients(self, batch: Batch, step: Step, last: bool = True) -> LossSum:
            sizes.append(len(batch[0]))
            if len(batch[0]) > 5:
                raise MemoryError
            return task.loss(batch, step)

    strategy = Limited(task, TrainingSettings())
    assert strategy.accumulate(task.given, 16, 1).split == 1
    assert sizes == [16, 8, 4, 4, 4, 4]
    sizes.clear()
    assert strategy.accumulate(task.given, 16, 2).failed == []
    assert sizes == [4, 4, 4, 4]


def test_trying_the_largest_batch_changes_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoisyLine(Line):
        def loss(self, batch: Batch, step: Step) -> LossSum:
            noise = torch.rand(len(batch[0]), dtype=torch.double)
            return LossSum(((self.model(batch[0])[:, 0] - batch[1]) * noise).square().sum(), len(batch[0]))

    torch.manual_seed(3)
    run(NoisyLine(points(6)), tmp_path / "tried")
    monkeypatch.setattr("regard.training.loop.TrainingLoop.try_largest_batch", lambda self: None)
    torch.manual_seed(3)
    run(NoisyLine(points(6)), tmp_path / "plain")
    assert saved(tmp_path / "tried" / "last") == saved(tmp_path / "plain" / "last")


# Translation


@pytest.fixture(scope="module", params=["padded", "packed"])
def task(request: pytest.FixtureRequest, toy: Path) -> TranslationTask:
    recipe = small_recipe(toy / "train.en", toy / "train.zh", batch__layout=request.param)
    task = build_task(recipe, torch.device("cpu"), Progress(1))
    assert isinstance(task, TranslationTask)
    return task


def split_rows(task: TranslationTask, batch: TextBatch) -> list[int]:
    """Return the rows of a batch that is halved down to single sentences."""
    halves = task.split(batch)
    return batch.rows.tolist() if halves is None else [row for half in halves for row in split_rows(task, half)]


def test_losses_and_rows_of_halves_add_up(task: TranslationTask) -> None:
    batch = task.largest_batch()
    halves = task.split(batch)
    assert halves is not None
    assert abs(halves[0].sentences - halves[1].sentences) <= 1
    assert sum(task.count(half) for half in halves) == task.count(batch)
    total = sum(task.loss(half, 1).total.item() for half in halves)
    assert total == pytest.approx(task.loss(batch, 1).total.item(), rel=1e-5)
    assert split_rows(task, batch) == batch.rows.tolist()


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), tokens=st.integers(1, 600))
def test_no_batch_has_longer_sentences_than_the_largest_batch(task: TranslationTask, seed: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(task.train_tokens), 300)
    corpus = task.train_tokens
    sample = ParallelTokens(corpus.source.take(rows), corpus.target.take(rows), None, (300,))
    recipe = task.recipe.with_group("batch", tokens=tokens)
    data = TranslationData(Path(), task.translator.vocabularies, sample, task.valid_pairs[:1], {}, {})
    small = TranslationTask(task.translator, data, recipe, task.device)
    largest = small.largest_batch()
    for planned in small._plan(sample, np.arange(300), rng):
        batch = small.collate(sample, planned)
        assert batch.longest <= largest.longest
        assert batch.padded_tokens <= max(largest.padded_tokens + largest.longest, tokens)
    assert largest.sentences == 1 or largest.padded_tokens <= tokens
    assert largest.sentences == len(sample) or largest.padded_tokens + largest.longest > tokens


def test_splitting_does_not_change_a_translator(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With the default eps, Adam turns gradients that are only rounding errors into steps of full size.
    recipe = make_recipe(training__steps=6, training__validate_every=6, training__log_every=2, optim__eps=1e-3)
    run_recipe(recipe, tmp_path / "unlimited")
    original = TranslationTask.loss

    def limited(self: TranslationTask, batch: TextBatch, step: int) -> LossSum:
        if batch.sentences > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, batch, step)

    monkeypatch.setattr(TranslationTask, "loss", limited)
    run_recipe(recipe, tmp_path / "limited")
    one, other = (
        safetensors.torch.load_file(tmp_path / name / "last" / "model.safetensors") for name in ("unlimited", "limited")
    )
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    entries = log(tmp_path / "limited")
    assert "batch.tokens=" in entries[0]["event"]
    counts = [entry["split_batches"] for entry in entries if "loss" in entry]
    assert 0 < counts[0] < counts[-1] <= 6
    assert counts == sorted(counts)


def test_sentence_that_does_not_fit_is_rejected_with_advice(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def limited(self: TranslationTask, batch: TextBatch, step: int) -> LossSum:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TranslationTask, "loss", limited)
    message = r"^a sentence of (\d+) tokens does not fit into memory; try data.max_length=\d+, or a smaller model$"
    with pytest.raises(UserError, match=message):
        run_recipe(make_recipe(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads kibibytes")
def test_peak_memory_is_in_megabytes() -> None:
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read_peak(torch.device("cpu")) == pytest.approx(kibibytes * 1.024 / 1000, rel=0.01)


def test_model_that_cannot_be_built_is_rejected_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(config: object) -> torch.nn.Module:
        if torch.empty(0).device.type != "meta":
            raise MemoryError
        return torch.nn.Linear(1000, 1000, bias=False)

    monkeypatch.setitem(memory.MODELS, "large", make)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^the model does not fit into memory: its 1 M parameters"):
        memory.build_model(SimpleNamespace(kind="large"), torch.device("cpu"))
