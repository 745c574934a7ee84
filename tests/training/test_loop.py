"""The training loop, tested with a linear model, whose updates can be computed by hand."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from regard.errors import UserError
from regard.training.loop import RunResult, TrainingLoop
from regard.training.parallelism import autocast
from regard.training.progress import Progress
from regard.training.recipe import OptimSettings, Recipe, TrainingSettings
from regard.training.run import run_recipe
from regard.training.state import DataPosition, DataShard, Positioned
from regard.training.task import LossSum, Step, Task, Validation

Batch = tuple[Tensor, Tensor]


class Line(Task[Batch]):
    """Fits a linear model to points."""

    width = 1

    def __init__(
        self, batches: list[Batch], scores: list[float] | None = None, losses: list[float] | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1).double()
        self.given, self.scores = batches, iter(scores or cycle([0.0]))
        self.losses = iter(losses or cycle([1.0]))
        self.modes: list[bool] = []  # training mode of the model at each loss

    def batches(self, position: DataPosition, shard: DataShard) -> Iterator[Positioned[Batch]]:
        for number in count(position.batch):
            yield Positioned(self.given[number % len(self.given)], DataPosition(0, number + 1))

    def largest_batch(self) -> Batch:
        return max(self.given, key=self.size)

    def count(self, batch: Batch) -> int:
        return len(batch[0])

    def split(self, batch: Batch) -> tuple[Batch, Batch] | None:
        half = len(batch[0]) // 2
        return ((batch[0][:half], batch[1][:half]), (batch[0][half:], batch[1][half:])) if half else None

    def describe(self, batch: Batch) -> str:
        return f"{len(batch[0])} points"

    def advise(self, batch: Batch) -> str:
        return f"points={len(batch[0]) // 2}"

    def loss(self, batch: Batch, step: Step) -> LossSum:
        self.modes.append(self.model.training)
        return LossSum((self.model(batch[0])[:, 0] - batch[1]).square().sum(), len(batch[0]))

    def validate(self, model: nn.Module) -> Validation:
        model.eval()
        return Validation({"loss": next(self.losses), "score": next(self.scores)})

    def save(self, folder: Path, model: nn.Module) -> None:
        assert isinstance(model, nn.Linear)
        (folder / "weights.json").write_text(json.dumps(model.weight.tolist()))


def points(*sizes: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(sum(sizes), 3, dtype=torch.double, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def run(task: Line, out: Path, optim: dict[str, Any] | None = None, **training: Any) -> RunResult:
    out.mkdir()
    optims = OptimSettings.parse({"lr": 0.1, "warmup": 0, "schedule": "constant"} | (optim or {}), "optim")
    settings = TrainingSettings.parse({"steps": 4, "validate_every": 2, "log_every": 1} | training, "training")
    with (
        (out / "shown").open("w", encoding="utf-8") as shown,
        Progress(settings.steps, Console(file=shown, width=200)) as progress,
    ):
        return TrainingLoop(task, optims, settings, out, progress).train()


def saved(folder: Path) -> list[float]:
    weights: list[list[float]] = json.loads((folder / "weights.json").read_text())
    return weights[0]


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def steps() -> Iterator[list[tuple[list[Tensor], list[Tensor]]]]:
    """Gradients before and parameters after every step of any optimizer."""
    recorded: list[tuple[list[Tensor], list[Tensor]]] = []

    def parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
        recorded.append(([p.grad.clone() for p in parameters(optimizer) if p.grad is not None], []))

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        recorded[-1][1].extend(p.detach().clone() for p in parameters(optimizer))

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    yield recorded
    for hook in hooks:
        hook.remove()


def norm(gradients: list[Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients]).norm())


def test_accumulated_batches_equal_one_large_batch(tmp_path: Path) -> None:
    parts = points(5, 1, 8)  # of different sizes: every point has the same weight
    whole = [(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))]
    one, many = Line(whole), Line(parts)
    run(one, tmp_path / "one")
    run(many, tmp_path / "many", {"accumulate": 3})
    assert len(many.modes) - 1 == 3 * (len(one.modes) - 1)  # without the largest batch, which is tried first
    assert saved(tmp_path / "many" / "last") == pytest.approx(saved(tmp_path / "one" / "last"), abs=1e-6)
    losses = [[entry["loss"] for entry in log(tmp_path / name) if "loss" in entry] for name in ("one", "many")]
    assert losses[0] == pytest.approx(losses[1])


def test_gradients_are_averaged_over_all_tokens_of_a_step(tmp_path: Path, steps: list[Any]) -> None:
    task = Line(points(4, 2))
    x, y = (torch.cat(sides) for sides in zip(*task.given, strict=True))
    weight, bias = task.model.weight.detach().clone(), task.model.bias.detach().clone()
    error = x @ weight[0] + bias - y
    run(task, tmp_path / "out", {"accumulate": 2, "clip": None}, steps=1)
    assert torch.allclose(steps[0][0][0][0], 2 * (error[:, None] * x).mean(0))


def test_gradient_norm_is_clipped_and_logged_unclipped(tmp_path: Path, steps: list[Any]) -> None:
    run(Line(points(6)), tmp_path / "free", {"clip": None}, steps=1)
    run(Line(points(6)), tmp_path / "clipped", {"clip": 0.01}, steps=1)
    free, clipped = (norm(gradients) for gradients, _ in steps)
    assert free > 0.5
    assert clipped == pytest.approx(0.01, rel=1e-3)
    assert log(tmp_path / "free")[0]["gradient_norm"] == pytest.approx(free)
    assert log(tmp_path / "clipped")[0]["gradient_norm"] == pytest.approx(free)
    same_direction = torch.cosine_similarity(steps[0][0][0], steps[1][0][0])
    assert float(same_direction) == pytest.approx(1)


def test_gradient_below_the_limit_is_not_clipped(tmp_path: Path, steps: list[Any]) -> None:
    run(Line(points(6)), tmp_path / "free", {"clip": None}, steps=1)
    run(Line(points(6)), tmp_path / "wide", {"clip": 1000}, steps=1)
    assert torch.equal(steps[0][0][0], steps[1][0][0])


def test_schedule_sets_the_learning_rate_of_every_step(tmp_path: Path) -> None:
    run(Line(points(6)), tmp_path / "out", {"warmup": 4})
    assert [entry["lr"] for entry in log(tmp_path / "out") if "lr" in entry] == pytest.approx([0.025, 0.05, 0.075, 0.1])


def test_average_is_the_mean_of_the_last_weights(tmp_path: Path, steps: list[Any]) -> None:
    run(Line(points(6)), tmp_path / "out", steps=10, validate_every=10, average=0.3)
    weights = torch.stack([after[0][0] for _, after in steps])
    assert saved(tmp_path / "out" / "last") == pytest.approx(weights[7:].mean(0).tolist())
    assert saved(tmp_path / "out" / "last") != pytest.approx(weights[9].tolist())


def test_ema_follows_its_formula(tmp_path: Path, steps: list[Any]) -> None:
    run(Line(points(6)), tmp_path / "out", steps=10, validate_every=5, ema=0.8)
    weights = [after[0][0] for _, after in steps]
    expected = weights[0]
    for later in weights[1:]:
        expected = 0.8 * expected + 0.2 * later
    assert saved(tmp_path / "out" / "last") == pytest.approx(expected.tolist(), rel=1e-6)
    assert saved(tmp_path / "out" / "last") != pytest.approx(weights[9].tolist(), rel=1e-2)


@pytest.mark.parametrize(("average", "steps", "averaged"), [(0.29, 100, 29), (0.57, 100, 57), (0.1, 6, 1), (0.9, 6, 5)])
def test_number_of_averaged_steps_is_not_rounded_down(average: float, steps: int, averaged: int) -> None:
    training = TrainingSettings.parse({"steps": steps, "average": average}, "training")
    assert steps - training.average_from + 1 == averaged


def test_average_and_ema_exclude_each_other() -> None:
    with pytest.raises(UserError, match="average and ema exclude each other"):
        TrainingSettings.parse({"ema": 0.9, "average": 0.1}, "training")


def test_last_weights_are_saved_without_averaging(tmp_path: Path, steps: list[Any]) -> None:
    run(Line(points(6)), tmp_path / "out")
    assert saved(tmp_path / "out" / "last") == steps[-1][1][0][0].tolist()


def test_best_model_is_the_first_with_the_highest_score(tmp_path: Path, steps: list[Any]) -> None:
    result = run(Line(points(6), [1.0, 3.0, 3.0, 2.0]), tmp_path / "out", steps=8)
    assert (result.best_step, result.scores["score"], result.steps) == (4, 3.0, 8)
    assert saved(tmp_path / "out" / "best") == steps[3][1][0][0].tolist()
    assert saved(tmp_path / "out" / "last") == steps[7][1][0][0].tolist()
    scores = json.loads((tmp_path / "out" / "best" / "scores.json").read_text())
    assert scores == {"step": 4, "validation": {"loss": 1.0, "score": 3.0}}


def test_loss_decides_between_equal_scores(tmp_path: Path) -> None:
    result = run(Line(points(6), [0.0, 0.0, 0.0, 0.0], [4.0, 2.0, 1.0, 3.0]), tmp_path / "out", steps=8)
    assert (result.best_step, result.scores["loss"]) == (6, 1.0)


def test_newest_model_can_count_as_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingSettings, "keeps_newest", True)
    result = run(Line(points(6), [3.0, 5.0, 1.0]), tmp_path / "out", steps=6)
    assert (result.best_step, result.scores["score"]) == (6, 1.0)
    scores = json.loads((tmp_path / "out" / "best" / "scores.json").read_text())
    assert scores == {"step": 6, "validation": {"loss": 1.0, "score": 1.0}}


def test_best_score_can_be_negative(tmp_path: Path) -> None:
    result = run(Line(points(6), [-5.0, -4.0]), tmp_path / "out")
    assert (result.best_step, result.scores["score"]) == (4, -4.0)


def test_run_stops_after_validations_without_improvement(tmp_path: Path) -> None:
    scores = [1.0, 3.0, 2.0, 3.0, 2.5, 9.0]  # an equal score is no improvement
    result = run(Line(points(6), scores), tmp_path / "out", steps=100, patience=3, checkpoint_every=7)
    assert (result.steps, result.best_step, result.stopped_early) == (10, 4, True)
    shown = (tmp_path / "out" / "shown").read_text().splitlines()
    assert shown[-1] == "stopped at step 10: 3 validations without improvement"
    checkpoints = [path.name for path in (tmp_path / "out" / "checkpoints").glob("step-*")]
    assert sorted(checkpoints) == ["step-00000007", "step-00000010"]


def test_improvement_resets_the_patience(tmp_path: Path) -> None:
    result = run(Line(points(6), [1.0, 0.0, 2.0, 0.0, 3.0]), tmp_path / "out", steps=10, patience=2)
    assert (result.steps, result.best_step, result.stopped_early) == (10, 10, False)


def test_last_step_is_always_validated_and_logged(tmp_path: Path) -> None:
    run(Line(points(6)), tmp_path / "out", steps=5, validate_every=3, log_every=2)
    entries = log(tmp_path / "out")
    assert [entry["step"] for entry in entries if "validation" in entry] == [3, 5]
    assert [entry["step"] for entry in entries if "loss" in entry] == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("every", "logged"),
    [(1, [*range(1, 32)]), (7, [1, 2, 5, 7, 14, 21, 28, 31]), (30, [1, 2, 5, 10, 20, 30, 31])],
)
def test_first_steps_are_logged_before_the_first_interval(every: int, logged: list[int], tmp_path: Path) -> None:
    run(Line(points(6)), tmp_path / "out", steps=31, validate_every=31, log_every=every)
    assert [entry["step"] for entry in log(tmp_path / "out") if "loss" in entry] == logged
    shown = re.findall(r"^step (\d+)/31", (tmp_path / "out" / "shown").read_text(), re.M)
    assert list(map(int, shown)) == logged


def test_model_is_in_training_mode_after_each_validation(tmp_path: Path) -> None:
    task = Line(points(6))
    run(task, tmp_path / "out", validate_every=1)
    assert task.modes == [True] * 5  # of the largest batch and of four steps


def test_loss_decreases(tmp_path: Path) -> None:
    run(Line(points(64)), tmp_path / "out", {"lr": 0.05}, steps=200, validate_every=200)
    losses = [entry["loss"] for entry in log(tmp_path / "out") if "loss" in entry]
    assert losses[0] > 1
    assert losses[-1] < 1e-2


def test_autocast_is_off_on_a_cpu_by_default() -> None:
    cpu = torch.device("cpu")
    for precision, dtype in (("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        with autocast(cpu, precision):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


# Complete runs


def test_log_contains_one_json_object_per_line(trained_run: Path) -> None:
    entries = log(trained_run)
    steps = [entry for entry in entries if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2, 5, 10, 20, 50, 100, 150, 200, 250, 300, 350, 400, 450]
    assert all({"seconds", "tokens_per_second", "lr", "gradient_norm"} <= entry.keys() for entry in steps)
    assert steps[-1]["loss"] < steps[0]["loss"] / 2
    validations = [entry["validation"] for entry in entries if "validation" in entry]
    assert [set(scores) for scores in validations] == [{"loss", "perplexity", "bleu", "chrf", "score"}] * 3
    assert max(scores["bleu"] for scores in validations) > 90


def test_equal_seeds_give_bit_identical_weights(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    def digest(name: str, seed: int) -> str:
        recipe = make_recipe(
            training__steps=12, training__validate_every=6, training__seed=seed, model__dropout=0.2, batch__tokens=64
        )
        run_recipe(recipe, tmp_path / name)
        return hashlib.sha256((tmp_path / name / "last" / "model.safetensors").read_bytes()).hexdigest()

    assert digest("one", 5) == digest("two", 5) != digest("three", 6)


# Console output


def test_progress_prints_lines_without_a_terminal(tmp_path: Path) -> None:
    run(Line(points(6)), tmp_path / "out", steps=2)
    lines = (tmp_path / "out" / "shown").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["step 1/2", "step 2/2", "step 2"]
    assert all(part in lines[0] for part in ("loss ", "tokens/s", "lr 1.00e-01"))
    assert "s left" not in lines[0], "there is nothing to estimate it from"
    assert lines[1].endswith("  0 s left")
    assert lines[2] == "step 2  validation  loss 1.00"
    assert lines[3].startswith("seconds: start-up 0")


def test_progress_shows_a_bar_on_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "shown"
    with path.open("w") as file, Progress(10, Console(file=file, force_terminal=True, width=120)) as progress:
        progress.step(5, {"loss": 1.5, "tokens_per_second": 1000.0, "lr": 0.1})
        progress.validated(5, {"bleu": 12.0, "score": 12.0})
    shown = path.read_text()
    assert "step 5/10" in shown
    assert "loss 1.500" in shown
    assert "validation  bleu 12.00" in shown
    assert "score" not in shown
