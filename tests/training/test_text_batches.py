"""Packed batches of fixed shape: they have the same losses as other batches and share one compiled graph."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.ops.embedding import CUT_OFF
from regard.training.cuda_graph import tensors_of
from regard.training.objectives import teacher_forcing
from regard.training.objectives.simcut import SimCut
from regard.training.objectives.teacher_forcing import (
    TeacherForcing,
    TeacherForcingSettings,
    teacher_forcing_loss,
)
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import (
    ALIGNMENT,
    PackedShape,
    TextBatch,
    collate,
    concatenate_bytes,
    split_bytes,
)
from tests.conftest import small_recipe
from tests.training.test_run_folder import crashing_at, weights

Build = Callable[..., TranslationTask]


@pytest.fixture
def eager_backend() -> Iterator[None]:
    """torch.compile without code generation, which would take most of a minute."""
    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
        yield
    torch.compiler.reset()


def gradients(task: TranslationTask, batch: TextBatch) -> list[torch.Tensor]:
    loss = teacher_forcing_loss(task.model, batch, 0.1)
    return [loss, *torch.autograd.grad(loss, list(task.model.parameters()))]


@given(lengths=st.lists(st.integers(0, 9), max_size=12), padding=st.integers(0, 40))
def test_layout_has_sentences_then_padding_then_empty_sequences(lengths: list[int], padding: int) -> None:
    shape = PackedShape(sum(lengths) + padding + 1, len(lengths) + 2, 9)
    layout = shape.layout(np.array(lengths, np.int64))
    found = layout.lengths.tolist()
    assert found[: len(lengths)] == lengths
    assert len(found) == shape.sequences
    assert sum(found) == layout.size == shape.tokens
    assert max(found) <= layout.longest == 9
    assert layout.offsets.dtype == torch.int32


def test_batch_of_fixed_shape_has_the_same_loss_and_gradients(build: Build) -> None:
    task = build(model__dropout=0.0)
    task.model.double()
    rows = np.array([3, 100, 200, 7, 400, 99])
    filled = collate(task.train_tokens, rows, True, 0, PackedShape.of(task.train_tokens, 200))
    assert filled.fixed_shape
    assert filled.source.shape == filled.inputs.shape == (1, 200)
    assert filled.count < len(filled.labels) == 200
    padded = collate(task.train_tokens, rows, False, 0)
    assert filled.count == padded.count
    for mine, theirs in zip(gradients(task, filled), gradients(task, padded), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {"r_drop": 2.0},
        {"simcut": {"p": 0.2}},
        {"simcut": {"p": 0.2}, "guided_attention": {"steps": 10, "prior": "alignments"}},
        {"scheduled_sampling": {"half_life": 1, "decay": "linear", "floor": 0.0}},  # replaces all inputs at step 5
        {"guided_attention": {"steps": 10, "width": 0.3}},
        {"guided_attention": {"steps": 10, "prior": "alignments", "weight": 2.0}},
    ],
    ids=["R-Drop", "SimCut", "SimCut and alignments", "scheduled sampling", "diagonal", "alignments"],
)
def test_objectives_ignore_the_padding_of_a_batch_of_fixed_shape(
    settings: dict[str, Any], build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off_some(self: SimCut, tokens: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return tokens.masked_fill((tokens % 5 == 0) & ~kept, CUT_OFF)

    monkeypatch.setattr(SimCut, "_cut_off", cut_off_some)
    alignments = tmp_path / "alignments"
    alignments.write_text("0-0 1-0\n\n" * 250)
    task = build(model__dropout=0.0, data__alignments=str(alignments))
    task.model.double()
    rows = np.array([3, 100, 200, 7, 400, 99])
    shape = PackedShape.of(task.train_tokens, 200)
    filled, padded = collate(task.train_tokens, rows, True, 0, shape), collate(task.train_tokens, rows, False, 0)
    assert filled.links is not None and padded.links is not None
    assert len(filled.links) == shape.links > len(padded.links)
    objective = TeacherForcing(TeacherForcingSettings.parse(settings, "objective"), 0.1)
    objective.begin_step(5)
    losses = [objective.loss(task.model, batch, 5) for batch in (filled, padded)]
    for name, value in losses[0].logged.items():
        torch.testing.assert_close(value, losses[1].logged[name])
    found = [torch.autograd.grad(loss.total, list(task.model.parameters()), allow_unused=True) for loss in losses]
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_divergence_of_padding_is_not_added(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    task = build()
    batch = collate(task.train_tokens, np.array([3, 100]), True, 0, PackedShape.of(task.train_tokens, 200))
    passes = torch.randn(2, 200, task.model.config.width)
    monkeypatch.setattr(teacher_forcing, "decoder_outputs", lambda *_: passes.flatten(0, 1))
    loss = TeacherForcing(TeacherForcingSettings(r_drop=1.0), 0.0).loss(task.model, batch, 1)
    p, q = task.model.logits(passes[:, : batch.count]).log_softmax(-1)
    expected = ((p.exp() - q.exp()) * (p - q)).sum() / 2
    torch.testing.assert_close(loss.logged["divergence"], expected.detach())


def test_compiled_batches_have_one_shape_and_one_graph(build: Build, eager_backend: None) -> None:
    task = build(training__compile=True, batch__layout="packed", batch__tokens=150, model__dropout=0.0)
    batches = task.batches(DataPosition(), DataShard())
    batches_and_largest = [task.largest_batch(), *(next(batches).item for _ in range(4))]
    torch._dynamo.utils.counters.clear()
    for batch in batches_and_largest:
        assert {name: x.shape for name, x in vars(batch).items() if isinstance(x, torch.Tensor)} == {
            "source": (1, 150), "inputs": (1, 150), "labels": (150,)
        }  # fmt: skip
        expected = teacher_forcing_loss(task.model, batch, task.recipe.optim.label_smoothing)
        assert task.loss(batch, 1).total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert len({batch.count for batch in batches_and_largest}) > 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_halves_of_a_batch_of_fixed_shape_have_no_padding(build: Build, eager_backend: None) -> None:
    task = build(training__compile=True, batch__layout="packed", batch__tokens=150)
    whole = next(task.batches(DataPosition(), DataShard())).item
    halves = task.split(whole)
    assert halves is not None
    assert sum(half.count for half in halves) == whole.count
    assert all(half.inputs.numel() == half.count for half in halves)


def test_resumed_compiled_run_has_bit_identical_weights(toy: Path, tmp_path: Path, eager_backend: None) -> None:
    recipe = small_recipe(
        toy / "train.en",
        toy / "train.zh",
        training__compile=True,
        optim__accumulate=2,
        batch__tokens=150,
        training__steps=4,
        training__checkpoint_every=2,
        training__log_every=1,
        training__validate_every=4,
        training__valid_sentences=0,
        model__dropout=0.2,
        model__attention_dropout=0.1,
    )
    run_recipe(recipe, tmp_path / "uninterrupted")
    with crashing_at(3):
        run_recipe(recipe, tmp_path / "resumed")
    run_recipe(recipe, tmp_path / "resumed")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "uninterrupted")
    assert "layout: packed" in (tmp_path / "uninterrupted" / "recipe.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch__layout": "padded"}, "training.compile needs batches of fixed shape; set batch.layout"),
        ({"objective__r_drop": 1.0}, "training.compile supports plain teacher forcing only; set training.cuda_graph"),
        ({"objective__scheduled_sampling__half_life": 5}, "training.compile supports plain teacher forcing only"),
        ({"objective__guided_attention__steps": 5}, "training.compile supports plain teacher forcing only"),
        ({"training__sharding": "fsdp"}, "training: compile needs the complete model in every process"),
        ({"model__attention": {"kind": "local", "window": 4}}, "training.compile: needs full attention, not local"),
        ({"model__kind": "nat"}, "training.compile: supports autoregressive models only"),
    ],
)
def test_recipe_that_cannot_be_compiled_is_rejected(
    changes: dict[str, object], message: str, make_recipe: Callable[..., Recipe]
) -> None:
    with pytest.raises(UserError, match=message):
        make_recipe(training__compile=True, **changes)


# Moving to a GPU


@given(
    shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=5),
    dtypes=st.lists(st.sampled_from([torch.int64, torch.int32, torch.float32, torch.bool]), min_size=5, max_size=5),
)
def test_concatenated_tensors_can_be_split(shapes: list[tuple[int, int]], dtypes: list[torch.dtype]) -> None:
    tensors = [torch.arange(a * b).view(a, b).to(dtype) for (a, b), dtype in zip(shapes, dtypes, strict=False)]
    buffer = concatenate_bytes(tensors)
    found = split_bytes(buffer, tensors)
    for mine, theirs in zip(found, tensors, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
        assert (mine.data_ptr() - buffer.data_ptr()) % ALIGNMENT == 0 or not mine.numel()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_batch_is_moved_to_a_gpu_in_one_copy(build: Build, layout: str) -> None:
    task = build(batch__layout=layout, batch__tokens=150)
    batch = next(iter(task.batches(DataPosition(), DataShard()))).item
    moved = batch.to(torch.device("cuda"))
    assert batch.to(torch.device("cpu")) is batch
    assert all(tensor.is_cuda for tensor in tensors_of(moved))
    assert all(torch.equal(a.cpu(), b) for a, b in zip(tensors_of(moved), tensors_of(batch), strict=True))
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors_of(moved)}) == 1
