"""The training loss of NAT models, compared with straightforward implementations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.masks import Packed, Padded
from regard.models.nat import NATransformer
from regard.ops import dag
from regard.ops.ctc import collapse, log_likelihood
from regard.training.objectives.nat import (
    NATObjective,
    NATTargets,
    exact_targets,
    length_loss,
    target_tokens,
    upsampled_targets,
)
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.tasks.nat import NATTask
from regard.training.text_batches import PackedShape, TextBatch
from tests.conftest import build_task, small_recipe

CPU = torch.device("cpu")
ROWS = np.array([3, 100, 200, 7, 380, 99])
LENGTHS = ("classifier", "end", "ctc", "dag")
NO_UPSAMPLING = {
    length: {"model__upsample_ratio": 1, "model__upsample_extra": 2 if length == "dag" else 0} for length in LENGTHS[1:]
}
VARIANTS = [("classifier", "uniform"), *((length, reveal) for length in LENGTHS for reveal in ("none", "glancing"))]
LAYERS = {
    "model__layer_predictions": True,
    "objective__deep_supervision": True,
    "objective__mixed_training": 0.7,
    "objective__reveal": "none",
}
FURTHER: dict[str, dict[str, object]] = {
    "classifier-layers": {"model__length": "classifier", **LAYERS},
    "end-deep": {"model__length": "end", "model__upsample_mode": "mask", "objective__deep_supervision": True},
    "ctc-layers": {"model__length": "ctc", "model__upsample_mode": "mask", **LAYERS},
    "dag-overlap": {"model__length": "dag", "model__upsample_mode": "mask", "objective__ngram_overlap": 2},
}
STEPS: list[dict[str, object]] = [
    {"model__length": length, "objective__reveal": x} for length in LENGTHS for x in ("auto", "glancing")
]
STEPS += FURTHER.values()
LAYOUTS = {"padded": Padded.of([4, 1, 0, 6]), "packed": Packed.of([4, 1, 0, 6])}
MASK, EOS, BLANK = 1, 2, 0
LONG_TARGETS = [f"{n}\t{n} 123456789" for n in range(60)]
SHORT_TARGETS = [f"{n} 123456789\t{n}" for n in range(40)]


@pytest.fixture
def build(make_recipe: Callable[..., Recipe]) -> Callable[..., NATTask]:
    def make(**changes: object) -> NATTask:
        recipe = make_recipe(model__kind="nat", **changes)
        torch.manual_seed(1)
        task = build_task(recipe, CPU, Progress(1))
        assert isinstance(task, NATTask)
        task.model.double()
        return task

    return make


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute losses in float64 instead of float32."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


@pytest.fixture
def deterministic_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the first positions instead of random ones, so that masks do not depend on the rest of the batch."""

    def first_positions(targets: NATTargets, counts: Tensor, candidates: Tensor | None = None) -> Tensor:
        first = targets.positions < counts[targets.sentences]
        return first if candidates is None else first & candidates

    monkeypatch.setattr(NATTargets, "sample", first_positions)
    monkeypatch.setattr(torch, "rand", lambda shape, **options: torch.full(shape, 0.6, **options))


def make_batch(task: NATTask, packed: bool = False, rows: np.ndarray = ROWS) -> TextBatch:
    return task.collate(task.train_tokens, rows, packed=packed)


def make_fixed_shape_batch(task: NATTask, tokens: int = 200) -> TextBatch:
    return task.collate(task.train_tokens, ROWS, packed=True, shape=PackedShape.of(task.train_tokens, tokens))


def pairs_of(task: NATTask, rows: np.ndarray = ROWS) -> list[tuple[list[int], list[int]]]:
    """Return sources with END and targets without BOS and END."""
    sources, targets = task.train_tokens.source, task.train_tokens.target
    split = [(sources.take(np.array([row])).tokens, targets.take(np.array([row])).tokens) for row in rows]
    return [(s.tolist(), t.tolist()[1:-1]) for s, t in split]


def log_probs_of(model: NATransformer, source: list[int], inputs: list[int]) -> Tensor:
    encoded = model.encode(torch.tensor([source]))
    x = NATransformer.decode(model, torch.tensor([inputs]), encoded)  # not the method that `record_inputs` replaces
    return model.logits(x)[0].log_softmax(-1)


