"""Teaching a model that writes all tokens at once, held to plain readings of each loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.attention.masks import Packed, Padded
from regard.decoding.ctc import collapse, log_likelihood
from regard.errors import UserError
from regard.models.nat import NATransformer
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import build_task, run_recipe
from regard.training.tasks.nat.objective import NATObjective, are_sentences, length_loss, target_tokens
from regard.training.tasks.nat.targets import Canvas, source_canvas, target_canvas
from regard.training.tasks.nat.task import NATTask
from regard.training.tasks.translation.batch_shape import PackedShape
from regard.training.tasks.translation.task import TextBatch, collate
from tests.conftest import small_recipe
from tests.training.test_resume import crashing_at, log, weights

CPU = torch.device("cpu")
ROWS = np.array([3, 100, 200, 7, 380, 99])
LENGTHS = ("classifier", "end", "ctc")
LAYOUTS = {"padded": Padded.of([4, 1, 0, 6]), "packed": Packed.of([4, 1, 0, 6])}
MASK, EOS, BLANK = 1, 2, 0


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


def batch_of(task: NATTask, packed: bool = False, rows: np.ndarray = ROWS) -> TextBatch:
    return collate(task.train, rows, packed, BLANK)


def filled_batch_of(task: NATTask, tokens: int = 200) -> TextBatch:
    return collate(task.train, ROWS, True, BLANK, PackedShape.of(task.train, tokens))


def pairs_of(task: NATTask, rows: np.ndarray = ROWS) -> list[tuple[list[int], list[int]]]:
    """Source with END, target without BOS and END."""
    sources, targets = task.train.source, task.train.target
    split = [(sources.take(np.array([row])).tokens, targets.take(np.array([row])).tokens) for row in rows]
    return [(s.tolist(), t.tolist()[1:-1]) for s, t in split]


def model_of(task: NATTask) -> NATransformer:
    assert isinstance(task.model, NATransformer)
    return task.model


def logp_of(model: NATransformer, source: list[int], canvas: list[int]) -> Tensor:
    return model(torch.tensor([source]), torch.tensor([canvas]))[0].log_softmax(-1)


def reading(model: NATransformer, monkeypatch: pytest.MonkeyPatch, layout: str = "padded") -> list[list[list[int]]]:
    """What the decoder reads from now on: of each call, each sentence's canvas."""
    seen: list[list[list[int]]] = []
    decode = model.decode

    def watch(canvas: Tensor, memory: Tensor, canvas_layout: Any, memory_layout: Any) -> Tensor:
        lengths = canvas_layout.lengths.tolist()
        rows = canvas[0].split(lengths) if layout == "packed" else [r[:n] for r, n in zip(canvas, lengths, strict=True)]
        seen.append([row.tolist() for row in rows])
        return decode(canvas, memory, canvas_layout, memory_layout)

    monkeypatch.setattr(model, "decode", watch)
    return seen


# Canvases


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_canvas_is_flat_whatever_its_layout(layout: Padded | Packed) -> None:
    canvas = Canvas(layout)
    assert canvas.sentences.tolist() == [0] * 4 + [1] + [3] * 6
    assert canvas.places.tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5]
    flat = torch.arange(11) + 10
    laid = canvas.lay_out(flat, 7)
    assert canvas.flatten(laid[..., None])[:, 0].tolist() == flat.tolist()
    rows = canvas.in_rows(laid[..., None])[..., 0]
    assert rows[3].tolist() == [15, 16, 17, 18, 19, 20]
    assert rows[1, 0] == 14
    assert canvas.from_rows(rows).tolist() == flat.tolist()
    if isinstance(layout, Padded):
        assert laid[1].tolist() == [14, 7, 7, 7, 7, 7]
    assert canvas.count(flat % 2 == 0).tolist() == [2, 1, 0, 3]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_so_many_places_are_picked_and_each_as_often(layout: Padded | Packed) -> None:
    torch.manual_seed(0)
    canvas = Canvas(layout)
    counts = torch.tensor([2, 1, 0, 3])
    often = torch.zeros(11)
    for _ in range(400):
        picked = canvas.pick(counts)
        assert canvas.count(picked).tolist() == [2, 1, 0, 3]
        often += picked
    assert often[4] == 400
    assert ((often[[0, 1, 2, 3, *range(5, 11)]] / 400 - 0.5).abs() < 0.1).all()
    among = torch.tensor([True, True, False, False, False, *[True] * 3, *[False] * 3])
    picked = canvas.pick(torch.tensor([1, 1, 0, 9]), among)
    assert canvas.count(picked).tolist() == [1, 0, 0, 3]
    assert not (picked & ~among).any()


