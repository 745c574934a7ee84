"""Losses and gradients that are no numbers, or too large: the step is skipped, counted and named."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import UserError
from regard.ops.dispatch import TRITON_INSTALLED
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.skip import StepCheck
from regard.training.task import LossSum
from regard.training.tasks.translation.task import TextBatch, TranslationTask
from tests.training.test_loop import Batch, Line, log, points, run, saved

CPU = torch.device("cpu")


class Spoiled(Line):
    """A line whose loss is multiplied by something at some steps."""

    def __init__(self, batches: list[Batch], factors: dict[int, float]) -> None:
        super().__init__(batches)
        self.factors, self.weights = factors, dict[int, list[float]]()

    def loss(self, batch: Batch, step: int) -> LossSum:
        self.weights[step] = self.model.weight.flatten().tolist()
        loss = super().loss(batch, step)
        return LossSum(loss.total * self.factors.get(step, 1.0), loss.count)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_step_without_a_finite_loss_moves_nothing_and_is_counted(tmp_path: Path, factor: float) -> None:
    task = Spoiled(points(6), {3: factor})
    run(task, tmp_path / "out", steps=6)
    assert task.weights[4] == task.weights[3] != task.weights[2]
    assert task.weights[5] != task.weights[4]
    entries = log(tmp_path / "out")
    events = [entry for entry in entries if "event" in entry]
    assert [entry["step"] for entry in events] == [3]
    assert events[0]["event"].startswith("skipped step 3: its loss was ")
    assert [entry.get("skipped") for entry in entries if "lr" in entry] == [None, None, 1, 1, 1, 1]
    assert [entry["loss"] is None for entry in entries if "lr" in entry] == [False, False, True, False, False, False]
    assert "step 3: skipped step 3: " in (tmp_path / "out" / "shown").read_text()
    assert "NaN" not in (tmp_path / "out" / "log.jsonl").read_text()


def test_moments_take_nothing_in_from_a_skipped_step(tmp_path: Path) -> None:
    """With one batch that never changes and a constant rate, a run with one step skipped is one step behind."""
    run(Line(points(6)), tmp_path / "plain", steps=5)
    run(Spoiled(points(6), {2: math.nan}), tmp_path / "skipped", steps=6)
    assert saved(tmp_path / "skipped" / "last") == saved(tmp_path / "plain" / "last")


def test_an_average_sees_unchanged_weights_where_a_step_was_skipped(tmp_path: Path) -> None:
    task = Spoiled(points(6), {4: math.nan})
    run(task, tmp_path / "out", steps=5, validate_every=5, average=0.4)
    last = torch.tensor(task.model.weight.flatten().tolist(), dtype=torch.double)
    expected = (torch.tensor(task.weights[5], dtype=torch.double) + last) / 2
    assert saved(tmp_path / "out" / "last") == pytest.approx(expected.tolist())


def test_the_mean_loss_of_the_log_leaves_skipped_steps_out(tmp_path: Path) -> None:
    run(Spoiled(points(6), {2: math.nan}), tmp_path / "out", {"lr": 1e-12}, log_every=4)
    run(Line(points(6)), tmp_path / "plain", {"lr": 1e-12}, log_every=4)
    one, other = ([entry["loss"] for entry in log(tmp_path / name) if "loss" in entry] for name in ("out", "plain"))
    assert one == pytest.approx(other)


def test_a_gradient_that_explodes_is_skipped_where_a_bound_is_set(tmp_path: Path) -> None:
    free = Spoiled(points(6), {3: 1e6})
    run(free, tmp_path / "free")
    assert free.weights[4] != free.weights[3]
    bounded = Spoiled(points(6), {3: 1e6})
    run(bounded, tmp_path / "bounded", {"skip_above": 1000})
    assert bounded.weights[4] == bounded.weights[3] != bounded.weights[2]
    (event,) = [entry["event"] for entry in log(tmp_path / "bounded") if "event" in entry]
    assert event.endswith(", over optim.skip_above (1e+03)")


def test_a_gradient_that_explodes_is_skipped_without_a_bound_once_it_is_known_what_is_usual(tmp_path: Path) -> None:
    task = Spoiled(points(6), {99: 1e3, 121: 1e6, 122: 2.0})
    run(task, tmp_path / "out", {"lr": 1e-6}, steps=125)
    assert task.weights[100] != task.weights[99]
    assert task.weights[122] == task.weights[121]
    assert task.weights[123] != task.weights[122]
    (event,) = [entry["event"] for entry in log(tmp_path / "out") if "event" in entry]
    assert event.startswith("skipped step 121: ")
    assert event.endswith(", 100 times the mean of the steps before)")


def test_gradients_that_stay_over_the_bound_end_the_run_and_the_bound_is_named(tmp_path: Path) -> None:
    sentence = r"^3 steps in a row .*, over optim.skip_above \(1e-06\); lower optim.lr, .* or raise optim.skip_above"
    with pytest.raises(UserError, match=sentence):
        run(Line(points(6)), tmp_path / "out", {"max_skips": 3, "skip_above": 1e-6}, log_every=100)


def test_too_many_in_a_row_end_the_run_with_advice_and_the_checkpoint_stays(tmp_path: Path) -> None:
    task = Spoiled(points(6), dict.fromkeys(range(3, 99), math.nan))
    with pytest.raises(UserError, match=r"^[3-6] steps in a row were skipped, .*: its loss was nan .*lower optim.lr"):
        run(task, tmp_path / "out", {"max_skips": 3}, steps=50, validate_every=100, log_every=100, checkpoint_every=2)
    assert task.weights[max(task.weights)] == task.weights[3]
    assert (tmp_path / "out" / "checkpoints" / "last").read_text().startswith("step-0000000")


def test_single_ones_never_end_it(tmp_path: Path) -> None:
    task = Spoiled(points(6), dict.fromkeys(range(1, 40, 2), math.nan))
    assert run(task, tmp_path / "out", {"max_skips": 2}, steps=40).steps == 40
    assert log(tmp_path / "out")[-2]["skipped"] == 20


def test_a_reading_tells_what_is_new() -> None:
    skips = StepCheck(CPU, above=10)

    def judge(step: int, loss: float, norm: float) -> bool:
        return bool(skips.judge(step, torch.tensor(loss), torch.tensor(norm)))

    assert judge(1, 1, 10)
    assert skips.read() is None
    assert not judge(2, math.nan, 1)
    assert not judge(3, 1, 11)
    found = skips.read()
    assert found is not None
    assert (found.steps, found.in_a_row, found.last) == (2, 2, 3)
    assert found.why == "its loss was 1 and its gradient's norm 11, over optim.skip_above (10)"
    assert "raise optim.skip_above" in found.advice
    assert skips.read() is None
    assert judge(4, 1, 1)
    assert not judge(5, math.inf, 1)
    found = skips.read()
    assert found is not None
    assert (found.steps, found.in_a_row, found.last, skips.total) == (1, 1, 5, 3)
    assert "skip_above" not in found.why + found.advice


def test_what_is_usual_is_the_mean_norm_of_the_steps_taken() -> None:
    skips = StepCheck(CPU)

    def judge(norm: float) -> bool:
        return bool(skips.judge(1, torch.tensor(1.0), torch.tensor(norm)))

    assert all(judge(norm) for norm in [1.0, 3.0] * 49 + [1.0])
    assert not judge(math.nan)
    assert judge(3.0)  # the hundredth that is taken
    assert not judge(201.0)
    assert judge(199.0)
    assert judge(201.0)  # for the mean has risen


# Translation


def spoil(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    whole = TranslationTask.loss

    def spoiled(self: TranslationTask, batch: TextBatch, step: int) -> LossSum:
        loss = whole(self, batch, step)
        return LossSum(loss.total * math.nan, loss.count) if step in steps else loss

    monkeypatch.setattr(TranslationTask, "loss", spoiled)


def test_a_translator_survives_losses_that_are_no_numbers(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {3, 4, 9})
    run_recipe(make_recipe(training__steps=12, training__validate_every=12, training__log_every=6), tmp_path / "run")
    entries = log(tmp_path / "run")
    assert [entry["event"].split(":")[0] for entry in entries if "event" in entry] == [
        "skipped 2 steps, the last of them step 4",
        "skipped step 9",
    ]
    assert [entry["skipped"] for entry in entries if "lr" in entry] == [2, 3]
    assert math.isfinite(json.loads((tmp_path / "run" / "last" / "scores.json").read_text())["validation"]["loss"])


def test_a_resumed_run_counts_on(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {3, 9})
    settings: dict[str, Any] = {"training__log_every": 4, "training__validate_every": 12, "optim__schedule": "constant"}
    run_recipe(make_recipe(training__steps=12, **settings), tmp_path / "whole")
    run_recipe(make_recipe(training__steps=6, **settings), tmp_path / "parts")
    run_recipe(make_recipe(training__steps=12, **settings), tmp_path / "parts")

    def told(name: str) -> list[tuple[int, Any]]:
        return [(entry["step"], entry.get("event", entry.get("skipped"))) for entry in log(tmp_path / name)]

    assert [entry for entry in told("parts") if entry[0] > 6] == [entry for entry in told("whole") if entry[0] > 6]
    assert told("whole")[-2] == (12, 2)


def test_a_rate_that_is_far_too_high_ends_the_run_with_advice(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe(optim__lr=1e30, optim__warmup=1, optim__clip=None, training__steps=40, training__log_every=5)
    with pytest.raises(UserError, match=r"1\d steps in a row were skipped, .*; lower optim.lr"):
        run_recipe(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_that_has_diverged_is_not_judged_but_refused_with_advice(
    make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe = make_recipe(optim__lr=1e30, optim__warmup=1, optim__clip=None, training__steps=5)
    with pytest.raises(UserError, match=r"^the validation loss is nan, so the model has diverged; lower optim.lr"):
        run_recipe(recipe, tmp_path / "run")


def test_the_optimiser_leaves_a_skipped_step_alone_in_every_part() -> None:
    from regard.training.loop import build_optimiser
    from regard.training.recipe import OptimSettings

    model = torch.nn.Linear(3, 2)
    optimiser = build_optimiser(model, OptimSettings(weight_decay=0.1))

    def step(found: float, gradient: float) -> list[Tensor]:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimiser.found_inf = torch.tensor(found)
        optimiser.step()
        moments = [tensor.clone() for values in optimiser.state.values() for tensor in values.values()]
        return [*(parameter.detach().clone() for parameter in model.parameters()), *moments]

    step(0.0, 1.0)
    before = step(0.0, 2.0)
    after = step(1.0, math.nan)
    assert len(before) == len(after) == 2 + 2 * 3
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not torch.equal(step(0.0, 1.0)[0], after[0])


@pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")
@pytest.mark.parametrize("above", [None, 7.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_kernel_judges_as_plain_operations_do(above: float | None, dtype: torch.dtype) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plain, kernel = StepCheck(CPU, above), StepCheck(device, above)
    usual = [(1 + i / 7, 1 + i % 3) for i in range(102)]
    odd = [(2.0, 7.25), (2.0, 7.4), (math.nan, 1.0), (1.0, math.inf), (1.0, math.nan), (-math.inf, 2.0), (1.0, 250.0)]
    for step, numbers in enumerate([*odd, *usual, *odd, (1.0, 900.0), *usual[:3]], 1):
        loss, norm = (torch.tensor(number, dtype=dtype) for number in numbers)
        number = torch.tensor(float(step), dtype=torch.float64)
        expected = plain.judge(step, loss, norm)
        found = kernel.judge_by_kernel(number.to(device), loss.to(device), norm.to(device))
        assert (found.dtype, found.shape, bool(found)) == (torch.bool, torch.Size(()), bool(expected)), numbers
        assert torch.equal(kernel.record.cpu().nan_to_num(nan=-1), plain.record.nan_to_num(nan=-1)), numbers
    assert plain.total == (9 if above is None else 13)
