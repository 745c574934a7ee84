from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from regard.errors import UserError
from regard.training.meter import Meter
from regard.training.objectives.config import ObjectiveSettings
from regard.training.objectives.objective import TranslationObjective
from regard.training.recipe import Recipe
from regard.training.tasks.translation.recipe import TranslationRecipe
from regard.training.tasks.translation.task import TextBatch, TranslationTask, collate

ROWS = np.array([3, 100, 200, 7, 400, 99])
STEP = 3
STRATEGIES: dict[str, dict[str, Any]] = {
    "forcing": {},
    "sampling": {"scheduled_sampling": {"decay": "linear", "half_life": 3}},
    "diagonal": {"guided_attention": {"steps": 10, "layers": [0], "heads": [1]}},
    "alignments": {"guided_attention": {"steps": 10, "prior": "alignments"}},
    "r-drop": {"r_drop": 1.0},
    "all": {"scheduled_sampling": {"half_life": 3}, "guided_attention": {"steps": 10}, "r_drop": 1.0},
}


@pytest.fixture(params=STRATEGIES)
def teacher(request: pytest.FixtureRequest) -> TranslationObjective:
    return TranslationObjective(ObjectiveSettings.parse(STRATEGIES[request.param], "objective"), 0.1)


def linked(task: TranslationTask, rows: np.ndarray, packed: bool) -> TextBatch:
    """A batch whose every second target token is aligned to the first and the last of the source."""
    batch = collate(task.train, rows, packed, 0)
    links = [
        (i, t, s)
        for i, (T, S) in enumerate(
            zip(batch.target_layout.lengths.tolist(), batch.source_layout.lengths.tolist(), strict=True)
        )
        for t in range(0, T, 2)
        for s in {0, S - 1}
    ]
    return replace(batch, links=torch.tensor(links))


def measure(
    teacher: TranslationObjective, task: TranslationTask, *batches: TextBatch
) -> tuple[dict[str, float], dict[str, torch.Tensor]]:
    """The means of loss and parts over some batches, and the gradients of the loss."""
    torch.manual_seed(0)
    task.model.zero_grad()
    losses = [teacher.loss(task.model, batch, STEP) for batch in batches]
    count = sum(loss.count for loss in losses)
    (sum(loss.total for loss in losses) / count).backward()
    means = {name: sum(loss.parts[name].item() for loss in losses) / count for name in losses[0].parts}
    gradients = {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}
    return means | {"loss": sum(loss.total.item() for loss in losses) / count}, gradients


def assert_alike(one: tuple[dict[str, float], dict[str, torch.Tensor]], other: tuple[Any, Any]) -> None:
    assert one[0] == pytest.approx(other[0], abs=1e-5)
    for name, gradient in one[1].items():
        assert torch.allclose(gradient, other[1][name], rtol=0, atol=1e-5), name


def test_padded_and_packed_batches_are_taught_alike(
    teacher: TranslationObjective, build: Callable[..., TranslationTask]
) -> None:
    task = build()
    padded, packed = (measure(teacher, task, linked(task, ROWS, packed)) for packed in (False, True))
    assert_alike(padded, packed)


@pytest.mark.parametrize(
    "teacher", ["forcing", "diagonal", "alignments", "r-drop"], indirect=True
)  # chance has no halves
def test_two_batches_are_taught_like_one_twice_as_large(
    teacher: TranslationObjective, build: Callable[..., TranslationTask]
) -> None:
    task = build()
    parts = measure(teacher, task, *(linked(task, rows, True) for rows in (ROWS[:3], ROWS[3:])))
    whole = measure(teacher, task, linked(task, ROWS, True))
    assert parts[0]["loss"] == pytest.approx(whole[0]["loss"], abs=1e-5)
    assert_alike(({}, parts[1]), ({}, whole[1]))


def test_teacher_forcing_is_the_cross_entropy_of_the_reference(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train, ROWS, False, 0)
    logits = task.model(batch.source, batch.inputs, batch.source_layout, batch.target_layout)
    expected = F.cross_entropy(logits.flatten(0, 1)[batch.real], batch.labels, label_smoothing=0.1, reduction="sum")
    loss = TranslationObjective(ObjectiveSettings(), 0.1).loss(task.model, batch, 1)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss.parts == {}


def test_half_precision_is_taught_too(teacher: TranslationObjective, build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = linked(task, ROWS, True)
    full = teacher.loss(task.model, batch, STEP)
    with torch.autocast("cpu", torch.bfloat16):
        half = teacher.loss(task.model, batch, STEP)
    if teacher.sampling is None:
        assert half.total.item() == pytest.approx(full.total.item(), rel=0.02)
    assert half.total.dtype == torch.float32
    half.total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in task.model.parameters())


def test_settings_are_changed_from_the_command_line() -> None:
    changes = ["objective.r_drop=1", "objective.scheduled_sampling.half_life=50", "objective.guided_attention.steps=9"]
    recipe = Recipe.load(None, changes, {"data.builtin": "en-zh"})
    assert recipe.objective.r_drop == 1
    assert recipe.objective.scheduled_sampling is not None
    assert recipe.objective.scheduled_sampling.half_life == 50
    assert recipe.objective.guided_attention is not None
    kept = recipe.model_dump(mode="json")
    assert TranslationRecipe.parse(kept, "kept") == recipe
    off = TranslationRecipe.parse(kept | {"objective": {}}, "kept").model_dump(mode="json")
    assert off["objective"]["scheduled_sampling"] is None


def test_a_group_that_is_off_in_the_file_can_be_turned_on(tmp_path: Any) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("data: {builtin: en-zh}\nobjective: {scheduled_sampling: null}\n")
    recipe = Recipe.load(path, ["objective.scheduled_sampling.half_life=7"])
    assert recipe.objective.scheduled_sampling is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("objective.r_drop=-1", "objective.r_drop: input should be greater than or equal to 0"),
        ("objective.rdrop=1", "unknown key objective.rdrop; did you mean objective.r_drop?"),
        ("objective.scheduled_sampling.halff=1", "did you mean objective.scheduled_sampling.half_life?"),
        ("objective.scheduled_sampling.decay=linear", "objective.scheduled_sampling.half_life is missing"),
        ("objective.scheduled_sampling.floor=2", "objective.scheduled_sampling"),
    ],
)
def test_wrong_settings_are_refused_by_their_key(change: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        Recipe.load(None, [change], {"data.builtin": "en-zh"})
    assert said in str(refused.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("packed", [False, True])
def test_no_strategy_waits_for_the_gpu(
    packed: bool, teacher: TranslationObjective, build: Callable[..., TranslationTask]
) -> None:
    task, device = build(), torch.device("cuda")
    task.model.to(device)
    batch = linked(task, ROWS, packed).to(device)
    meter = Meter(device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = teacher.loss(task.model, batch, STEP)
        loss.total.backward()
        meter.add(loss.total.detach(), loss.count, loss.parts, torch.ones((), dtype=torch.bool, device=device))

    step()  # kernels are loaded
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert meter.read()["loss"] > 0