@pytest.mark.parametrize("packed", [False, True])
def test_the_layouts_of_canvases_follow_from_the_batch(build: Callable[..., NATTask], packed: bool) -> None:
    for changes in ({}, {"model__positions": "learned", "model__max_length": 12}):
        task = build(model__length="ctc", model__upsample_ratio=3, **changes)
        batch, config = batch_of(task, packed), model_of(task).config
        pairs = pairs_of(task)
        exact = target_canvas(batch.target_layout).layout
        assert exact.lengths.tolist() == [len(target) for _, target in pairs]
        assert (exact.longest, type(exact)) == (max(len(t) for _, t in pairs), Packed if packed else Padded)
        longer = source_canvas(batch.source_layout, config).layout
        expected = config.upsampled_lengths(np.array([len(source) for source, _ in pairs])).tolist()
        assert longer.lengths.tolist() == expected
        assert longer.longest == max(expected)
        if isinstance(longer, Packed) and isinstance(exact, Packed):
            assert longer.size == sum(expected)
            assert exact.size == sum(len(t) for _, t in pairs)


# Losses


@pytest.mark.parametrize("packed", [False, True])
def test_targets_stand_one_a_row(build: Callable[..., NATTask], packed: bool) -> None:
    task = build()
    table = target_tokens(batch_of(task, packed))
    for row, (_, target) in zip(table.tolist(), pairs_of(task), strict=True):
        assert row[: len(target) + 1] == [*target, EOS]


@torch.no_grad()
def test_the_loss_of_a_classifier_is_that_of_tokens_and_lengths(build: Callable[..., NATTask]) -> None:
    task = build(model__length_reach=2)
    model, batch, pairs = model_of(task), batch_of(task), pairs_of(task)
    torch.nn.init.normal_(model.length.weight)
    tokens = [
        -logp_of(model, source, [MASK] * len(target))[range(len(target)), target].sum() for source, target in pairs
    ]
    mean = torch.stack(tokens).sum() / sum(len(target) for _, target in pairs)
    lengths = [
        F.cross_entropy(
            model.length_logits(model.encode(torch.tensor([source])))[0],
            torch.tensor(min(4, max(0, len(target) + 1 - len(source) + 2))),
        )
        for source, target in pairs
    ]
    found = NATObjective(length_weight=0.3).loss(model, batch, 1)
    assert found.count == len(batch.labels)
    assert float(found.total / found.count) == pytest.approx(float(mean + 0.3 * torch.stack(lengths).mean()))
    assert float(found.parts["length"] / found.count) == pytest.approx(float(torch.stack(lengths).mean()))
    assert float(length_loss(model, model.encode(batch.source, batch.source_layout), batch)) == pytest.approx(
        float(torch.stack(lengths).mean())
    )


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
@torch.no_grad()
def test_a_validation_weighs_lengths_as_the_recipe_does(build: Callable[..., NATTask], weight: float) -> None:
    task = build(objective__length_weight=weight)
    found = task.examine(model_of(task), batch_of(task))
    tokens, lengths = float(found.parts["cross_entropy"]), float(found.parts["length"])
    assert lengths > 0
    assert float(found.total) == pytest.approx(tokens + weight * lengths)


@torch.no_grad()
def test_the_loss_of_a_canvas_that_is_cut_asks_for_end_behind_the_target(
    build: Callable[..., NATTask],
) -> None:
    task = build(model__length="end")
    model, pairs = model_of(task), pairs_of(task)
    total = weight = 0.0
    for source, target in pairs:
        places = 2 * len(source) + 4
        logp = logp_of(model, source, [MASK] * places)
        said = [*target, EOS]
        total -= float(logp[range(len(said)), said].sum() + logp[len(said) :, EOS].mean())
        weight += len(said) + 1
    found = NATObjective().loss(model, batch_of(task), 1)
    assert float(found.total / found.count) == pytest.approx(total / weight)


