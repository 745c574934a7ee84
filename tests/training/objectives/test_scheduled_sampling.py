"""Scheduled sampling: the decay, the mixed decoder inputs, and the two passes."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.training.objectives.scheduled_sampling import (
    Decay,
    ScheduledSampling,
    mix_predictions,
    proportion_left,
)
from regard.training.objectives.teacher_forcing import (
    TeacherForcing,
    TeacherForcingSettings,
    logits_of_labels,
    predicted_logits,
)
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch, collate

ROWS = np.array([3, 100, 200, 7, 400, 99])
DECAYS: tuple[Decay, ...] = ("linear", "exponential", "inverse-sigmoid")


def flatten(batch: TextBatch, x: Tensor) -> Tensor:
    return x.flatten() if batch.real is None else x.flatten()[batch.real]


def first_positions(batch: TextBatch) -> list[int]:
    """Return the index of the first label of each sentence."""
    return [0, *batch.target_layout.lengths.cumsum(0)[:-1].tolist()]


def mix(task: TranslationTask, batch: TextBatch, probability: float) -> tuple[TextBatch, Tensor]:
    """Mix the most probable tokens into the inputs of a batch."""
    sampling = ScheduledSampling(half_life=1)
    return mix_predictions(batch, sampling.predict(predicted_logits(task.model, batch)), probability)


def gradients(objective: TeacherForcing, task: TranslationTask, batch: TextBatch, step: int) -> dict[str, Tensor]:
    task.model.zero_grad()
    objective.begin_step(step)
    objective.loss(task.model, batch, step).total.backward()
    return {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}


# Decay


def decay_at(kind: Decay, half_life: int, *steps: int) -> list[float]:
    return [float(proportion_left(kind, half_life, torch.tensor(step, dtype=torch.float64))) for step in steps]


@given(st.sampled_from(DECAYS), st.integers(1, 10**7))
def test_decay_is_one_half_at_the_half_life(kind: Decay, half_life: int) -> None:
    assert decay_at(kind, half_life, half_life) == [pytest.approx(0.5, rel=1e-9)]


@given(st.sampled_from(DECAYS), st.integers(1, 10**5), st.lists(st.integers(0, 10**9), min_size=2))
def test_decay_is_monotonic_between_one_and_zero(kind: Decay, half_life: int, steps: list[int]) -> None:
    values = decay_at(kind, half_life, *sorted(steps))
    assert values == sorted(values, reverse=True)
    assert all(0 <= value <= 1 for value in values)


def test_linear_decay_reaches_zero() -> None:
    assert decay_at("linear", 100, 0, 50, 150, 200, 300) == [1, 0.75, 0.25, 0, 0]


def test_exponential_decay_halves_repeatedly() -> None:
    assert decay_at("exponential", 10, 0, 20, 30) == pytest.approx([1, 1 / 4, 1 / 8])


def test_inverse_sigmoid_decay_follows_the_formula_of_the_paper() -> None:
    k = 50.0  # k / (k + exp(i / k)) is one half at i = k ln k
    half_life = round(k * math.log(k))
    steps = (0, 100, half_life, 400)
    expected = [k / (k + math.exp(step / k)) for step in steps]
    assert decay_at("inverse-sigmoid", half_life, *steps) == pytest.approx(expected, rel=2e-2)


@given(st.sampled_from(DECAYS), st.integers(1, 1000), st.integers(0, 1000), st.floats(0, 1))
def test_probability_rises_after_the_start_up_to_the_floor(
    decay: Decay, half_life: int, start: int, floor: float
) -> None:
    sampling = ScheduledSampling(decay=decay, half_life=half_life, start=start, floor=floor)
    assert [float(sampling.probability(step)) for step in range(1, start + 1)] == [0] * start
    assert float(sampling.probability(start + half_life)) == pytest.approx(min(0.5, 1 - floor))
    assert float(sampling.probability(start + 100 * half_life)) == pytest.approx(1 - floor, abs=1e-9)
    assert [sampling.applies(start), sampling.applies(start + 1)] == [False, floor < 1]


# Runs


def test_logged_proportion_follows_the_schedule(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    sampling = {"decay": "linear", "half_life": 15, "start": 5, "floor": 0.2}
    recipe = make_recipe(
        training__steps=40,
        training__validate_every=40,
        training__log_every=1,
        training__valid_sentences=0,
        objective__scheduled_sampling=sampling,
    )
    run_recipe(recipe, tmp_path / "run")
    entries = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    sampled = {entry["step"]: entry.get("sampled") for entry in entries if "loss" in entry}
    probability = ScheduledSampling.parse(sampling, "sampling").probability
    assert [sampled[step] for step in range(1, 6)] == [None] * 5
    tokens = 150  # a batch has more
    for step in range(6, 41):
        p = float(probability(step))
        assert sampled[step] == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / tokens))
    assert np.mean([sampled[step] for step in range(29, 41)]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    "sampling", [{"half_life": 1, "floor": 1.0}, {"half_life": 1, "start": 12}], ids=["floor", "start"]
)
def test_zero_probability_equals_teacher_forcing_exactly(
    sampling: dict[str, float], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    short = {"training__steps": 12, "training__validate_every": 12, "model__dropout": 0.3}
    run_recipe(make_recipe(**short), tmp_path / "forced")
    run_recipe(make_recipe(**short, objective__scheduled_sampling=sampling), tmp_path / "mixed")
    forced, mixed = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("forced", "mixed"))
    assert forced == mixed


def test_positive_probability_changes_the_weights(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    short = {"training__steps": 12, "training__validate_every": 12}
    run_recipe(make_recipe(**short), tmp_path / "forced")
    run_recipe(make_recipe(**short, objective__scheduled_sampling={"half_life": 1}), tmp_path / "mixed")
    forced, mixed = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("forced", "mixed"))
    assert forced != mixed


# Decoder inputs


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_inputs_are_replaced_by_their_predictions_with_the_given_probability(
    packed: bool, probability: float, build: Callable[..., TranslationTask]
) -> None:
    task = build()
    batch = collate(task.train_tokens, np.arange(400), packed, 0)
    predictions = torch.arange(1000, 1000 + len(batch.labels))  # all different and outside the vocabulary
    torch.manual_seed(0)
    mixed, proportion = mix_predictions(batch, predictions, probability)
    before, after = flatten(batch, batch.inputs), flatten(batch, mixed.inputs)
    replaced = after >= 1000
    assert torch.equal(after[~replaced], before[~replaced])
    assert torch.equal(after[replaced], predictions[replaced.nonzero()[:, 0] - 1])
    assert not replaced[first_positions(batch)].any(), "BOS is never replaced"
    replaceable = len(batch.labels) - batch.sentences
    found = int(replaced.sum()) / replaceable
    assert found == pytest.approx(probability, abs=5 * math.sqrt(probability * (1 - probability) / replaceable))
    assert float(proportion) == pytest.approx(found)
    assert torch.equal(mixed.labels, batch.labels)
    assert not packed or mixed.inputs.shape == (1, len(batch.labels))


def test_padding_is_not_replaced(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    mixed, _ = mix_predictions(batch, torch.full_like(batch.labels, 9), 1.0)
    padding = ~batch.target_layout.real()
    assert padding.any()
    assert torch.equal(mixed.inputs[padding], batch.inputs[padding])


def test_padded_and_packed_batches_are_mixed_equally(build: Callable[..., TranslationTask]) -> None:
    task = build()
    inputs = []
    for packed in (False, True):
        batch = collate(task.train_tokens, ROWS, packed, 0)
        torch.manual_seed(4)
        mixed, _ = mix(task, batch, 0.5)
        inputs.append(flatten(batch, mixed.inputs))
    assert torch.equal(*inputs)


# Passes


def test_predictions_are_made_without_dropout(build: Callable[..., TranslationTask]) -> None:
    task = build(model__dropout=0.5)
    batch = collate(task.train_tokens, ROWS, False, 0)
    task.model.eval()
    expected = logits_of_labels(task.model, batch).argmax(-1)
    task.model.train()
    mixed, _ = mix(task, batch, 1.0)
    assert all(module.training for module in task.model.modules())
    after = flatten(batch, mixed.inputs)
    replaceable = torch.ones(len(after), dtype=torch.bool)
    replaceable[first_positions(batch)] = False
    assert torch.equal(after[replaceable], expected.roll(1)[replaceable])


def test_gradients_flow_through_the_second_pass_only(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    settings = ScheduledSampling(half_life=1, floor=0.4)
    torch.manual_seed(2)
    mixed, _ = mix(task, batch, 0.6)
    assert not torch.equal(mixed.inputs, batch.inputs)
    plain = gradients(TeacherForcing(TeacherForcingSettings(), 0.1), task, mixed, 100)
    torch.manual_seed(2)
    sampled = gradients(TeacherForcing(TeacherForcingSettings(scheduled_sampling=settings), 0.1), task, batch, 100)
    assert plain.keys() == sampled.keys()
    assert all(torch.equal(plain[name], sampled[name]) for name in plain)


def test_samples_follow_the_distribution_of_the_model() -> None:
    number, probabilities = 20_000, torch.tensor([0.6, 0.3, 0.1])
    logits = probabilities.log().expand(number, 3)
    torch.manual_seed(0)
    sampling = ScheduledSampling(half_life=1, choice="sample")
    frequencies = sampling.predict(logits).bincount(minlength=3) / number
    assert frequencies.tolist() == pytest.approx(probabilities.tolist(), abs=5 * math.sqrt(0.25 / number))
    assert ScheduledSampling(half_life=1).predict(logits).unique().tolist() == [0]
