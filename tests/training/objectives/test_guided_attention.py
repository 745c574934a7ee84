"""Guided attention: priors, the loss on attention weights, and its effect."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.attention.kinds import Full
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.inspection.probe import probe
from regard.masks import Packed, Padded
from regard.training.objectives.guided_attention import (
    GuidedAttention,
    LengthGroups,
    aligned_prior,
    diagonal_prior,
    group_shapes,
)
from regard.training.objectives.teacher_forcing import TeacherForcing, TeacherForcingSettings, logits_of_labels
from regard.training.recipe import Recipe
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import PackedShape, TextBatch, collate

ROWS = np.array([3, 100, 200, 7, 400, 99])
LINKS = torch.tensor([(0, 0, 1), (0, 2, 0), (0, 2, 2), (1, 1, 1), (4, 0, 0), (4, 0, 0)])
ALL_LAYERS = GuidedAttention(steps=10)


def guide_loss_and_mass(settings: GuidedAttention, task: TranslationTask, batch: TextBatch) -> tuple[float, float]:
    """Return the guided attention loss of a batch and the attention mass on the prior."""
    with settings.observe(task.model, batch) as guidance:
        logits_of_labels(task.model, batch)
    losses, masses = zip(*guidance, strict=True)
    return torch.stack(losses).mean().item(), torch.stack(masses).mean().item()


@pytest.fixture
def weight_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often attention weights are materialised: one entry per call."""
    calls: list[int] = []
    weights = Full.weights

    def count(self: Full, q: torch.Tensor, k: torch.Tensor, mask: object) -> torch.Tensor:
        calls.append(1)
        return weights(self, q, k, mask)

    monkeypatch.setattr(Full, "weights", count)
    return calls


# Priors


@pytest.mark.parametrize("layout", [Padded, Packed])
def test_diagonal_prior_connects_first_and_last_positions(layout: type) -> None:
    target, source = layout.of([3, 5]), layout.of([5, 2])
    prior = diagonal_prior(target, source, 0.25)
    assert prior.shape == (2, 5, 5)
    assert [prior[0, 0, 0], prior[0, 1, 2], prior[0, 2, 4]] == [1, 1, 1]  # 3 target positions, 5 source positions
    assert [prior[1, 0, 0], prior[1, 4, 1]] == [1, 1]
    assert prior[0, 0, 4].item() == pytest.approx(np.exp(-(1**2) / (2 * 0.25**2)))
    assert prior[0, 1, 1].item() == pytest.approx(np.exp(-(0.25**2) / (2 * 0.25**2)))


def test_diagonal_prior_of_a_single_token_is_finite() -> None:
    prior = diagonal_prior(Padded.of([1, 4]), Padded.of([1, 1]), 0.2)
    assert prior[0, 0, 0] == 1
    assert prior.isfinite().all()


def test_aligned_prior_is_one_at_links_and_zero_elsewhere() -> None:
    prior = aligned_prior(Padded.of([3] * 5), Padded.of([4] * 5), LINKS)
    assert prior.shape == (5, 3, 4)
    assert {tuple(index) for index in prior.nonzero().tolist()} == {tuple(link) for link in LINKS.tolist()}
    assert prior.max() == 1


# Loss