@torch.no_grad()
def test_the_loss_of_ctc_counts_every_path(build: Callable[..., NATTask]) -> None:
    task = build(model__length="ctc")
    model, pairs = model_of(task), pairs_of(task)
    total = 0.0
    for source, target in pairs:
        places = 2 * len(source) + 4
        logp = logp_of(model, source, [MASK] * places)[None]
        sizes = torch.tensor([places]), torch.tensor([target]), torch.tensor([len(target)])
        total -= float(log_likelihood(logp, *sizes, BLANK))
    found = NATObjective().loss(model, batch_of(task), 1)
    assert float(found.total / found.count) == pytest.approx(total / sum(len(target) for _, target in pairs))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_packed_batch_has_the_loss_and_the_gradients_of_a_padded_one(
    build: Callable[..., NATTask], length: str
) -> None:
    task = build(model__length=length)
    model, found = model_of(task), []
    for packed in (False, True):
        model.zero_grad()
        loss = NATObjective(smoothing=0.1).loss(model, batch_of(task, packed), 1)
        loss.total.backward()
        found.append((loss.total.item(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    for name, grad in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], grad, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("reveal", ["none", "glancing"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_filled_batch_has_the_loss_and_the_gradients_of_a_padded_one(
    build: Callable[..., NATTask], length: str, reveal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build(model__length=length, **{} if length == "classifier" else {"model__upsample_extra": 1})
    monkeypatch.setattr(Canvas, "pick", pick_the_first)
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    model, found = model_of(task), []
    for batch in (batch_of(task), filled_batch_of(task)):
        model.zero_grad()
        loss = NATObjective(reveal, smoothing=0.1).loss(model, batch, 1)
        loss.total.backward()
        found.append((loss, loss.total.item(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    (padded, expected, gradients), (filled, total, others) = found
    assert (filled.count, total) == pytest.approx((padded.count, expected), rel=1e-9)
    for name, part in padded.parts.items():
        assert float(filled.parts[name]) == pytest.approx(float(part), rel=1e-9)
    for name, grad in gradients.items():
        torch.testing.assert_close(others[name], grad, atol=1e-9, rtol=1e-7)


def pick_the_first(canvas: Canvas, counts: Tensor, among: Tensor | None = None) -> Tensor:
    """In place of `Canvas.pick`: what it picks does not depend on what else is in the batch."""
    first = canvas.places < counts[canvas.sentences]
    return first if among is None else first & among


@pytest.mark.parametrize("tokens", [60, 61, 62, 200])
def test_a_canvas_is_filled_up_as_its_batch_is(build: Callable[..., NATTask], tokens: int) -> None:
    task = build()
    lengths = [len(target) for _, target in pairs_of(task)]
    batch = filled_batch_of(task, tokens)
    sentences = are_sentences(batch)
    assert sentences.tolist() == [True] * len(lengths) + [False] * (len(sentences) - len(lengths))
    layout = target_canvas(batch.target_layout, sentences).layout
    assert isinstance(layout, Packed)
    assert layout.lengths[: len(lengths)].tolist() == lengths
    assert (int(layout.lengths.sum()), int(layout.lengths.min())) == (layout.size, 0)
    assert int(layout.lengths.max()) <= layout.longest
    assert (layout.size, layout.longest) == (batch.target_layout.size, batch.target_layout.longest)


class Waits(TorchDispatchMode):
    """Refuses whatever would have to wait for a device, or depend on what is there: none of it can be recorded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "_ctc_loss"), name
        if name == "index":
            assert all(index is None or index.dtype != torch.bool for index in args[1])
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("reveal", ["auto", "glancing"])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_step_on_a_filled_batch_waits_for_nothing(build: Callable[..., NATTask], length: str, reveal: str) -> None:
    task = build(model__length=length, objective__reveal=reveal, model__dropout=0.1)
    batch = filled_batch_of(task)
    step = torch.tensor(3.0)
    task.loss(batch, step)
    with Waits():
        task.loss(batch, step).total.backward()
    with pytest.raises(AssertionError, match="nonzero"), Waits():
        task.loss(batch_of(task), step)


LONG, SHORT = [f"{n}\t{n} 123456789" for n in range(60)], [f"{n} 123456789\t{n}" for n in range(40)]


def uneven_recipe(folder: Path, pairs: list[str], length: str = "end") -> Recipe:
    """A canvas that is no longer than the source, END counted."""
    (folder / "pairs.tsv").write_text("".join(f"{pair}\n" for pair in pairs), encoding="utf-8")
    canvas = {"model__upsample_ratio": 1, "model__upsample_extra": 0}
    return small_recipe(folder / "pairs.tsv", model__kind="nat", model__length=length, **canvas)


@pytest.mark.parametrize("length", ["end", "ctc"])
@torch.no_grad()
def test_a_target_longer_than_its_canvas_is_left_out_and_counted(tmp_path: Path, length: str) -> None:
    task = build_task(uneven_recipe(tmp_path, SHORT + LONG, length), CPU, Progress(1))
    assert isinstance(task, NATTask)
    model, sizes = model_of(task), task.train.source.lengths - task.train.target.lengths
    long, fit = np.flatnonzero(sizes < -2)[:2], np.flatnonzero(sizes > 2)[:3]
    whole = NATObjective().loss(model, batch_of(task, rows=np.concatenate((fit, long))), 1)
    part = NATObjective().loss(model, batch_of(task, rows=fit), 1)
    assert float(whole.total / whole.count) == pytest.approx(float(part.total / part.count))
    assert float(whole.parts["left_out"] / whole.count) == pytest.approx(2 / 5)
    assert float(part.parts["left_out"]) == 0


# What is revealed


def test_uniform_masks_hide_every_share_alike_and_show_only_the_truth(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build()
    model, batch, pairs = model_of(task), batch_of(task), pairs_of(task)
    seen = reading(model, monkeypatch)
    teacher = NATObjective("uniform")
    hidden: list[list[int]] = [[] for _ in pairs]
    with torch.no_grad():
        for _ in range(300):
            teacher.loss(model, batch, 1)
    for call in seen:
        for i, (row, (_, target)) in enumerate(zip(call, pairs, strict=True)):
            assert all(token in (MASK, truth) for token, truth in zip(row, target, strict=True))
            hidden[i].append(row.count(MASK))
    for counts, (_, target) in zip(hidden, pairs, strict=True):
        assert {*counts} == set(range(1, len(target) + 1))
        assert sum(counts) / 300 == pytest.approx((len(target) + 1) / 2, abs=0.35)


@torch.no_grad()
def test_only_what_is_hidden_is_asked_for(build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch) -> None:
    task = build()
    model, batch, pairs = model_of(task), batch_of(task), pairs_of(task)
    seen = reading(model, monkeypatch)
    torch.manual_seed(4)
    found = NATObjective("uniform", length_weight=0.0).loss(model, batch, 1)
    total, number = 0.0, 0
    for row, (source, target) in zip(seen[0], pairs, strict=True):
        logp = _plain(model, source, row)
        for place, token in enumerate(row):
            if token == MASK:
                total, number = total - float(logp[place, target[place]]), number + 1
    assert float(found.total / found.count) == pytest.approx(total / number)


def _plain(model: NATransformer, source: list[int], canvas: list[int]) -> Tensor:
    """The model without the watch that `reading` puts on it."""
    memory = model.encode(torch.tensor([source]))
    decoded = NATransformer.decode(model, torch.tensor([canvas]), memory)
    return model.logits(decoded)[0].log_softmax(-1)


@pytest.mark.parametrize("length", ["classifier", "end"])
def test_glancing_shows_a_share_of_as_many_as_the_first_look_gets_wrong(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    task = build(model__length=length)
    model, batch, pairs = model_of(task), batch_of(task), pairs_of(task)
    seen = reading(model, monkeypatch)
    NATObjective("glancing", (0.5, 0.5)).loss(model, batch, 1)
    first, second = seen
    shown = 0
    for look, row, (source, target) in zip(first, second, pairs, strict=True):
        assert set(look) == {MASK}
        said = _plain(model, source, look).argmax(-1).tolist()
        wrong = sum(a != b for a, b in zip(said, target, strict=False))
        known = [(place, token) for place, token in enumerate(row) if token != MASK]
        assert len(known) == int(0.5 * wrong)
        assert all(target[place] == token for place, token in known)
        shown += len(known)
    assert shown > 5


def test_glancing_at_a_ctc_canvas_shows_the_likeliest_path_of_the_target(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build(model__length="ctc")
    model, batch, pairs = model_of(task), batch_of(task), pairs_of(task)
    seen = reading(model, monkeypatch)
    NATObjective("glancing", (0.999999, 0.999999)).loss(model, batch, 1)
    for row, (_, target) in zip(seen[1], pairs, strict=True):
        known = [token for token in row if token != MASK]
        assert len(known) >= len(row) // 2  # a model that knows nothing gets nearly everything wrong
        assert set(collapse(known, BLANK)) <= set(target)


def test_a_model_that_is_right_at_first_sight_is_shown_nothing(
    build: Callable[..., NATTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = build()
    model, batch, pairs = model_of(task), batch_of(task), pairs_of(task)
    truth = torch.nn.utils.rnn.pad_sequence([torch.tensor(target) for _, target in pairs], batch_first=True)
    seen = reading(model, monkeypatch)
    monkeypatch.setattr(model, "logits", lambda x: 9.0 * F.one_hot(truth, len(task.translator.vocabularies.target)))
    NATObjective("glancing").loss(model, batch, 1)
    assert {token for row in seen[1] for token in row} == {MASK}


def test_less_is_shown_as_training_goes_on() -> None:
    teacher = NATObjective("glancing", (0.5, 0.3), steps=100)
    assert [round(teacher.share(step), 3) for step in (0, 50, 100, 200)] == [0.5, 0.4, 0.3, 0.3]
    for step in (0, 50, 77, 100, 200):
        assert float(teacher.share(torch.tensor(step, dtype=torch.float64))) == teacher.share(step)


# Runs


@pytest.mark.parametrize(
    "changes", [{}, {"model__length": "ctc"}, {"model__length": "end"}], ids=["classifier", "ctc", "end"]
)
def test_a_run_that_crashed_ends_in_the_same_weights_to_the_bit(
    make_recipe: Callable[..., Recipe], tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = {
        "model__kind": "nat",
        "model__dropout": 0.2,
        "training__steps": 6,
        "training__validate_every": 4,
        "training__log_every": 1,
        "training__checkpoint_every": 2,
        "training__valid_sentences": 4,
    }
    recipe = make_recipe(**settings | changes)
    run_recipe(recipe, tmp_path / "whole")
    with crashing_at(5):
        run_recipe(recipe, tmp_path / "broken")
    run_recipe(recipe, tmp_path / "broken")
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    assert log(tmp_path / "broken") == log(tmp_path / "whole")


def test_pairs_that_are_left_out_are_said_and_none_left_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = build_task(uneven_recipe(tmp_path, SHORT * 2 + LONG), CPU, Progress(1))
    number = int((task.train.target.lengths - 1 > task.train.source.lengths).sum())
    assert number > 40
    said = capsys.readouterr().out
    assert f"left out: {number} pairs whose target is longer than the canvas; raise model.upsample_ratio" in said
    with pytest.raises(UserError, match="no training pair is left: the target of each is longer than its canvas"):
        build_task(uneven_recipe(tmp_path, LONG), CPU, Progress(1))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__kind": "paralel"}, "model.kind: 'paralel' is not one of transformer, nat"),
        ({"model__kind": "nat", "model__length": "guess"}, "model: length: input should be"),
        ({"model__length": "ctc"}, "model.length: is for model.kind=nat, not transformer"),
        ({"objective__reveal": "none"}, "objective.reveal is for model.kind=nat, not transformer"),
        (
            {"model__kind": "nat", "model__length": "ctc", "objective__reveal": "uniform"},
            "objective.reveal: uniform is for model.length=classifier, not ctc",
        ),
        ({"search__iterations": 4}, "search: iterations is a setting of non-autoregressive models"),
        (
            {"model__kind": "nat", "search__temperature": 1.0},
            "search: temperature is a setting of autoregressive models",
        ),
        ({"model__kind": "nat", "search__beam": 5}, "search.beam 5 needs a model with length: ctc"),
        ({"model__kind": "nat", "model__upsample_ratio": 3}, "model.upsample_ratio: is for model.length=end or ctc"),
        (
            {"model__kind": "nat", "model__length": "ctc", "model__length_reach": 9},
            "model.length_reach: is for model.length=classifier, not ctc; leave it away",
        ),
        (
            {"model__kind": "nat", "objective__glancing_ratio": [0.4, 0.1]},
            "objective.glancing_ratio: is for objective.reveal=glancing, not uniform; leave it away",
        ),
        (
            {"model__kind": "nat", "model__length": "end", "objective__length_weight": 1.0},
            "objective.length_weight: is for model.length=classifier, not end; leave it away",
        ),
        (
            {"model__kind": "nat", "model__length": "end", "search__iterations": 3},
            "iterations 3 needs a model with length",
        ),
        (
            {"model__kind": "nat", "objective__r_drop": 1.0},
            "objective.r_drop is for model.kind=transformer, not parallel",
        ),
        ({"model__kind": "nat", "objective__glancing_ratio": [0.5, 1.5]}, "objective.glancing_ratio"),
        (
            {"model__kind": "nat", "search__lengths": 3, "search__rerank": "nowhere"},
            "search.rerank: nowhere: no such model folder",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_recipe_is_read(
    make_recipe: Callable[..., Recipe], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match=said.replace(".", r"\.")):
        make_recipe(**changes)
