"""Rare errors of training: each is reported as it is, in one sentence where the user can help."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint.state_dict_saver as saver
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

from regard.errors import UserError
from regard.models.folder import save_model
from regard.models.vit import ViT, ViTConfig
from regard.training import memory
from regard.training.benchmark import TransformersCrossEntropy, use_transformers_model, validation_sentences
from regard.training.checkpoint import DamagedError, _verify, save_shards
from regard.training.distillation import Distillation, Provenance
from regard.training.loop import StepResult, SummedLosses, TrainingLoop
from regard.training.memory import build_model
from regard.training.metrics_log import _as_markdown
from regard.training.run import RunPreparation, _create_folder
from regard.training.run_folder import _logged_step
from regard.training.state import _load_weights
from regard.training.step_timing import StepTiming, _StepClock
from regard.training.tasks.classification.task import ClassificationTask
from regard.training.tasks.croco import CroCoTask
from regard.training.tasks.registry import load_recipe
from regard.training.tasks.simple_task import SimpleTask, load_model_of
from regard.training.tasks.translation.task import TranslationTask
from tests.conftest import SMALL

TINY = ViTConfig(image=8, patch=4, width=8, layers=1, heads=2, hidden=8, classes=2)


def bare(cls: Any, **attributes: Any) -> Any:
    """Return an object without calling its constructor; abstract methods are missing."""
    concrete = type(cls.__name__, (cls,), {})
    concrete.__abstractmethods__ = frozenset()
    made = object.__new__(concrete)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


# Memory


def fail(message: str) -> Any:
    def raise_error(*arguments: Any, **options: Any) -> None:
        raise RuntimeError(message)

    return raise_error


@pytest.mark.parametrize("error", [None, "DefaultCPUAllocator: can't allocate memory", "another error"])
def test_memory_of_optimizer_and_average_is_reserved(error: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    for state, average, copies in (({}, 0.5, 3), ({}, 0.0, 2), ({"step": 1}, 0.0, 0)):
        loop = SimpleNamespace(
            task=SimpleNamespace(model=model),
            state=SimpleNamespace(optimizer=SimpleNamespace(state=state), average=None),
            training=SimpleNamespace(average=average, ema=0.0),
        )
        reserve = TrainingLoop._reserve_memory.__get__(loop)
        if error is None:
            reserved = reserve()
            assert sum(tensor.numel() for tensor in reserved) == copies * 8
        elif copies:
            monkeypatch.setattr(torch, "empty_like", fail(error))
            with pytest.raises(UserError if "allocate" in error else RuntimeError) as raised:
                reserve()
            assert ("another error" in str(raised.value)) == (error == "another error")


def replayed(replay: Any, reported: list[Any], **others: Any) -> Any:
    graph = SimpleNamespace(try_replay=replay, disable=lambda: reported.append("disabled"))
    strategy = SimpleNamespace(fits=lambda batch: batch != "large", set_divisor=lambda units: None)
    model = SimpleNamespace(zero_grad=lambda set_to_none: reported.append("zeroed"))
    loop = SimpleNamespace(
        step_graph=graph,
        strategy=strategy,
        task=SimpleNamespace(count=len, model=model),
        reporter=SimpleNamespace(report_failed_capture=lambda batch, step: reported.append((batch, step))),
    )
    for name, value in others.items():
        setattr(loop, name, value)
    return loop, TrainingLoop._replayed_step.__get__(loop)


def test_a_step_runs_eagerly_if_its_capture_lacks_memory() -> None:
    reported: list[Any] = []
    _, step = replayed(fail("CUDA out of memory"), reported)
    assert step(["abc", "de"], 5, 7, "key") is None
    assert reported == ["zeroed", "disabled", ("abc", 7)]
    _, step = replayed(fail("illegal instruction"), reported)
    with pytest.raises(RuntimeError, match="illegal instruction"):
        step(["abc"], 5, 7, "key")
    _, step = replayed(lambda batches, key: None, reported)
    assert step(["abc"], 5, 7, "key") is None
    captured = StepResult(SummedLosses(torch.zeros(()), {}), torch.zeros(()), torch.ones((), dtype=torch.bool))
    _, step = replayed(lambda batches, key: captured, reported)
    assert step(["abc"], 5, 7, "key") is captured
    _, step = replayed(fail("not reached"), reported)
    assert step(["abc", "large"], 5, 7, "key") is None
    _, step = replayed(None, reported, step_graph=None)
    assert step(["abc"], 5, 7, "key") is None


def test_other_errors_of_a_model_are_not_treated_as_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(memory.MODELS, "vit", fail("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        build_model(TINY, torch.device("cpu"))


# Files


def test_checkpoints_of_another_format_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99, "files": {}}))
    (tmp_path / "state.json").write_text(json.dumps({"step": 4}))
    with pytest.raises(DamagedError, match=r"manifest\.json has format 99, expected 4"):
        _verify(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 4, "files": {}}))
    assert _verify(tmp_path) == {"step": 4}
    (tmp_path / "state.json").write_text(json.dumps({"step": "4"}))
    with pytest.raises(DamagedError, match=r"state\.json has no step"):
        _verify(tmp_path)


def test_errors_of_other_processes_while_saving_shards_are_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*arguments: Any, **options: Any) -> None:
        raise CheckpointException("failed", {2: (cause, None)})  # type: ignore[dict-item]

    monkeypatch.setattr(saver, "save", save)
    cause: Exception = ValueError("a bug")
    with pytest.raises(RuntimeError, match="process 2 could not save its shards"):
        save_shards(tmp_path, {}, None)
    cause = OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        save_shards(tmp_path, {}, None)


def test_inputs_that_cannot_be_recorded_are_reported(tmp_path: Path) -> None:
    provenance = Provenance(tmp_path / "missing" / "out.tsv", ["a"], (1, "sum"), Distillation(search={}))
    with pytest.raises(UserError, match=r"out\.tsv\.json: cannot be written \(No such file or directory\)"):
        provenance.begin(resumed=False)


def test_a_read_only_run_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _create_folder(tmp_path / "a" / "b") == [tmp_path / "a" / "b", tmp_path / "a"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"cannot be written to \(.* is read-only\)"):
        _create_folder(tmp_path / "c")


def test_other_processes_must_see_the_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not contain the run; all machines must share the run folder"):
        RunPreparation._open_after_main(bare(RunPreparation, out=tmp_path), load_recipe(Path("demo")), None)


def test_weights_of_another_model_do_not_fit() -> None:
    model = nn.Linear(2, 2)
    tensors = model.state_dict()
    for changed in (
        {"weight": tensors["weight"]},
        tensors | {"bias": torch.zeros(3)},
        tensors | {"other": torch.zeros(1)},
    ):
        with pytest.raises(UserError, match=r"^tensor (bias|other) of the checkpoint does not fit"):
            _load_weights(model, changed)


@pytest.mark.parametrize(
    ("line", "step"), [('{"step": 7}', 7), ('{"step": "x"}', None), ("{", None), ("[]", None), ('{"loss": 1}', None)]
)
def test_damaged_lines_of_the_log_are_later_than_every_step(line: str, step: int | None) -> None:
    assert _logged_step(line) == (float("inf") if step is None else step)


def test_events_and_samples_are_indented_blocks() -> None:
    assert list(_as_markdown("*stopped*")) == ["    *stopped*"]
    samples = [{"source": "a", "output": "b"}, {"source": "c"}]
    assert list(_as_markdown(samples)) == ["    source      a\n    output      b", "    source      c"]


# Measurements


def test_messages_of_timed_steps_are_notes() -> None:
    clock = _StepClock(StepTiming("tokens"), 3, 1, torch.device("cpu"), 0.0, 1)
    clock.print("captured")
    assert clock.timing.notes == ["captured"]
    before = clock.start_time
    clock.step(3, {"memory": 2.0, "tokens_per_second": 9.0})
    assert (clock.timing.steps, clock.peak) == (0, 2e6)
    assert 0 <= clock.warm_up_seconds <= time.perf_counter() - before


def test_only_runs_of_translators_have_validation_sentences(tmp_path: Path, image_run: Path) -> None:
    assert validation_sentences(tmp_path, 5) == []
    assert validation_sentences(image_run, 5) == []


def test_loss_of_image_models_of_transformers_is_their_cross_entropy() -> None:
    class Batch(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.images)

    batch: Any = Batch(images=torch.randn(3, 4), targets=torch.eye(4)[:3])
    loss = TransformersCrossEntropy().loss(lambda images: SimpleNamespace(logits=2 * images), batch, 1)  # type: ignore
    assert loss.count == 3
    assert float(loss.total) == pytest.approx(-float((2 * batch.images).log_softmax(-1).diagonal().sum()), rel=1e-5)


def test_models_without_a_counterpart_in_transformers_are_not_compared() -> None:
    with pytest.raises(UserError, match="transformers has no two-view model"):
        use_transformers_model(bare(CroCoTask))
    recipe = load_recipe(None, ["objective.r_drop=1"], SMALL | {"data.builtin": "en-zh"})
    with pytest.raises(UserError, match="only the default loss is supported; remove the settings of objective"):
        use_transformers_model(bare(TranslationTask, recipe=recipe))


# Advice


def test_advice_for_batches_that_do_not_fit() -> None:
    images = bare(ClassificationTask, preprocessing=SimpleNamespace(size=32))
    pairs = bare(CroCoTask, recipe=SimpleNamespace(data=SimpleNamespace(scenes=SimpleNamespace(size=(24, 32)))))
    examples = bare(SimpleTask)
    one, four = "x", "xxxx"
    assert [(task.describe(one), task.describe(four)) for task in (images, pairs, examples)] == [
        ("an image of 32×32 pixels", "4 images of 32×32 pixels"),
        ("a pair of 24×32 pixels", "4 pairs of 24×32 pixels"),
        ("1 example", "4 examples"),
    ]
    assert [(task.advise(one), task.advise(four)) for task in (images, pairs, examples)] == [
        ("data.size=16, or a smaller model", "batch.images=2"),
        ("a smaller data.scenes.size, or a smaller model", "batch.pairs=2"),
        ("a smaller model", "batch.size=2"),
    ]


def test_a_simple_task_saves_its_model_and_loads_only_models_it_can_train(tmp_path: Path) -> None:
    task = bare(SimpleTask)
    model = ViT(TINY)
    task.save(tmp_path, model)
    recipe = SimpleNamespace(init=SimpleNamespace(folder=tmp_path), kind="croco")
    folder, loaded = load_model_of(SimpleNamespace(model_type=ViT), recipe)  # type: ignore[arg-type]
    assert folder == tmp_path
    assert torch.equal(loaded.head.weight, model.head.weight)
    with pytest.raises(UserError, match=f"^init.from: {tmp_path} contains a model of kind vit, not croco$"):
        load_model_of(CroCoTask, recipe)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["training.residual_dtype=bfloat16", "training.precision=float32"],
            "residual_dtype bfloat16 needs precision bfloat16 or auto",
        ),
        (["training.monitor=bleu", "training.valid_sentences=0"], "monitor bleu needs translations"),
        (
            ["objective.guided_attention={prior: alignments, steps: 3}"],
            "prior: alignments needs data.alignments",
        ),
    ],
)
def test_contradictory_settings_are_rejected(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(None, changes, SMALL | {"data.builtin": "en-zh"})


def test_saved_models_are_those_of_the_task(tmp_path: Path) -> None:
    save_model(tmp_path, ViT(TINY), {})
    recipe: Any = load_recipe(None, [], {"model.kind": "vit", "data.images": str(tmp_path), "data.size": 8})
    with pytest.raises(UserError, match=r"model\.kind: run has kind swin, not vit; set model\.kind"):
        recipe.complete({"kind": "swin"}, None, "run")
