"""The training loss of autoregressive translators: teacher forcing, R-Drop, SimCut, and combinations."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard import Translator
from regard.errors import UserError
from regard.ops.embedding import CUT_OFF
from regard.training.objectives.simcut import SimCut
from regard.training.objectives.teacher_forcing import TeacherForcing, TeacherForcingSettings, logits_of_labels
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.state import LossMeter
from regard.training.tasks.registry import load_recipe
from regard.training.tasks.translation.recipe import TranslationRecipe
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch, collate

ROWS = np.array([3, 100, 200, 7, 400, 99])
STEP = 3
OBJECTIVES: dict[str, dict[str, Any]] = {
    "teacher-forcing": {},
    "sampling": {"scheduled_sampling": {"decay": "linear", "half_life": 3}},
    "diagonal": {"guided_attention": {"steps": 10, "layers": [0], "heads": [1]}},
    "alignments": {"guided_attention": {"steps": 10, "prior": "alignments"}},
    "r-drop": {"r_drop": 1.0},
    "r-drop, diagonal": {"r_drop": 1.0, "guided_attention": {"steps": 10}},
    "r-drop, alignments": {"r_drop": 1.0, "guided_attention": {"steps": 10, "prior": "alignments"}},
    "simcut": {"simcut": {"p": 0.3}},
    "all": {"scheduled_sampling": {"half_life": 3}, "guided_attention": {"steps": 10}, "r_drop": 1.0},
    "all, simcut": {"scheduled_sampling": {"half_life": 3}, "guided_attention": {"steps": 10}, "simcut": {}},
}
DETERMINISTIC = ["teacher-forcing", "diagonal", "alignments", "r-drop", "r-drop, diagonal", "r-drop, alignments"]
"""Objectives that draw no random numbers for a batch, if the model has no dropout."""
PLAIN = TeacherForcing(TeacherForcingSettings(), 0.1)
R_DROP = TeacherForcing(TeacherForcingSettings(r_drop=2.0), 0.1)


@pytest.fixture(params=OBJECTIVES)
def objective(request: pytest.FixtureRequest) -> TeacherForcing:
    objective = TeacherForcing(TeacherForcingSettings.parse(OBJECTIVES[request.param], "objective"), 0.1)
    objective.begin_step(STEP)
    return objective


def linked(task: TranslationTask, rows: np.ndarray, packed: bool) -> TextBatch:
    """Return a batch in which every second target token is aligned to the first and the last source token."""
    batch = collate(task.train_tokens, rows, packed, 0)
    lengths = zip(batch.target_layout.lengths.tolist(), batch.source_layout.lengths.tolist(), strict=True)
    links = [(i, t, s) for i, (T, S) in enumerate(lengths) for t in range(0, T, 2) for s in {0, S - 1}]
    return replace(batch, links=torch.tensor(links))


def measure(
    objective: TeacherForcing, task: TranslationTask, *batches: TextBatch
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Return the means of loss and logged values over some batches, and the gradients of the mean loss."""
    torch.manual_seed(0)
    task.model.zero_grad()
    losses = [objective.loss(task.model, batch, STEP) for batch in batches]
    count = sum(loss.count for loss in losses)
    total = torch.stack([loss.total for loss in losses]).sum() / count
    total.backward()
    means = {name: sum(loss.logged[name].item() for loss in losses) / count for name in losses[0].logged}
    gradients = {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}
    return means | {"loss": total.item()}, gradients


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, gradient in one.items():
        assert torch.allclose(gradient, other[name], rtol=0, atol=1e-5), name