def gradients_of(model: NATransformer, total: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    total.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def record_inputs(model: NATransformer, monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """Record the decoder inputs of padded batches: for each call, those of each sentence."""
    calls: list[list[list[int]]] = []
    decode = model.decode

    def recording(inputs: Tensor, encoded: Tensor, layout: Any, source_layout: Any) -> Tensor:
        rows = zip(inputs.tolist(), layout.lengths.tolist(), strict=True)
        calls.append([row[:length] for row, length in rows])
        return decode(inputs, encoded, layout, source_layout)

    monkeypatch.setattr(model, "decode", recording)
    return calls


# Positions


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_positions_are_concatenated_for_either_layout(layout: Padded | Packed) -> None:
    targets = NATTargets(layout)
    assert targets.sentences.tolist() == [0] * 4 + [1] + [3] * 6
    assert targets.positions.tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5]
    flat = torch.arange(11) + 10
    inputs = targets.unflatten(flat, 7)
    assert targets.flatten(inputs[..., None])[:, 0].tolist() == flat.tolist()
    rows = targets.to_rows(inputs[..., None])[..., 0]
    assert rows[3].tolist() == [15, 16, 17, 18, 19, 20]
    assert rows[1, 0] == 14
    assert targets.from_rows(rows).tolist() == flat.tolist()
    if isinstance(layout, Padded):
        assert inputs[1].tolist() == [14, 7, 7, 7, 7, 7]
    assert targets.sum((flat % 2 == 0).long()).tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_sampled_positions_have_the_given_counts_and_equal_probability(layout: Padded | Packed) -> None:
    torch.manual_seed(0)
    targets = NATTargets(layout)
    counts = torch.tensor([2, 1, 0, 3])
    frequencies = torch.zeros(11)
    for _ in range(400):
        sampled = targets.sample(counts)
        assert targets.sum(sampled.long()).tolist() == [2, 1, 0, 3]
        frequencies += sampled
    assert frequencies[4] == 400
    assert ((frequencies[[0, 1, 2, 3, *range(5, 11)]] / 400 - 0.5).abs() < 0.1).all()
    candidates = torch.tensor([True, True, False, False, False, *[True] * 3, *[False] * 3])
    sampled = targets.sample(torch.tensor([1, 1, 0, 9]), candidates)
    assert targets.sum(sampled.long()).tolist() == [1, 0, 0, 3]
    assert not (sampled & ~candidates).any()


@pytest.mark.parametrize("packed", [False, True])
def test_layouts_of_targets_follow_from_the_batch(build: Callable[..., NATTask], packed: bool) -> None:
    for changes in ({}, {"model__positions": "learned", "model__max_length": 12}):
        task = build(model__length="ctc", model__upsample_ratio=3, **changes)
        batch, config = make_batch(task, packed), task.model.config
        pairs = pairs_of(task)
        exact = exact_targets(batch.target_layout).layout
        assert exact.lengths.tolist() == [len(target) for _, target in pairs]
        assert (exact.longest, type(exact)) == (max(len(t) for _, t in pairs), Packed if packed else Padded)
        upsampled = upsampled_targets(batch.source_layout, config).layout
        expected = config.upsampled_lengths(np.array([len(source) for source, _ in pairs])).tolist()
        assert upsampled.lengths.tolist() == expected
        assert upsampled.longest == max(expected)
        if isinstance(upsampled, Packed) and isinstance(exact, Packed):
            assert upsampled.size == sum(expected)
            assert exact.size == sum(len(t) for _, t in pairs)


@pytest.mark.parametrize("tokens", [60, 61, 62, 200])
def test_targets_of_fixed_shape_are_padded_like_their_batch(build: Callable[..., NATTask], tokens: int) -> None:
    task = build()
    lengths = [len(target) for _, target in pairs_of(task)]
    batch = make_fixed_shape_batch(task, tokens)
    is_sentence = batch.is_sentence()
    assert is_sentence.tolist() == [True] * len(lengths) + [False] * (len(is_sentence) - len(lengths))
    layout = exact_targets(batch.target_layout, is_sentence).layout
    assert isinstance(layout, Packed)
    assert layout.lengths[: len(lengths)].tolist() == lengths
    assert (int(layout.lengths.sum()), int(layout.lengths.min())) == (layout.size, 0)
    assert int(layout.lengths.max()) <= layout.longest
    assert (layout.size, layout.longest) == (batch.target_layout.size, batch.target_layout.longest)


@pytest.mark.parametrize("packed", [False, True])
def test_target_tokens_have_one_sentence_per_row(build: Callable[..., NATTask], packed: bool) -> None:
    task = build()
    table = target_tokens(make_batch(task, packed))
    for row, (_, target) in zip(table.tolist(), pairs_of(task), strict=True):
        assert row[: len(target) + 1] == [*target, EOS]


# Losses


@torch.no_grad()
def test_classifier_loss_is_that_of_tokens_and_lengths(build: Callable[..., NATTask]) -> None:
    task = build(model__max_length_offset=2)
    model, batch, pairs = task.model, make_batch(task), pairs_of(task)
    torch.nn.init.normal_(model.length.weight)
    tokens = length = 0.0
    for source, target in pairs:
        log_probs = log_probs_of(model, source, [MASK] * len(target))
        tokens -= float(log_probs[range(len(target)), target].sum())
        difference = torch.tensor(min(4, max(0, len(target) + 1 - len(source) + 2)))
        logits = model.length_logits(model.encode(torch.tensor([source])))[0]
        length += len(target) * float(F.cross_entropy(logits, difference))
    loss = NATObjective(length_weight=0.3).loss(model, batch, 1)
    assert loss.count == sum(len(target) for _, target in pairs)
    assert float(loss.total) == pytest.approx(tokens + 0.3 * length)
    assert float(loss.logged["length"]) == pytest.approx(length)
    encoded = model.encode(batch.source, batch.source_layout)
    assert float(length_loss(model, encoded, batch)) == pytest.approx(length)


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
@torch.no_grad()
def test_validation_uses_the_length_weight_of_the_recipe(build: Callable[..., NATTask], weight: float) -> None:
    task = build(objective__length_weight=weight)
    loss = task.validation_objective.loss(task.model, make_batch(task), 0)
    tokens, length = float(loss.logged["cross_entropy"]), float(loss.logged["length"])
    assert length > 0
    assert float(loss.total) == pytest.approx(tokens + weight * length)


@torch.no_grad()
def test_end_loss_expects_end_after_the_target(build: Callable[..., NATTask]) -> None:
    task = build(model__length="end")
    total, count = 0.0, 0
    for source, target in pairs_of(task):
        log_probs = log_probs_of(task.model, source, [MASK] * (2 * len(source) + 4))
        labels = [*target, EOS]
        total -= float(log_probs[range(len(labels)), labels].sum() + log_probs[len(labels) :, EOS].mean())
        count += len(labels) + 1
    loss = NATObjective().loss(task.model, make_batch(task), 1)
    assert (float(loss.total), loss.count) == (pytest.approx(total), count)


@torch.no_grad()
def test_ctc_loss_sums_over_all_paths(build: Callable[..., NATTask]) -> None:
    task = build(model__length="ctc")
    total, pairs = 0.0, pairs_of(task)
    for source, target in pairs:
        positions = 2 * len(source) + 4
        log_probs = log_probs_of(task.model, source, [MASK] * positions)[None]
        sizes = torch.tensor([positions]), torch.tensor([target]), torch.tensor([len(target)])
        total -= float(log_likelihood(log_probs, *sizes, BLANK))
    loss = NATObjective().loss(task.model, make_batch(task), 1)
    assert (float(loss.total), loss.count) == (pytest.approx(total), sum(len(target) for _, target in pairs))


@torch.no_grad()
def test_graph_loss_sums_over_all_paths(build: Callable[..., NATTask]) -> None:
    task = build(model__length="dag", model__upsample_ratio=2)
    total, pairs = 0.0, pairs_of(task)
    for source, target in pairs:
        vertices = torch.tensor([2 * len(source) + 4])
        inputs, model = torch.full((1, int(vertices)), MASK), task.model
        x = model.decode(inputs, model.encode(torch.tensor([source])))
        emissions = model.logits(x).log_softmax(-1)[:, :, target]
        total -= float(
            dag.log_likelihood(emissions, model.transitions(x, vertices), vertices, torch.tensor([len(target)]))
        )
    loss = NATObjective().loss(task.model, make_batch(task), 1)
    assert (float(loss.total), loss.count) == (pytest.approx(total), sum(len(target) for _, target in pairs))


@torch.no_grad()
@pytest.mark.usefixtures("deterministic_masks")
def test_glancing_reveals_tokens_at_the_vertices_of_the_best_path(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build(model__length="dag", model__upsample_ratio=2)
    calls = record_inputs(task.model, monkeypatch)
    NATObjective("glancing", glancing_ratio=(0.9, 0.9)).loss(task.model, make_batch(task), 1)
    first, second = calls
    revealed = 0
    for (_, target), before, after in zip(pairs_of(task), first, second, strict=True):
        assert set(before) == {MASK}
        tokens = [token for token in after if token != MASK]
        assert len(before) == len(after)
        remaining = iter(target)
        assert all(token in remaining for token in tokens)  # a subsequence of the target
        revealed += len(tokens)
    assert revealed


@pytest.mark.parametrize("length", LENGTHS)
def test_padded_and_packed_batches_have_the_same_loss_and_gradients(build: Callable[..., NATTask], length: str) -> None:
    task = build(model__length=length)
    padded, packed = (
        NATObjective(label_smoothing=0.1).loss(task.model, make_batch(task, packed), 1) for packed in (False, True)
    )
    assert padded.total.item() == pytest.approx(packed.total.item(), rel=1e-9)
    expected = gradients_of(task.model, padded.total)
    for name, gradient in gradients_of(task.model, packed.total).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize(("length", "reveal"), VARIANTS)
@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.usefixtures("float64", "deterministic_masks")
def test_losses_and_gradients_of_halves_add_up(
    build: Callable[..., NATTask], length: str, reveal: str, layout: str
) -> None:
    task = build(model__length=length, objective__reveal=reveal, batch__layout=layout, **NO_UPSAMPLING.get(length, {}))
    batch = make_batch(task, layout == "packed", rows=np.arange(0, 400, 29))
    halves = task.split(batch)
    assert halves is not None
    whole, (first, second) = task.loss(batch, 1), (task.loss(half, 1) for half in halves)
    assert whole.count == first.count + second.count == task.count(batch)
    assert whole.total.item() == pytest.approx(first.total.item() + second.total.item(), rel=1e-9)
    expected = gradients_of(task.model, whole.total)
    for name, gradient in gradients_of(task.model, first.total + second.total).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("reveal", ["none", "glancing"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.usefixtures("float64", "deterministic_masks")
def test_batch_of_fixed_shape_has_the_same_loss_and_gradients(
    build: Callable[..., NATTask], length: str, reveal: Any
) -> None:
    task = build(model__length=length, **{} if length == "classifier" else {"model__upsample_extra": 3})
    padded, filled = (
        NATObjective(reveal, label_smoothing=0.1).loss(task.model, batch, 1)
        for batch in (make_batch(task), make_fixed_shape_batch(task))
    )
    assert (filled.count, filled.total.item()) == pytest.approx((padded.count, padded.total.item()), rel=1e-9)
    for name, value in padded.logged.items():
        assert float(filled.logged[name]) == pytest.approx(float(value), rel=1e-9)
    expected = gradients_of(task.model, padded.total)
    for name, gradient in gradients_of(task.model, filled.total).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.usefixtures("float64", "deterministic_masks")
def test_deep_and_fuzzy_losses_do_not_depend_on_the_layout_or_the_rest_of_the_batch(
    build: Callable[..., NATTask], name: str
) -> None:
    task = build(**FURTHER[name])
    for merge in getattr(task.model, "merge", ()):
        torch.nn.init.normal_(merge.linear.weight, std=0.3)
    batches = make_batch(task), make_batch(task, packed=True), make_fixed_shape_batch(task)
    whole, packed, filled = (task.loss(batch, 1) for batch in batches)
    parts = [task.loss(make_batch(task, rows=rows), 1) for rows in (ROWS[:2], ROWS[2:])]
    assert whole.count == packed.count == filled.count == sum(part.count for part in parts)
    expected = gradients_of(task.model, whole.total)
    for total in (packed.total, filled.total, parts[0].total + parts[1].total):
        assert total.item() == pytest.approx(whole.total.item(), rel=1e-9)
        for parameter, gradient in gradients_of(task.model, total).items():
            torch.testing.assert_close(gradient, expected[parameter], atol=1e-9, rtol=1e-7)


@torch.no_grad()
def test_deep_supervision_is_the_mean_loss_of_the_predictions_of_all_layers(build: Callable[..., NATTask]) -> None:
    task = build(model__length="ctc")
    total, pairs = 0.0, pairs_of(task)
    for source, target in pairs:
        positions = 2 * len(source) + 4
        encoded = task.model.encode(torch.tensor([source]))
        layers = task.model.decode_layers(torch.full((1, positions), MASK), encoded)
        for x in layers:
            sizes = torch.tensor([positions]), torch.tensor([target]), torch.tensor([len(target)])
            total -= float(log_likelihood(task.model.logits(x).log_softmax(-1), *sizes, BLANK)) / len(layers)
    loss = NATObjective(deep_supervision=True).loss(task.model, make_batch(task), 1)
    assert (float(loss.total), loss.count) == (pytest.approx(total), sum(len(target) for _, target in pairs))
    last = NATObjective().loss(task.model, make_batch(task), 1)
    assert float(last.total) != pytest.approx(float(loss.total), rel=1e-3)


@pytest.mark.parametrize("length", ["classifier", "ctc"])
@torch.no_grad()
def test_mixed_training_replaces_predictions_by_tokens_of_the_reference(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    task = build(**FURTHER[f"{length}-layers"], model__decoder_layers=3)
    calls: list[tuple[Tensor, ...]] = []
    decode_layers = task.model.decode_layers

    def recording(*given: Any) -> list[Tensor]:
        calls.append(tuple(given[4]) if len(given) > 4 else ())
        return decode_layers(*given)

    monkeypatch.setattr(task.model, "decode_layers", recording)
    torch.manual_seed(5)
    NATObjective(deep_supervision=True, mixed_training=0.4).loss(task.model, make_batch(task), 1)
    first, second = calls[-1]
    assert not torch.equal(first, second)  # drawn for every layer
    revealed = 0
    for references in (first, second):
        for row, (source, target) in zip(references.tolist(), pairs_of(task), strict=True):
            if length == "classifier":
                assert all(found in (-1, token) for found, token in zip(row, target, strict=False))
            else:
                row = row[: 2 * len(source) + 4]
                tokens = [token for token in row if token not in (-1, BLANK)]
                remaining = iter([token for token, _ in groupby(tokens)])
                expected = iter(target)
                assert all(token in expected for token in remaining)  # a subsequence of the target
            revealed += sum(token >= 0 for token in row)
    total = sum(2 * len(source) + 4 if length == "ctc" else len(target) for source, target in pairs_of(task))
    assert revealed / (2 * total) == pytest.approx(0.4, abs=0.12)


@torch.no_grad()
def test_graph_is_trained_on_the_overlap_of_n_grams(build: Callable[..., NATTask]) -> None:
    task = build(model__length="dag", model__upsample_ratio=2)
    total, model = 0.0, task.model
    for source, target in pairs_of(task):
        vertices, count = torch.tensor([2 * len(source) + 4]), torch.tensor([len(target)])
        x = model.decode(torch.full((1, int(vertices)), MASK), model.encode(torch.tensor([source])))
        graph = model.logits(x).log_softmax(-1)[:, :, target], model.transitions(x, vertices), vertices
        total += len(target) * (1 - float(dag.ngram_overlap(*graph, torch.tensor([target]), count, 2)))
    loss = NATObjective(ngram_overlap=2).loss(model, make_batch(task), 1)
    assert float(loss.total) == pytest.approx(total)
    assert 0 < total < loss.count


class RejectSynchronisation(TorchDispatchMode):
    """Rejects operations that synchronise with the device or have data-dependent shapes: they cannot be captured."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "_ctc_loss"), name
        if name == "index":
            assert all(index is None or index.dtype != torch.bool for index in args[1])
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("changes", STEPS, ids=str)
def test_step_on_a_batch_of_fixed_shape_does_not_synchronise(
    build: Callable[..., NATTask], changes: dict[str, object]
) -> None:
    task = build(**changes, model__dropout=0.1)
    batch = make_fixed_shape_batch(task)
    step = torch.tensor(3.0)
    task.loss(batch, step)
    with RejectSynchronisation():
        task.loss(batch, step).total.backward()
    with pytest.raises(AssertionError, match="nonzero"), RejectSynchronisation():
        task.loss(make_batch(task), step)


@pytest.mark.parametrize("length", NO_UPSAMPLING)
@torch.no_grad()
def test_target_that_does_not_fit_is_skipped_and_counted(tmp_path: Path, length: str) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{pair}\n" for pair in SHORT_TARGETS + LONG_TARGETS))
    recipe = small_recipe(tmp_path / "pairs.tsv", model__kind="nat", model__length=length, **NO_UPSAMPLING[length])
    task = build_task(recipe, CPU, Progress(1))
    assert isinstance(task, NATTask)
    differences = task.train_tokens.source.lengths - task.train_tokens.target.lengths
    too_long, fitting = np.flatnonzero(differences < -2)[:2], np.flatnonzero(differences > 2)[:3]
    both = NATObjective().loss(task.model, make_batch(task, rows=np.concatenate((fitting, too_long))), 1)
    without = NATObjective().loss(task.model, make_batch(task, rows=fitting), 1)
    assert (float(both.total), both.count) == (pytest.approx(float(without.total)), without.count)
    assert float(both.logged["too_long"] / both.count) == pytest.approx(2 / 5)
    assert float(without.logged["too_long"]) == 0


# Revealed tokens


def test_uniform_masks_have_all_sizes_with_equal_probability(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build()
    batch, pairs = make_batch(task), pairs_of(task)
    calls = record_inputs(task.model, monkeypatch)
    masked: list[list[int]] = [[] for _ in pairs]
    with torch.no_grad():
        for _ in range(300):
            NATObjective("uniform").loss(task.model, batch, 1)
    for call in calls:
        for i, (row, (_, target)) in enumerate(zip(call, pairs, strict=True)):
            assert all(token in (MASK, label) for token, label in zip(row, target, strict=True))
            masked[i].append(row.count(MASK))
    for counts, (_, target) in zip(masked, pairs, strict=True):
        assert {*counts} == set(range(1, len(target) + 1))
        assert sum(counts) / 300 == pytest.approx((len(target) + 1) / 2, abs=0.35)


@torch.no_grad()
def test_only_masked_tokens_contribute_to_the_loss(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build()
    batch, pairs = make_batch(task), pairs_of(task)
    calls = record_inputs(task.model, monkeypatch)
    torch.manual_seed(4)
    loss = NATObjective("uniform", length_weight=0.0).loss(task.model, batch, 1)
    total = 0.0
    for row, (source, target) in zip(calls[0], pairs, strict=True):
        log_probs = log_probs_of(task.model, source, row)
        masked = [position for position, token in enumerate(row) if token == MASK]
        per_masked_token = len(target) / ((len(target) + 1) / 2)  # (length + 1) / 2 tokens are masked on average
        total -= per_masked_token * float(sum(log_probs[position, target[position]] for position in masked))
    assert float(loss.total) == pytest.approx(total)


@pytest.mark.parametrize("length", ["classifier", "end"])
def test_glancing_reveals_tokens_in_proportion_to_the_errors_of_the_first_pass(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    task = build(model__length=length)
    batch, pairs = make_batch(task), pairs_of(task)
    calls = record_inputs(task.model, monkeypatch)
    NATObjective("glancing", (0.5, 0.5)).loss(task.model, batch, 1)
    first_pass, second_pass = calls
    number_revealed = 0
    for masked, row, (source, target) in zip(first_pass, second_pass, pairs, strict=True):
        assert set(masked) == {MASK}
        predicted = log_probs_of(task.model, source, masked).argmax(-1).tolist()
        wrong = sum(a != b for a, b in zip(predicted, target, strict=False))
        revealed = [(position, token) for position, token in enumerate(row) if token != MASK]
        assert len(revealed) == int(0.5 * wrong)
        assert all(target[position] == token for position, token in revealed)
        number_revealed += len(revealed)
    assert number_revealed > 5


def test_glancing_with_ctc_reveals_the_most_probable_path(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build(model__length="ctc")
    calls = record_inputs(task.model, monkeypatch)
    NATObjective("glancing", (0.999999, 0.999999)).loss(task.model, make_batch(task), 1)
    for row, (_, target) in zip(calls[1], pairs_of(task), strict=True):
        revealed = [token for token in row if token != MASK]
        assert len(revealed) >= len(row) // 2  # an untrained model predicts nearly everything wrong
        assert set(collapse(revealed, BLANK)) <= set(target)


def test_glancing_reveals_nothing_if_the_first_pass_is_correct(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build()
    labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(t) for _, t in pairs_of(task)], batch_first=True)
    calls = record_inputs(task.model, monkeypatch)
    vocabulary = len(task.translator.vocabularies.target)
    monkeypatch.setattr(task.model, "logits", lambda x: 9.0 * F.one_hot(labels, vocabulary))
    NATObjective("glancing").loss(task.model, make_batch(task), 1)
    assert {token for row in calls[1] for token in row} == {MASK}


def test_glancing_ratio_decreases_during_training() -> None:
    objective = NATObjective("glancing", (0.5, 0.3), steps=100)
    assert [round(objective.revealed_per_error(step), 3) for step in (0, 50, 100, 200)] == [0.5, 0.4, 0.3, 0.3]
    for step in (0, 50, 77, 100, 200):
        as_tensor = objective.revealed_per_error(torch.tensor(step, dtype=torch.float64))
        assert float(as_tensor) == objective.revealed_per_error(step)
