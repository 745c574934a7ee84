"""Files that are written beside training equal those that are written in between, and errors are reported."""

import json
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import UserError
from regard.models.folder import save_model
from regard.models.transformer import Transformer, TransformerConfig
from regard.pipelines.translator import Translator
from regard.training.checkpoint import load_checkpoint, save_checkpoint
from regard.training.loop import TrainingLoop
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.saving import Writer, copy_model_to_host, copy_to_host
from tests.training.test_loop import Line, log, points, run, saved
from tools.kill_and_resume import results


@pytest.fixture
def in_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files in the background, as on a GPU."""
    monkeypatch.setattr(TrainingLoop, "background_devices", ("cpu",))


@pytest.fixture
def writer() -> Any:
    writer = Writer(background=True)
    yield writer
    writer.close()


def test_writes_run_in_order_and_only_two_are_pending(writer: Writer) -> None:
    written: list[int] = []
    gates = [threading.Event() for _ in range(3)]
    for number in range(2):
        writer.submit(lambda number=number: (gates[number].wait(), written.append(number)))  # type: ignore[misc]
    third = threading.Thread(target=lambda: writer.submit(lambda: (gates[2].wait(), written.append(2))))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    assert written == []
    gates[0].set()
    third.join(60)
    assert not third.is_alive()
    for gate in gates:
        gate.set()
    writer.wait()
    assert written == [0, 1, 2]


def test_writes_after_a_failed_one_are_not_run(writer: Writer) -> None:
    written: list[int] = []
    gate = threading.Event()

    def fail() -> None:
        gate.wait()
        raise UserError("disk full")

    writer.submit(fail)
    writer.submit(lambda: written.append(1))
    gate.set()
    with pytest.raises(UserError, match="disk full"):
        writer.wait()
    writer.close()
    assert written == []


def test_writes_run_at_once_without_a_thread() -> None:
    thread: list[str] = []
    writer = Writer(background=False)
    writer.submit(lambda: thread.append(threading.current_thread().name))
    writer.check()
    writer.wait()
    writer.close()
    assert thread == [threading.current_thread().name]


def test_copies_do_not_change_with_the_originals() -> None:
    tensors = [torch.ones(3), torch.arange(6).view(2, 3).T]
    copies, wait = copy_to_host(tensors)
    wait()
    for tensor in tensors:
        tensor.zero_()
    assert copies[0].tolist() == [1, 1, 1]
    assert copies[1].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_copied_model_is_saved_like_the_original(tmp_path: Path) -> None:
    model = Transformer(TransformerConfig.tiny(vocab=20, tie="all"))
    copied = copy_model_to_host(model)
    assert copied is not None
    copy, wait = copied
    wait()
    folders = tmp_path / "original", tmp_path / "copy"
    for folder, one in zip(folders, (model, copy), strict=True):
        folder.mkdir()
        save_model(folder, one, {})
    original, other = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert original == other
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in copy.parameters()}


def test_model_with_a_lock_is_not_copied() -> None:
    model = nn.Linear(2, 2)
    model.lock = threading.Lock()  # type: ignore[assignment]
    assert copy_model_to_host(model) is None


def test_model_that_cannot_be_copied_is_saved(in_background: None, tmp_path: Path) -> None:
    task = Line(points(4))
    task.model.lock = threading.Lock()  # type: ignore[assignment]
    run(task, tmp_path / "run")
    assert saved(tmp_path / "run" / "last") == task.model.weight.tolist()[0]


def test_run_that_writes_in_the_background_has_the_same_files(
    make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(
        training__steps=9, training__validate_every=4, training__checkpoint_every=2, training__average=0.6,
        training__valid_sentences=2, model__dropout=0.1, training__log_every=3,
    )  # fmt: skip
    run_recipe(recipe, tmp_path / "foreground")
    monkeypatch.setattr(TrainingLoop, "background_devices", ("cpu",))
    run_recipe(recipe, tmp_path / "background")
    assert results(tmp_path / "foreground") == results(tmp_path / "background")
    assert not list((tmp_path / "background").rglob(".*"))


def test_steps_continue_while_a_checkpoint_is_written(
    in_background: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, order = threading.Event(), []

    def save(folder: Path, step: int, *rest: Any) -> None:
        gate.wait(60)
        order.append(step)
        save_checkpoint(folder, step, *rest)

    class Gated(Line):
        def count(self, batch: Any) -> int:
            order.append("batch")
            if order.count("batch") > 12:
                gate.set()
            return super().count(batch)

    monkeypatch.setattr("regard.training.saving.save_checkpoint", save)
    run(Gated(points(4)), tmp_path / "run", steps=20, checkpoint_every=3, validate_every=20)
    assert order.index(3) > 12
    checkpoint = load_checkpoint(tmp_path / "run" / "checkpoints", print)
    assert checkpoint is not None and checkpoint.step == 20


def test_failed_write_ends_the_run_which_resumes_from_the_last_checkpoint(
    in_background: None, make_recipe: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(
        training__steps=12, training__validate_every=4, training__checkpoint_every=2, training__valid_sentences=0,
        training__log_every=1,
    )  # fmt: skip
    run_recipe(recipe, tmp_path / "uninterrupted")
    save, calls = Translator.save, count(1)

    def fill(translator: Translator, folder: Path) -> None:
        if next(calls) > 2:  # after the folders `last` and `best` of step 4
            raise OSError(5, "Input/output error")
        save(translator, folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "save", fill)
        with pytest.raises(UserError, match=r"run/last: could not be written \(Input/output error\)") as refused:
            run_recipe(recipe, tmp_path / "run")
    assert str(refused.value).endswith("the same command resumes from step-00000006")
    run_recipe(recipe, tmp_path / "run")
    assert results(tmp_path / "uninterrupted") == results(tmp_path / "run")


def test_phases_are_logged_and_cover_the_run(tmp_path: Path) -> None:
    outcome = run(Line(points(4)), tmp_path / "run")
    (entry,) = [entry for entry in log(tmp_path / "run") if "phases" in entry]
    assert entry["phases"].keys() == outcome.phases.keys() == {"start-up", "steps", "validation", "saving"}
    assert all(seconds >= 0 for seconds in outcome.phases.values())
    assert "seconds: start-up " in (tmp_path / "run" / "shown").read_text()


def test_phases_of_a_resumed_run_include_those_before(make_recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = make_recipe(
        training__steps=2, training__valid_sentences=0, training__validate_every=2, optim__schedule="constant"
    )
    run_recipe(recipe, tmp_path / "run")
    state = next((tmp_path / "run" / "checkpoints").glob("step-*/state.json"))
    before = json.loads(state.read_text())["phases"]
    longer = recipe.with_group("training", steps=4)
    after = run_recipe(longer, tmp_path / "run").phases
    assert all(after[name] >= before[name] for name in before)
