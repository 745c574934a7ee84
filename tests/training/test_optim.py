"""Optimizer, learning rate schedules, and skipped steps."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import UserError
from regard.training.optim import StepCheck, build_optimizer, learning_rate
from regard.training.recipe import OptimSettings, Recipe
from regard.training.run import run_recipe
from regard.training.task import LossSum, Step
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch
from tests.training.test_loop import Batch, Line, log, points, run, saved

CPU = torch.device("cpu")
STEPS, WARMUP, WIDTH, LR = 1000, 100, 64, 0.5


# Optimizer


def test_vectors_and_embeddings_are_not_decayed() -> None:
    model = nn.ModuleDict({"source_embedding": nn.Embedding(4, 2), "linear": nn.Linear(2, 2), "norm": nn.LayerNorm(2)})
    decayed, others = build_optimizer(model, OptimSettings(weight_decay=0.1)).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert [p.shape for p in decayed["params"]] == [(2, 2)]
    assert len(others["params"]) == 4


def test_found_inf_leaves_weights_and_moments_unchanged() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(model, OptimSettings(weight_decay=0.1))

    def step(found_inf: float, gradient: float) -> list[Tensor]:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.found_inf = torch.tensor(found_inf)
        optimizer.step()
        moments = [tensor.clone() for values in optimizer.state.values() for tensor in values.values()]
        return [*(parameter.detach().clone() for parameter in model.parameters()), *moments]

    step(0.0, 1.0)
    before = step(0.0, 2.0)
    after = step(1.0, math.nan)
    assert len(before) == len(after) == 2 + 2 * 3
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert not torch.equal(step(0.0, 1.0)[0], after[0])


# Schedules


def schedule(name: str, **changes: object) -> Callable[[int], float]:
    optim = OptimSettings.parse({"schedule": name, "lr": LR, "warmup": WARMUP} | changes, "optim")
    return lambda step: learning_rate(optim, step, STEPS, WIDTH)


def test_noam_follows_the_formula_of_the_paper() -> None:
    rate = schedule("noam")
    for step in (1, 7, 99, 100, 101, 1000):
        assert rate(step) == pytest.approx(LR * WIDTH**-0.5 * min(step**-0.5, step * WARMUP**-1.5))


def test_noam_peaks_at_the_end_of_the_warmup() -> None:
    rates = [schedule("noam")(step) for step in range(1, STEPS + 1)]
    assert rates.index(max(rates)) + 1 == WARMUP
    assert max(rates) == pytest.approx(LR / math.sqrt(WIDTH * WARMUP))


@pytest.mark.parametrize("name", ["inverse-sqrt", "cosine", "constant"])
def test_warmup_is_linear_and_ends_at_the_peak(name: str) -> None:
    rate = schedule(name)
    assert [rate(step) for step in (1, 25, 50, 100)] == pytest.approx([LR / 100, LR / 4, LR / 2, LR])
    assert max(map(rate, range(1, STEPS + 1))) == pytest.approx(LR)


def test_inverse_sqrt_decays_with_the_square_root_of_the_step() -> None:
    rate = schedule("inverse-sqrt")
    assert [rate(400), rate(900)] == pytest.approx([LR / 2, LR / 3])


def test_cosine_decays_to_zero_at_the_last_step() -> None:
    rate = schedule("cosine")
    assert [rate(100), rate(550), rate(1000)] == pytest.approx([LR, LR / 2, 0], abs=1e-12)
    after_warmup = [rate(step) for step in range(100, 1001)]
    assert after_warmup == sorted(after_warmup, reverse=True)


def test_constant_does_not_decay() -> None:
    assert schedule("constant")(100) == schedule("constant")(1000) == LR


@pytest.mark.parametrize("name", ["noam", "inverse-sqrt", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 5000])
def test_rates_are_finite_and_positive_for_any_warmup(name: str, warmup: int) -> None:
    rate = schedule(name, warmup=warmup)
    rates = [rate(step) for step in range(1, STEPS)]
    assert all(math.isfinite(r) and r > 0 for r in rates)
    assert warmup > 1 or rates[0] == max(rates)


# Skipped steps


class ScaledLine(Line):
    """A line whose loss is multiplied by a factor at some steps."""

    def __init__(self, batches: list[Batch], factors: dict[int, float]) -> None:
        super().__init__(batches)
        self.factors, self.weights = factors, dict[int, list[float]]()

    def loss(self, batch: Batch, step: Step) -> LossSum:
        assert isinstance(step, int)
        self.weights[step] = self.model.weight.flatten().tolist()
        loss = super().loss(batch, step)
        return LossSum(loss.total * self.factors.get(step, 1.0), loss.count)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_step_with_non_finite_loss_is_skipped_and_counted(tmp_path: Path, factor: float) -> None:
    task = ScaledLine(points(6), {3: factor})
    run(task, tmp_path / "out", steps=6)
    assert task.weights[4] == task.weights[3] != task.weights[2]
    assert task.weights[5] != task.weights[4]
    entries = log(tmp_path / "out")
    events = [entry for entry in entries if "event" in entry]
    assert [entry["step"] for entry in events] == [3]
    assert events[0]["event"].startswith("skipped step 3: its loss was ")
    assert [entry.get("skipped_steps") for entry in entries if "lr" in entry] == [None, None, 1, 1, 1, 1]
    assert [entry["loss"] is None for entry in entries if "lr" in entry] == [False, False, True, False, False, False]
    assert "step 3: skipped step 3: " in (tmp_path / "out" / "shown").read_text()
    assert "NaN" not in (tmp_path / "out" / "log.jsonl").read_text()


def test_skipped_step_does_not_change_the_moments(tmp_path: Path) -> None:
    """With one constant batch and a constant rate, a run with one skipped step is one step behind."""
    run(Line(points(6)), tmp_path / "plain", steps=5)
    run(ScaledLine(points(6), {2: math.nan}), tmp_path / "skipped", steps=6)
    assert saved(tmp_path / "skipped" / "last") == saved(tmp_path / "plain" / "last")


def test_average_includes_unchanged_weights_of_a_skipped_step(tmp_path: Path) -> None:
    task = ScaledLine(points(6), {4: math.nan})
    run(task, tmp_path / "out", steps=5, validate_every=5, average=0.4)
    last = torch.tensor(task.model.weight.flatten().tolist(), dtype=torch.double)
    expected = (torch.tensor(task.weights[5], dtype=torch.double) + last) / 2
    assert saved(tmp_path / "out" / "last") == pytest.approx(expected.tolist())


def test_logged_mean_loss_excludes_skipped_steps(tmp_path: Path) -> None:
    run(ScaledLine(points(6), {3: math.nan}), tmp_path / "out", {"lr": 1e-12}, log_every=4)
    run(Line(points(6)), tmp_path / "plain", {"lr": 1e-12}, log_every=4)
    one, other = ([entry["loss"] for entry in log(tmp_path / name) if "loss" in entry] for name in ("out", "plain"))
    assert one == pytest.approx(other)


def test_exploding_gradient_is_skipped_above_the_given_norm(tmp_path: Path) -> None:
    unlimited = ScaledLine(points(6), {3: 1e6})
    run(unlimited, tmp_path / "unlimited")
    assert unlimited.weights[4] != unlimited.weights[3]
    limited = ScaledLine(points(6), {3: 1e6})
    run(limited, tmp_path / "limited", {"skip_above": 1000})
    assert limited.weights[4] == limited.weights[3] != limited.weights[2]
    (event,) = [entry["event"] for entry in log(tmp_path / "limited") if "event" in entry]
    assert event.endswith(", above optim.skip_above (1e+03)")


def test_exploding_gradient_is_skipped_by_default_after_100_steps(tmp_path: Path) -> None:
    task = ScaledLine(points(6), {99: 1e3, 121: 1e6, 122: 2.0})
    run(task, tmp_path / "out", {"lr": 1e-6}, steps=125)
    assert task.weights[100] != task.weights[99]
    assert task.weights[122] == task.weights[121]
    assert task.weights[123] != task.weights[122]
    (event,) = [entry["event"] for entry in log(tmp_path / "out") if "event" in entry]
    assert event.startswith("skipped step 121: ")
    assert event.endswith(", 100 times the mean of the previous steps)")


def test_consecutive_gradients_above_the_limit_end_the_run(tmp_path: Path) -> None:
    message = r"^3 consecutive .*, above optim.skip_above \(1e-06\); lower optim.lr, .* or raise optim.skip_above"
    with pytest.raises(UserError, match=message):
        run(Line(points(6)), tmp_path / "out", {"max_skips": 3, "skip_above": 1e-6}, log_every=100)


def test_consecutive_skipped_steps_end_the_run_and_keep_the_checkpoint(tmp_path: Path) -> None:
    task = ScaledLine(points(6), dict.fromkeys(range(3, 99), math.nan))
    message = r"^[3-6] consecutive steps were skipped, .*: its loss was nan .*lower optim.lr"
    with pytest.raises(UserError, match=message):
        run(task, tmp_path / "out", {"max_skips": 3}, steps=50, validate_every=100, log_every=100, checkpoint_every=2)
    assert task.weights[max(task.weights)] == task.weights[3]
    assert (tmp_path / "out" / "checkpoints" / "last").read_text().startswith("step-0000000")


def test_isolated_skipped_steps_do_not_end_the_run(tmp_path: Path) -> None:
    task = ScaledLine(points(6), dict.fromkeys(range(1, 40, 2), math.nan))
    assert run(task, tmp_path / "out", {"max_skips": 2}, steps=40).steps == 40
    assert [entry["skipped_steps"] for entry in log(tmp_path / "out") if "skipped_steps" in entry][-1] == 20


def test_report_contains_steps_skipped_since_the_last_report() -> None:
    step_check = StepCheck(CPU, max_norm=10)

    def check(step: int, loss: float, norm: float) -> bool:
        return bool(step_check.check(step, torch.tensor(loss), torch.tensor(norm)))

    assert check(1, 1, 10)
    assert step_check.report() is None
    assert not check(2, math.nan, 1)
    assert not check(3, 1, 11)
    report = step_check.report()
    assert report is not None
    assert (report.number, report.consecutive, report.last) == (2, 2, 3)
    assert report.reason == "its loss was 1 and its gradient norm 11, above optim.skip_above (10)"
    assert "raise optim.skip_above" in report.advice
    assert step_check.report() is None
    assert check(4, 1, 1)
    assert not check(5, math.inf, 1)
    report = step_check.report()
    assert report is not None
    assert (report.number, report.consecutive, report.last, step_check.total) == (1, 1, 5, 3)
    assert "skip_above" not in report.reason + report.advice


def test_default_limit_is_relative_to_the_mean_norm_of_taken_steps() -> None:
    step_check = StepCheck(CPU)

    def check(norm: float) -> bool:
        return bool(step_check.check(1, torch.tensor(1.0), torch.tensor(norm)))

    assert all(check(norm) for norm in [1.0, 3.0] * 49 + [1.0])
    assert not check(math.nan)
    assert check(3.0)  # the hundredth step that is taken
    assert not check(201.0)
    assert check(199.0)
    assert check(201.0)  # because the mean has risen


@pytest.mark.parametrize("max_norm", [None, 7.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_number_may_be_a_tensor_on_the_device(max_norm: float | None, dtype: torch.dtype) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reference, captured = StepCheck(CPU, max_norm), StepCheck(device, max_norm)
    normal = [(1 + i / 7, 1 + i % 3) for i in range(102)]
    odd = [(2.0, 7.25), (2.0, 7.4), (math.nan, 1.0), (1.0, math.inf), (1.0, math.nan), (-math.inf, 2.0), (1.0, 250.0)]
    for step, numbers in enumerate([*odd, *normal, *odd, (1.0, 900.0), *normal[:3]], 1):
        loss, norm = (torch.tensor(number, dtype=dtype) for number in numbers)
        number = torch.tensor(float(step), dtype=torch.float64)
        expected = reference.check(step, loss, norm)
        found = captured.check(number.to(device), loss.to(device), norm.to(device))
        assert (found.dtype, found.shape, bool(found)) == (torch.bool, torch.Size(()), bool(expected)), numbers
        assert torch.equal(captured.counters.cpu().nan_to_num(nan=-1), reference.counters.nan_to_num(nan=-1)), numbers
    assert reference.total == (9 if max_norm is None else 13)


# Translation


def use_nan_losses(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    original = TranslationTask.loss

    def loss(self: TranslationTask, batch: TextBatch, step: int) -> LossSum:
        loss = original(self, batch, step)
        return LossSum(loss.total * math.nan, loss.count) if step in steps else loss

    monkeypatch.setattr(TranslationTask, "loss", loss)


def test_translator_trains_despite_nan_losses(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_nan_losses(monkeypatch, {3, 4, 9})
    run_recipe(make_recipe(training__steps=12, training__validate_every=12, training__log_every=6), tmp_path / "run")
    entries = log(tmp_path / "run")
    assert [entry["event"].split(":")[0] for entry in entries if "event" in entry] == [
        "skipped 2 steps, the last of them step 4",
        "skipped step 9",
    ]
    skipped = {entry["step"]: entry.get("skipped_steps", 0) for entry in entries if "lr" in entry}
    assert skipped == {1: 0, 2: 0, 5: 2, 6: 2, 12: 3}
    assert math.isfinite(json.loads((tmp_path / "run" / "last" / "scores.json").read_text())["validation"]["loss"])


def test_resumed_run_continues_the_counts(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_nan_losses(monkeypatch, {3, 9})
    settings: dict[str, Any] = {"training__log_every": 4, "training__validate_every": 12, "optim__schedule": "constant"}
    run_recipe(make_recipe(training__steps=12, **settings), tmp_path / "uninterrupted")
    run_recipe(make_recipe(training__steps=6, **settings), tmp_path / "resumed")
    run_recipe(make_recipe(training__steps=12, **settings), tmp_path / "resumed")

    def reported(name: str) -> list[tuple[int, Any]]:
        return [(entry["step"], entry.get("event", entry.get("skipped_steps"))) for entry in log(tmp_path / name)]

    expected = reported("uninterrupted")
    assert [entry for entry in reported("resumed") if entry[0] > 6] == [entry for entry in expected if entry[0] > 6]
    assert (12, 2) in expected


def test_excessive_learning_rate_ends_the_run_with_advice(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe(optim__lr=1e30, optim__warmup=1, optim__clip=None, training__steps=40, training__log_every=5)
    with pytest.raises(UserError, match=r"1\d consecutive steps were skipped, .*; lower optim.lr"):
        run_recipe(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_diverged_model_is_rejected_with_advice(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe(optim__lr=1e30, optim__warmup=1, optim__clip=None, training__steps=5)
    with pytest.raises(UserError, match=r"^the validation loss is nan, so the model has diverged; lower optim.lr"):
        run_recipe(recipe, tmp_path / "run")