def test_padded_and_packed_batches_have_the_same_loss_and_gradients(
    objective: TeacherForcing, build: Callable[..., TranslationTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off_some(self: SimCut, tokens: Tensor, kept: Tensor) -> Tensor:  # independent of the padding
        return tokens.masked_fill((tokens % 5 == 0) & ~kept, CUT_OFF)

    monkeypatch.setattr(SimCut, "_cut_off", cut_off_some)
    task = build()
    (padded, padded_gradients), (packed, packed_gradients) = (
        measure(objective, task, linked(task, ROWS, packed)) for packed in (False, True)
    )
    assert padded == pytest.approx(packed, abs=1e-5)
    assert_close(padded_gradients, packed_gradients)


@pytest.mark.parametrize("objective", DETERMINISTIC, indirect=True)
def test_losses_and_gradients_of_halves_add_up(
    objective: TeacherForcing, build: Callable[..., TranslationTask]
) -> None:
    task = build()
    halves, halves_gradients = measure(objective, task, *(linked(task, rows, True) for rows in (ROWS[:3], ROWS[3:])))
    whole, whole_gradients = measure(objective, task, linked(task, ROWS, True))
    assert halves["loss"] == pytest.approx(whole["loss"], abs=1e-5)
    assert_close(halves_gradients, whole_gradients)


def test_teacher_forcing_is_the_cross_entropy_of_the_reference(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    logits = task.model(batch.source, batch.inputs, batch.source_layout, batch.target_layout)
    expected = F.cross_entropy(logits.flatten(0, 1)[batch.real], batch.labels, label_smoothing=0.1, reduction="sum")
    loss = PLAIN.loss(task.model, batch, 1)
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss.logged == {}


def test_objectives_support_autocast(objective: TeacherForcing, build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = linked(task, ROWS, True)
    float32 = objective.loss(task.model, batch, STEP)
    with torch.autocast("cpu", torch.bfloat16):
        bfloat16 = objective.loss(task.model, batch, STEP)
    if objective.sampling is None and objective.simcut is None:  # which draw random numbers
        assert bfloat16.total.item() == pytest.approx(float32.total.item(), rel=0.02)
    assert bfloat16.total.dtype == torch.float32
    bfloat16.total.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in task.model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("packed", [False, True])
def test_objectives_do_not_synchronise_with_the_gpu(
    packed: bool, objective: TeacherForcing, build: Callable[..., TranslationTask]
) -> None:
    task, device = build(), torch.device("cuda")
    task.model.to(device)
    batch = linked(task, ROWS, packed).to(device)
    meter = LossMeter(device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = objective.loss(task.model, batch, STEP)
        loss.total.backward()
        meter.add(loss.total.detach(), loss.count, loss.logged, torch.ones((), dtype=torch.bool, device=device))

    step()  # loads kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert meter.read()["loss"] > 0


# R-Drop


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return the KL divergence of logits (N, V) from others, summed over rows."""
    return F.kl_div(other.log_softmax(-1), one.log_softmax(-1), log_target=True, reduction="sum")


def test_r_drop_without_dropout_equals_teacher_forcing(build: Callable[..., TranslationTask]) -> None:
    task = build(model__dropout=0.0)
    batch = collate(task.train_tokens, ROWS, False, 0)
    plain, twice = PLAIN.loss(task.model, batch, 1), R_DROP.loss(task.model, batch, 1)
    assert twice.logged["divergence"].item() == 0
    assert twice.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    assert twice.count == plain.count == len(batch.labels)


def test_r_drop_adds_the_divergence_of_two_passes_with_dropout(build: Callable[..., TranslationTask]) -> None:
    task = build(model__dropout=0.3)
    batch = collate(task.train_tokens, ROWS, False, 0)
    task.model.train()
    loss = R_DROP.loss(task.model, batch, 1)
    assert loss.logged["divergence"].item() > 1e-2
    expected = loss.logged["cross_entropy"] + 2 / 2 * loss.logged["divergence"]
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)


def test_r_drop_is_half_the_loss_of_the_paper(build: Callable[..., TranslationTask]) -> None:
    task = build(model__dropout=0.3)
    batch = collate(task.train_tokens, ROWS, True, 0)
    torch.manual_seed(0)
    loss = R_DROP.loss(task.model.train(), batch, 1)
    torch.manual_seed(0)
    one, other = logits_of_labels(task.model, batch.followed_by(batch)).chunk(2)
    smoothed = {"label_smoothing": 0.1, "reduction": "sum"}
    cross_entropies = [F.cross_entropy(logits, batch.labels, **smoothed) for logits in (one, other)]
    paper = sum(cross_entropies) + 2.0 * (divergence(one, other) + divergence(other, one)) / 2
    assert loss.total.item() == pytest.approx(paper.item() / 2, rel=1e-5)


def test_r_drop_reduces_the_divergence(
    make_recipe: Callable[..., Recipe], build: Callable[..., TranslationTask], tmp_path: Path
) -> None:
    task = build()
    batch = collate(task.train_tokens, np.arange(100), False, 0)

    def train(name: str, weight: float) -> float:
        recipe = make_recipe(
            training__steps=100,
            training__validate_every=100,
            training__valid_sentences=0,
            model__dropout=0.2,
            objective__r_drop=weight,
        )
        run_recipe(recipe, tmp_path / name)
        model = Translator.load(tmp_path / name / "last").model.train()
        torch.manual_seed(0)
        with torch.no_grad():
            one, other = (logits_of_labels(model, batch) for _ in range(2))
        return (divergence(one, other) + divergence(other, one)).item()

    assert train("r-drop", 10.0) < train("plain", 0.0) / 2


# SimCut


@pytest.mark.parametrize("packed", [False, True])
def test_cut_off_keeps_the_first_input_and_end(packed: bool, build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch, end = collate(task.train_tokens, np.arange(100), packed, 0), task.model.config.eos
    torch.manual_seed(0)
    cut = SimCut(p=0.3).cut_off(batch, end)
    first = (batch.target_layout.positions() == 0).expand_as(batch.inputs)
    for before, after, kept in ((batch.source, cut.source, batch.source == end), (batch.inputs, cut.inputs, first)):
        changed = after != before
        assert (after[changed] == CUT_OFF).all()
        assert not changed[kept].any()
        assert changed[~kept].float().mean().item() == pytest.approx(0.3, abs=0.05)
    assert torch.equal(cut.labels, batch.labels)


def test_simcut_diverges_from_the_first_pass_only(build: Callable[..., TranslationTask]) -> None:
    task, settings = build(model__dropout=0.0), SimCut(weight=2.0, p=0.3)
    batch = collate(task.train_tokens, ROWS, False, 0)
    objective = TeacherForcing(TeacherForcingSettings(simcut=settings), 0.1)
    torch.manual_seed(0)
    loss = objective.loss(task.model.train(), batch, 1)
    torch.manual_seed(0)
    cut = settings.cut_off(batch, task.model.config.eos)
    one, other = (logits_of_labels(task.model, pairs) for pairs in (batch, cut))
    expected = PLAIN.loss(task.model, batch, 1).total + 2 * divergence(one, other)
    assert divergence(one, other) > 1e-2
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-5)
    gradients = [torch.autograd.grad(total, list(task.model.parameters())) for total in (loss.total, expected)]
    for found, correct in zip(*gradients, strict=True):  # of both passes
        torch.testing.assert_close(found, correct, rtol=1e-4, atol=1e-4)


def test_simcut_without_cut_off_and_dropout_equals_teacher_forcing(build: Callable[..., TranslationTask]) -> None:
    task = build(model__dropout=0.0)
    batch = collate(task.train_tokens, ROWS, True, 0)
    loss = TeacherForcing(TeacherForcingSettings(simcut=SimCut(p=0)), 0.1).loss(task.model.train(), batch, 1)
    assert loss.logged["divergence"].item() == pytest.approx(0, abs=1e-3)
    assert loss.total.item() == pytest.approx(PLAIN.loss(task.model, batch, 1).total.item(), rel=1e-6)


# Settings


def test_settings_can_be_set_on_the_command_line() -> None:
    changes = ["objective.r_drop=1", "objective.scheduled_sampling.half_life=50", "objective.guided_attention.steps=9"]
    recipe = load_recipe(None, changes, {"data.builtin": "en-zh"}, expected=TranslationRecipe)
    assert recipe.objective.r_drop == 1
    assert recipe.objective.scheduled_sampling is not None
    assert recipe.objective.scheduled_sampling.half_life == 50
    assert recipe.objective.guided_attention is not None
    dumped = recipe.model_dump(mode="json")
    assert TranslationRecipe.parse(dumped, "dumped") == recipe
    off = TranslationRecipe.parse(dumped | {"objective": {}}, "dumped").model_dump(mode="json")
    assert off["objective"]["scheduled_sampling"] is None


def test_group_that_is_null_in_the_file_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("data: {builtin: en-zh}\nobjective: {scheduled_sampling: null}\n")
    recipe = load_recipe(path, ["objective.scheduled_sampling.half_life=7"], expected=TranslationRecipe)
    assert recipe.objective.scheduled_sampling is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("objective.r_drop=-1", "objective.r_drop: input should be greater than or equal to 0"),
        ("objective.simcut.p=1", "objective.simcut.p: input should be less than 1"),
        ("objective.simcut.weight=0", "objective.simcut.weight: input should be greater than 0"),
        ("objective.rdrop=1", "unknown key objective.rdrop; did you mean objective.r_drop?"),
        ("objective.scheduled_sampling.halff=1", "did you mean objective.scheduled_sampling.half_life?"),
        ("objective.scheduled_sampling.decay=linear", "objective.scheduled_sampling.half_life is missing"),
        ("objective.scheduled_sampling.floor=2", "objective.scheduled_sampling"),
    ],
)
def test_errors_name_the_wrong_setting(change: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe(None, [change], {"data.builtin": "en-zh"})
    assert message in str(error.value)


def test_r_drop_and_simcut_exclude_each_other() -> None:
    with pytest.raises(UserError, match="r_drop and simcut exclude each other; set one of them"):
        load_recipe(None, ["objective.r_drop=1", "objective.simcut.p=0.1"], {"data.builtin": "en-zh"})
