"""Memory that does not suffice, simulated: the run goes on, ends as it would have, and says what was done."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.data.text.tokens import ParallelTokens
from regard.errors import UserError
from regard.training.memory import Microbatches, is_out_of_memory
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import build_task, run_recipe
from regard.training.task import LossSum
from regard.training.tasks.translation.task import TextBatch, TranslationTask
from tests.conftest import small_recipe
from tests.training.test_loop import Batch, Line, log, points, run, saved


class Cramped(Line):
    """A line whose memory holds only so many points; backward fails after it has changed some gradients."""

    def __init__(self, batches: list[Batch], room: int, spared: int = 0) -> None:
        super().__init__(batches)
        self.room, self.spared, self.tried = room, spared, list[int]()

    def loss(self, batch: Batch, step: int) -> LossSum:
        self.tried.append(len(batch[0]))
        loss = super().loss(batch, step)
        if len(self.tried) > self.spared and len(batch[0]) > self.room:
            loss.total.register_hook(self.fail)
        return loss

    def fail(self, gradient: Tensor) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e6)  # as when the failure comes halfway
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize("room", [1, 3, 7])
def test_a_run_that_lacks_memory_ends_in_the_same_weights(tmp_path: Path, room: int) -> None:
    run(Line(points(12, 5, 9)), tmp_path / "roomy", {"accumulate": 2})
    run(Cramped(points(12, 5, 9), room), tmp_path / "cramped", {"accumulate": 2})
    assert saved(tmp_path / "cramped" / "last") == pytest.approx(saved(tmp_path / "roomy" / "last"), abs=1e-12)
    losses = [[entry["loss"] for entry in log(tmp_path / name) if "loss" in entry] for name in ("roomy", "cramped")]
    assert losses[0] == pytest.approx(losses[1])


def test_what_does_not_fit_is_found_before_the_first_step_and_said_once(tmp_path: Path) -> None:
    task = Cramped(points(12, 5), 4)
    run(task, tmp_path / "out")
    said = "the largest batch does not fit into memory (12 points): batches of that size go through in pieces, which "
    said += "changes no result; points=3 would avoid it"
    assert [(entry["step"], entry["event"]) for entry in log(tmp_path / "out") if "event" in entry] == [
        (0, said),
        (2, "out of memory (5 points): batches of that size go through in pieces, which changes no result; "
         "points=2 would avoid it"),
    ]  # fmt: skip
    assert f"step 0: {said}" in (tmp_path / "out" / "shown").read_text().splitlines()
    assert task.tried[:6] == [12, 6, 3, 3, 3, 3]
    assert [entry["split"] for entry in log(tmp_path / "out") if "loss" in entry] == [1, 2, 3, 4]
    assert sum(size > 4 for size in task.tried) == 3, "what is known not to fit is not tried again"


def test_memory_that_runs_short_later_is_said_and_counted(tmp_path: Path) -> None:
    task = Cramped(points(8), 4, spared=3)
    run(task, tmp_path / "out")
    (event,) = [entry for entry in log(tmp_path / "out") if "event" in entry]
    assert event["step"] == 3
    assert event["event"].startswith("out of memory (8 points): batches of that size go through in pieces")
    assert [entry.get("split") for entry in log(tmp_path / "out") if "loss" in entry] == [None, None, 1, 2]
    assert task.tried == [8, 8, 8, 8, 4, 4, 4, 4]


def test_a_single_thing_too_large_is_refused_at_the_door(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^1 points does not fit into memory; try points=0$"):
        run(Cramped(points(3), 0), tmp_path / "out")


def test_a_single_thing_too_large_later_is_left_out_and_named(tmp_path: Path) -> None:
    pairs = points(4)
    whole, large = pairs[0], pairs[0][0][2]

    class Picky(Cramped):
        def loss(self, batch: Batch, step: int) -> LossSum:
            self.room = 0 if (batch[0] == large).all(1).any() else 100
            return super().loss(batch, step)

    run(Picky([whole], 0, spared=1), tmp_path / "picky", steps=2)
    run(Line([tuple(side[[0, 1, 3]] for side in whole)]), tmp_path / "without", steps=2)
    assert saved(tmp_path / "picky" / "last") == pytest.approx(saved(tmp_path / "without" / "last"), abs=1e-12)
    events = [entry["event"] for entry in log(tmp_path / "picky") if "event" in entry]
    assert events.count("1 points does not fit into memory even alone and was left out") == 2
    assert [entry["left_out"] for entry in log(tmp_path / "picky") if "loss" in entry] == [1, 2]


def test_a_step_of_which_nothing_fits_is_skipped(tmp_path: Path) -> None:
    task = Cramped(points(2), 0, spared=2)
    before: list[Tensor] = []
    run(task, tmp_path / "out", {"max_skips": 100}, steps=1)
    before.append(task.model.weight.detach().clone())
    again = Cramped(points(2), 0, spared=2)
    run(again, tmp_path / "again", {"max_skips": 100}, steps=3)
    assert torch.equal(again.model.weight, before[0])
    assert log(tmp_path / "again")[-2]["skipped"] == 2


def test_other_errors_are_not_mistaken_for_a_want_of_memory(tmp_path: Path) -> None:
    class Broken(Line):
        def loss(self, batch: Batch, step: int) -> LossSum:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        run(Broken(points(4)), tmp_path / "out")


def test_a_want_of_memory_is_known_in_every_form() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**52)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("anything"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not is_out_of_memory(RuntimeError("device-side assert triggered"))
    assert not is_out_of_memory(KeyError("out of memory"))


def test_a_model_too_large_for_its_optimiser_is_refused_with_figures(tmp_path: Path) -> None:
    task = Line(points(4))
    task.model.weight = torch.nn.Parameter(torch.empty(1, 1, dtype=torch.float64).expand(1, 2**45))  # costs 8 bytes
    with pytest.raises(
        UserError, match=r"^the model does not fit into memory: its 35,184,372 M parameters take 281,475"
    ):
        run(task, tmp_path / "out")


# Rehearsal


def test_the_rehearsal_moves_no_weight_gradient_or_random_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noisy(Line):
        def loss(self, batch: Batch, step: int) -> LossSum:
            noise = torch.rand(len(batch[0]), dtype=torch.double)
            return LossSum(((self.model(batch[0])[:, 0] - batch[1]) * noise).square().sum(), len(batch[0]))

    torch.manual_seed(3)
    run(Noisy(points(6)), tmp_path / "rehearsed")
    monkeypatch.setattr("regard.training.loop._Loop.rehearse", lambda self: None)
    torch.manual_seed(3)
    run(Noisy(points(6)), tmp_path / "plain")
    assert saved(tmp_path / "rehearsed" / "last") == saved(tmp_path / "plain" / "last")


# Translation


@pytest.fixture(scope="module", params=["padded", "packed"])
def task(request: pytest.FixtureRequest, toy: Path) -> TranslationTask:
    recipe = small_recipe(toy / "train.en", toy / "train.zh", batch__layout=request.param)
    return build_task(recipe, torch.device("cpu"), Progress(1))


def rows_of(task: TranslationTask, batch: TextBatch) -> list[int]:
    halves = task.split(batch)
    return batch.rows.tolist() if halves is None else [row for half in halves for row in rows_of(task, half)]


def test_halves_are_the_batch_down_to_single_sentences(task: TranslationTask) -> None:
    batch = task.largest()
    halves = task.split(batch)
    assert halves is not None
    assert abs(halves[0].sentences - halves[1].sentences) <= 1
    assert sum(task.count(half) for half in halves) == task.count(batch)
    total = sum(task.loss(half, 1).total.item() for half in halves)
    assert total == pytest.approx(task.loss(batch, 1).total.item(), rel=1e-5)
    assert rows_of(task, batch) == batch.rows.tolist()


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), tokens=st.integers(1, 600))
def test_no_planned_batch_is_longer_than_the_largest_and_few_are_larger(
    task: TranslationTask, seed: int, tokens: int
) -> None:
    chance = np.random.default_rng(seed)
    rows = chance.integers(0, len(task.train), 300)
    corpus = task.train
    sample = ParallelTokens(corpus.source.take(rows), corpus.target.take(rows), None, (300,))
    recipe = task.recipe.changed(batch=task.recipe.batch.model_dump() | {"tokens": tokens})
    small = TranslationTask(task.translator, sample, task.valid[:1], recipe, task.device)
    largest = small.largest()
    for planned in small._plan(sample, np.arange(300), chance):
        batch = small._collate(sample, planned)
        assert batch.longest <= largest.longest
        assert batch.places <= max(largest.places + largest.longest, tokens)
    assert largest.sentences == 1 or largest.places <= tokens
    assert largest.sentences == len(sample) or largest.places + largest.longest > tokens


def test_a_translator_trained_with_too_little_memory_is_the_same(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a larger eps, Adam makes steps of full size out of gradients that are nothing but rounding.
    recipe = make_recipe(training__steps=6, training__validate_every=6, training__log_every=2, optim__eps=1e-3)
    run_recipe(recipe, tmp_path / "roomy")
    whole = TranslationTask.loss

    def cramped(self: TranslationTask, batch: TextBatch, step: int) -> LossSum:
        if batch.sentences > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self, batch, step)

    monkeypatch.setattr(TranslationTask, "loss", cramped)
    run_recipe(recipe, tmp_path / "cramped")
    one, other = (
        safetensors.torch.load_file(tmp_path / name / "last" / "model.safetensors") for name in ("roomy", "cramped")
    )
    assert all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
    entries = log(tmp_path / "cramped")
    assert "batch.tokens=" in entries[0]["event"]
    assert [entry["split"] for entry in entries if "loss" in entry] == [2, 4, 6]


def test_a_sentence_that_does_not_fit_is_refused_with_its_length_and_a_setting(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cramped(self: TranslationTask, batch: TextBatch, step: int) -> LossSum:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TranslationTask, "loss", cramped)
    expected = r"^a sentence of (\d+) tokens does not fit into memory; try data.max_length=\d+, or a smaller model$"
    with pytest.raises(UserError, match=expected):
        run_recipe(make_recipe(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pieces_of_known_size_are_made_without_trying() -> None:
    task = Line(points(16))
    sizes: list[int] = []

    def backward(batch: Batch, tokens: int, step: int) -> LossSum:
        sizes.append(len(batch[0]))
        if len(batch[0]) > 5:
            raise MemoryError
        return task.loss(batch, step)

    pieces = Microbatches(task, backward)
    assert pieces.gather(task.given, 1).split == 1
    assert sizes == [16, 8, 4, 4, 4, 4]
    sizes.clear()
    assert pieces.gather(task.given, 2).failed == []
    assert sizes == [4, 4, 4, 4]