@pytest.mark.parametrize(
    ("layers", "heads"), [(None, None), ((1,), None), ((-1,), (0,)), ((0, 1), (1,)), ((0,), (-1, 0))]
)
def test_loss_is_the_negative_log_of_the_mass_of_the_selected_heads(
    layers: tuple[int, ...] | None, heads: tuple[int, ...] | None, build: Callable[..., TranslationTask]
) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    settings = GuidedAttention(steps=10, layers=layers, heads=heads, width=0.3)
    with probe(task.model) as seen:
        logits_of_labels(task.model, batch)
    prior = diagonal_prior(batch.target_layout, batch.source_layout, 0.3)
    losses, masses = [], []
    for layer in layers or (0, 1):
        weights = seen[f"decoder.{layer % 2}.cross"].weights
        for head in heads or (0, 1):
            mass = (weights[:, head] * prior).sum(-1)[batch.target_layout.real()]
            losses.append(-mass.log().sum().item())
            masses.append(mass.mean().item())
    loss, mass = guide_loss_and_mass(settings, task, batch)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert mass == pytest.approx(np.mean(masses), rel=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_positions_without_links_are_not_guided(packed: bool, build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = replace(collate(task.train_tokens, ROWS, packed, 0), links=LINKS)
    with probe(task.model) as seen:
        logits_of_labels(task.model, collate(task.train_tokens, ROWS, False, 0))
    weights = torch.stack([seen[f"decoder.{layer}.cross"].weights for layer in (0, 1)]).mean((0, 2))
    masses = torch.stack([weights[0, 0, 1], weights[0, 2, [0, 2]].sum(), weights[1, 1, 1], weights[4, 0, 0]])
    _, mass = guide_loss_and_mass(GuidedAttention(steps=10, prior="alignments"), task, batch)
    assert mass == pytest.approx(masses.mean().item(), rel=1e-5)


def test_missing_alignments_are_rejected(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    with pytest.raises(UserError, match=r"objective\.guided_attention\.prior: alignments needs word alignments"):
        guide_loss_and_mass(GuidedAttention(steps=10, prior="alignments"), task, batch)


def test_weight_decreases_linearly_to_zero() -> None:
    guide = GuidedAttention(steps=4, weight=2.0)
    weights = [2, 1.5, 1, 0.5, 0, 0]
    assert [float(guide.weight_at(step)) for step in (1, 2, 3, 4, 5, 100)] == weights
    assert [guide.applies(step) for step in (1, 2, 3, 4, 5, 100)] == [weight > 0 for weight in weights]


def test_weighted_loss_is_added(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    guided = TeacherForcing(TeacherForcingSettings(guided_attention=GuidedAttention(steps=4, weight=2.0)), 0.1)
    plain = TeacherForcing(TeacherForcingSettings(), 0.1).loss(task.model, batch, 3)
    guided.begin_step(3)
    loss = guided.loss(task.model, batch, 3)
    assert loss.logged["cross_entropy"].item() == plain.total.item()
    assert loss.total.item() == pytest.approx(plain.total.item() + loss.logged["guide"].item(), rel=1e-6)


# Batches of fixed shape


@pytest.mark.parametrize("prior", ["diagonal", "alignments"])
def test_groups_of_a_batch_of_fixed_shape_give_the_same_loss_and_gradients(
    prior: Literal["diagonal", "alignments"], build: Callable[..., TranslationTask]
) -> None:
    task = build()
    settings = GuidedAttention(steps=10, prior=prior, heads=(1,))
    shape = PackedShape(tokens=90, sentences=14, longest=40, links=9)
    rows = np.append(ROWS, [5, 6, 8])
    losses, masses, gradients = [], [], []
    for fixed in (None, shape):
        batch = collate(task.train_tokens, rows, True, 0, fixed)
        batch = replace(batch, links=LINKS if fixed is None else fixed.fill_links(LINKS))
        with settings.observe(task.model, batch) as guidance:
            logits_of_labels(task.model, batch)
        loss, mass = (torch.stack(parts).mean() for parts in zip(*guidance, strict=True))
        losses.append(loss.item())
        masses.append(mass.item())
        weight = task.model.decoder[1].cross.qkv.weight
        gradients.append(torch.autograd.grad(loss, weight)[0])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert masses[1] == pytest.approx(masses[0], rel=1e-5)
    torch.testing.assert_close(*gradients)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_every_sentence_fits_into_its_group(pairs: list[tuple[int, int]], empty: int, spare: int) -> None:
    lengths = torch.tensor([*pairs, *[(0, 0)] * empty])
    layouts = [Packed.of(side) for side in lengths.T]
    layouts = [Packed(layout.offsets, 40, layout.size + spare) for layout in layouts]
    groups = LengthGroups(*layouts, is_sentence=lengths[:, 0] > 0)
    ranked = lengths.max(1).values[groups.order].tolist()
    starts = [sum(n for n, _ in groups.shapes[:i]) for i in range(len(groups.shapes) + 1)]
    for (_, longest), start, end in zip(groups.shapes, starts, starts[1:], strict=False):
        assert all(length <= longest for length in ranked[start:end])
    assert not any(ranked[starts[-1] :])


def test_groups_need_less_memory_than_rows_of_the_longest_sentence() -> None:
    shapes = group_shapes(sequences=1100, longest=256, tokens=2 * 8192)
    assert sum(n * longest**2 for n, longest in shapes) < 0.25 * 1100 * 256**2


# Attention weights


def test_weights_are_materialised_only_in_selected_layers_while_needed(
    weight_calls: list[int], build: Callable[..., TranslationTask]
) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    objective = TeacherForcing(TeacherForcingSettings(guided_attention=GuidedAttention(steps=4, layers=(1,))), 0.1)
    for step, expected in ((1, 1), (4, 2), (5, 2), (6, 2)):
        objective.begin_step(step)
        objective.loss(task.model, batch, step)
        assert len(weight_calls) == expected
    assert all(m.qkv_hook is None for m in task.model.modules() if isinstance(m, Attention))


def test_probe_still_records(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    with probe(task.model, ["decoder.0.cross"]) as seen:
        guide_loss_and_mass(ALL_LAYERS, task, batch)
        first = seen.pop("decoder.0.cross")
        logits_of_labels(task.model, batch)
    assert torch.equal(first.weights, seen["decoder.0.cross"].weights)


def test_hooks_are_removed_after_an_error(build: Callable[..., TranslationTask]) -> None:
    task = build()
    batch = collate(task.train_tokens, ROWS, False, 0)
    with pytest.raises(ZeroDivisionError), ALL_LAYERS.observe(task.model, batch):
        raise ZeroDivisionError
    assert all(m.qkv_hook is None for m in task.model.modules() if isinstance(m, Attention))


# Effect

GUIDED_HEAD = GuidedAttention(steps=10_000, width=0.1, layers=(1,), heads=(0,))
OTHER_LAYER = GuidedAttention(steps=10_000, width=0.1, layers=(0,))


def train_guided(task: TranslationTask, batch: TextBatch, settings: GuidedAttention) -> None:
    """Train on one batch for 100 steps."""
    objective = TeacherForcing(TeacherForcingSettings(guided_attention=settings), 0.0)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=3e-3)
    for step in range(1, 101):
        optimizer.zero_grad()
        objective.begin_step(step)
        loss = objective.loss(task.model, batch, step)
        (loss.total / loss.count).backward()
        optimizer.step()


def test_guided_head_attends_along_the_diagonal(build: Callable[..., TranslationTask]) -> None:
    task = build(optim__label_smoothing=0.0)
    seen, others = (collate(task.train_tokens, rows, True, 0) for rows in (ROWS, ROWS + 20))
    before = guide_loss_and_mass(GUIDED_HEAD, task, others)[1]
    train_guided(task, seen, GUIDED_HEAD)
    assert before < 0.3
    assert guide_loss_and_mass(GUIDED_HEAD, task, seen)[1] > 0.8
    assert guide_loss_and_mass(GUIDED_HEAD, task, others)[1] > 0.6
    assert guide_loss_and_mass(OTHER_LAYER, task, others)[1] < 0.3


def test_guided_head_attends_to_aligned_words(build: Callable[..., TranslationTask]) -> None:
    task = build(optim__label_smoothing=0.0)
    batch = collate(task.train_tokens, ROWS, True, 0)
    lengths = zip(batch.target_layout.lengths.tolist(), batch.source_layout.lengths.tolist(), strict=True)
    reversed_links = [(i, t, max(0, S - 1 - t)) for i, (T, S) in enumerate(lengths) for t in range(T)]
    batch = replace(batch, links=torch.tensor(reversed_links))
    settings = GuidedAttention(steps=10_000, prior="alignments")
    before = guide_loss_and_mass(settings, task, batch)[1]
    train_guided(task, batch, settings)
    assert before < 0.3
    assert guide_loss_and_mass(settings, task, batch)[1] > 0.9
    assert logits_of_labels(task.model, batch).argmax(-1).eq(batch.labels).float().mean() > 0.9


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 10, "layers": [2]}, "guided_attention.layers: the model has layers 0 to 1, not 2"),
        ({"steps": 10, "heads": [0, -3]}, "guided_attention.heads: the model has heads 0 to 1, not -3"),
        ({}, "guided_attention.steps is missing"),
        ({"steps": 10, "layers": []}, "guided_attention.layers: tuple should have at least 1 item"),
        ({"steps": 10, "prior": "diagonall"}, "guided_attention.prior: input should be 'diagonal' or 'alignments'"),
        ({"steps": 10, "wieght": 1}, "unknown key objective.guided_attention.wieght; did you mean "),
    ],
)
def test_errors_name_the_wrong_setting(
    wrong: dict[str, object], message: str, make_recipe: Callable[..., Recipe]
) -> None:
    with pytest.raises(UserError) as error:
        make_recipe(objective__guided_attention=wrong)
    assert message in str(error.value)
