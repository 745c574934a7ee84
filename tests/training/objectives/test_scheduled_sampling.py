import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.training.objectives import scheduled_sampling
from regard.training.objectives.config import ObjectiveSettings, SamplingSettings
from regard.training.objectives.objective import TranslationObjective
from regard.training.objectives.scheduled_sampling import ScheduledSampling, put_predictions
from regard.training.objectives.teacher_forcing import read
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.tasks.translation.task import TextBatch, TranslationTask, collate

ROWS = np.array([3, 100, 200, 7, 400, 99])
ALWAYS = SamplingSettings(decay="linear", half_life=1, floor=0.0)  # nothing but predictions from the second step on


def flat(batch: TextBatch, x: torch.Tensor) -> torch.Tensor:
    return x.flatten() if batch.real is None else x.flatten()[batch.real]


def first_places(batch: TextBatch) -> list[int]:
    """Where each sentence begins among the labels."""
    return [0, *batch.target_layout.lengths.cumsum(0)[:-1].tolist()]


def gradients(
    teacher: TranslationObjective, task: TranslationTask, batch: TextBatch, step: int
) -> dict[str, torch.Tensor]:
    task.model.zero_grad()
    teacher.loss(task.model, batch, step).total.backward()
    return {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}


# The schedule


@given(
    st.sampled_from(["linear", "exponential", "inverse-sigmoid"]),
    st.integers(1, 1000),
    st.integers(0, 1000),
    st.floats(0, 1),
)
def test_the_share_rises_from_nothing_after_the_start_and_leaves_the_floor(
    decay: str, half: int, start: int, floor: float
) -> None:
    settings = SamplingSettings.parse({"decay": decay, "half_life": half, "start": start, "floor": floor}, "sampling")
    share = ScheduledSampling(settings).share
    assert [share(step) for step in range(1, start + 1)] == [0] * start
    assert share(start + half) == pytest.approx(min(0.5, 1 - floor))
    assert share(start + 100 * half) == pytest.approx(1 - floor, abs=1e-9)


def test_the_share_of_a_run_follows_the_schedule(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
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
    expected = ScheduledSampling(SamplingSettings.parse(sampling, "sampling")).share
    assert [sampled[step] for step in range(1, 6)] == [None] * 5  # teacher forcing has nothing to report
    tokens = 150  # a batch has more
    for step in range(6, 41):
        p = expected(step)
        assert sampled[step] == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / tokens))
    assert np.mean([sampled[step] for step in range(29, 41)]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    "sampling", [{"half_life": 1, "floor": 1.0}, {"half_life": 1, "start": 12}], ids=["floor", "start"]
)
def test_a_mix_of_zero_is_teacher_forcing_to_the_bit(
    sampling: dict[str, float], make_recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    short = {"training__steps": 12, "training__validate_every": 12, "model__dropout": 0.3}
    run_recipe(make_recipe(**short), tmp_path / "forced")
    run_recipe(make_recipe(**short, objective__scheduled_sampling=sampling), tmp_path / "mixed")
    forced, mixed = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("forced", "mixed"))
    assert forced == mixed


def test_a_mix_above_zero_is_not(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    short = {"training__steps": 12, "training__validate_every": 12}
    run_recipe(make_recipe(**short), tmp_path / "forced")
    run_recipe(make_recipe(**short, objective__scheduled_sampling={"half_life": 1}), tmp_path / "mixed")
    forced, mixed = ((tmp_path / name / "last" / "model.safetensors").read_bytes() for name in ("forced", "mixed"))
    assert forced != mixed


# What the decoder reads


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_inputs_are_replaced_by_what_was_predicted_for_them_at_the_share(
    packed: bool, share: float, build: Callable[..., TranslationTask]
) -> None:
    task = build()
    batch = collate(task.train, np.arange(400), packed, 0)
    predictions = torch.arange(1000, 1000 + len(batch.labels))  # all different, and no token at all
    torch.manual_seed(0)
    mixed, reported = put_predictions(batch, predictions, share)
    before, after = flat(batch, batch.inputs), flat(batch, mixed.inputs)
    replaced = after >= 1000
    assert torch.equal(after[~replaced], before[~replaced])
    assert torch.equal(after[replaced], predictions[replaced.nonzero()[:, 0] - 1])
    assert not replaced[first_places(batch)].any(), "every sentence begins with BOS"
    chances = len(batch.labels) - batch.sentences
    found = int(replaced.sum()) / chances
    assert found == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / chances))
    assert float(reported) == pytest.approx(found)
    assert torch.equal(mixed.labels, batch.labels)
    assert not packed or mixed.inputs.shape == (1, len(batch.labels))


def test_padding_stays_padding(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train, ROWS, False, 0)
    mixed, _ = put_predictions(batch, torch.full_like(batch.labels, 9), 1.0)
    padding = ~batch.target_layout.real()
    assert padding.any()
    assert torch.equal(mixed.inputs[padding], batch.inputs[padding])


def test_both_layouts_are_mixed_alike(build: Callable[..., TranslationTask]) -> None:
    task = build()
    found = []
    for packed in (False, True):
        batch = collate(task.train, ROWS, packed, 0)
        torch.manual_seed(4)
        mixed, _ = ScheduledSampling(ALWAYS).mix(task.model, batch, 0.5)
        found.append(flat(batch, mixed.inputs))
    assert torch.equal(*found)


# The two passes


def test_predictions_are_made_without_dropout_and_the_second_pass_with_it(
    build: Callable[..., TranslationTask],
) -> None:
    task = build(model__dropout=0.5)
    batch = collate(task.train, ROWS, False, 0)
    task.model.eval()
    best = read(task.model, batch).argmax(-1)
    task.model.train()
    mixed, _ = ScheduledSampling(ALWAYS).mix(task.model, batch, 1.0)
    assert all(module.training for module in task.model.modules())
    after = flat(batch, mixed.inputs)
    follows = torch.ones(len(after), dtype=torch.bool)
    follows[first_places(batch)] = False
    assert torch.equal(after[follows], best.roll(1)[follows])


def test_gradients_flow_through_the_second_pass_alone(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train, ROWS, False, 0)
    settings = SamplingSettings(half_life=1, floor=0.4)
    torch.manual_seed(2)
    mixed, _ = ScheduledSampling(settings).mix(task.model, batch, 0.6)
    assert not torch.equal(mixed.inputs, batch.inputs)
    plain = gradients(TranslationObjective(ObjectiveSettings(), 0.1), task, mixed, 100)
    torch.manual_seed(2)
    sampled = gradients(TranslationObjective(ObjectiveSettings(scheduled_sampling=settings), 0.1), task, batch, 100)
    assert plain.keys() == sampled.keys()
    assert all(torch.equal(plain[name], sampled[name]) for name in plain)


def test_samples_follow_the_models_distribution(
    build: Callable[..., TranslationTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, number = build(), 20_000
    odds = torch.tensor([0.6, 0.3, 0.1])
    monkeypatch.setattr(scheduled_sampling, "read", lambda *_: odds.log().expand(number, 3))
    batch = collate(task.train, ROWS, False, 0)
    torch.manual_seed(0)
    sampling = ScheduledSampling(SamplingSettings(half_life=1, choice="sample"))
    found = sampling._predict(task.model, batch).bincount(minlength=3) / number
    assert found.tolist() == pytest.approx(odds.tolist(), abs=5 * math.sqrt(0.25 / number))
    assert ScheduledSampling(SamplingSettings(half_life=1))._predict(task.model, batch).unique().tolist() == [0]
