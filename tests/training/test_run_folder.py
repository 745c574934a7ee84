"""Runs that are resumed, and what is rejected on resuming."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.training.checkpoint import save_checkpoint
from regard.training.loop import TrainingLoop
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.run import default_threads, run_recipe
from regard.training.run_folder import check_settings, rewind
from regard.training.task import DivergedError, Validation
from regard.training.tasks.registry import load_recipe
from regard.training.tasks.translation.task import TranslationTask
from tests.conftest import small_recipe

MakeRun = Callable[..., Recipe]
VALIDATE_EVERY = "training__validate_every"


class Crash(BaseException):
    """Ends a run as abruptly as possible within the test process."""


@contextmanager
def crashing_at(step: int) -> Iterator[None]:
    """Crash when this step is logged: it has been taken, but not saved."""

    def crash(self: Progress, now: int, report: dict[str, float]) -> None:
        if now == step:
            raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Progress, "step", crash)
        yield


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(out: Path, name: str = "last") -> bytes:
    return (out / name / "model.safetensors").read_bytes()


def log(out: Path) -> list[tuple[int, Any]]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = (entry for entry in entries if "phases" not in entry)
    return [(entry["step"], entry.get("loss", entry.get("validation"))) for entry in kept]


@pytest.fixture(scope="module")
def make(toy: Path) -> MakeRun:
    """Builds a recipe of ten steps with dropout, accumulation and a checkpoint every second step."""
    settings = {
        "model__dropout": 0.2,
        "optim__accumulate": 2,
        "optim__schedule": "constant",
        "training__steps": 10,
        VALIDATE_EVERY: 4,
        "training__log_every": 1,
        "training__checkpoint_every": 2,
        "training__valid_sentences": 3,
    }
    return lambda **changes: small_recipe(toy / "train.en", toy / "train.zh", **settings | changes)


@pytest.fixture(scope="module")
def uninterrupted(make: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not interrupted. Tests must not change it."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    run_recipe(make(), out)
    return out


@pytest.fixture(scope="module")
def crashed_template(make: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("crashed") / "run"
    with crashing_at(7):
        run_recipe(make(), out)
    return out


@pytest.fixture
def crashed(crashed_template: Path, tmp_path: Path) -> Path:
    """A copy of the run that crashed in step 7, with checkpoints of steps 4 and 6."""
    return shutil.copytree(crashed_template, tmp_path / "run")


def test_run_resumes_from_the_last_checkpoint(
    make: MakeRun, uninterrupted: Path, crashed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_recipe(make(), crashed)
    output = capsys.readouterr().out
    assert "resuming from step 6\n" in output
    assert f"\nCPU threads: {torch.get_num_threads()} of " in output
    assert weights(crashed) == weights(uninterrupted)
    assert weights(crashed, "best") == weights(uninterrupted, "best")
    assert log(crashed) == log(uninterrupted)
    assert result.steps == 10
    assert result.best_step == json.loads((uninterrupted / "best" / "scores.json").read_text())["step"]


@pytest.mark.parametrize("objective", [{"r_drop": 2.0}, {"simcut": {"p": 0.2}}], ids=str)
def test_run_with_two_passes_resumes_to_the_same_weights(
    make: MakeRun, objective: dict[str, Any], tmp_path: Path
) -> None:
    recipe = make(objective=objective, training__cuda_graph=True, batch__layout="packed", training__valid_sentences=0)
    with crashing_at(7):
        run_recipe(recipe, tmp_path / "crashed")
    for name in ("crashed", "uninterrupted"):
        run_recipe(recipe, tmp_path / name)
    assert weights(tmp_path / "crashed") == weights(tmp_path / "uninterrupted")
    assert log(tmp_path / "crashed") == log(tmp_path / "uninterrupted")


def test_later_lines_are_removed_from_the_log(make: MakeRun, uninterrupted: Path, crashed: Path) -> None:
    with (crashed / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 7, "loss": 9.9}\n{"step": 8, "lo')  # as a killed process may leave it
    run_recipe(make(), crashed)
    assert log(crashed) == log(uninterrupted)


def test_run_with_bpe_dropout_resumes_to_the_same_weights(make: MakeRun, tmp_path: Path) -> None:
    recipe = make(tokenizer__dropout=0.2, training__workers=1)
    run_recipe(recipe, tmp_path / "uninterrupted")
    with crashing_at(7):
        run_recipe(recipe, tmp_path / "run")
    run_recipe(recipe, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "uninterrupted")


def test_damaged_checkpoint_is_reported_and_the_previous_one_used(
    make: MakeRun, uninterrupted: Path, crashed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (crashed / "checkpoints" / "step-00000006" / "state.safetensors").write_bytes(b"")
    run_recipe(make(), crashed)
    output = capsys.readouterr().out
    assert "checkpoints/step-00000006: damaged (state.safetensors" in output
    assert "resuming from step 4\n" in output
    assert weights(crashed) == weights(uninterrupted)


def test_run_without_valid_checkpoint_is_rejected_and_unchanged(make: MakeRun, crashed: Path) -> None:
    for checkpoint in (crashed / "checkpoints").glob("step-*"):
        (checkpoint / "manifest.json").unlink()
    before = read_files(crashed)
    with pytest.raises(UserError, match="all 2 checkpoints are damaged"):
        run_recipe(make(), crashed)
    assert read_files(crashed) == before


def test_run_without_checkpoint_starts_again(
    make: MakeRun, uninterrupted: Path, crashed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(crashed / "checkpoints")
    run_recipe(make(), crashed)
    assert "starting again, because no checkpoint was saved\n" in capsys.readouterr().out
    assert weights(crashed) == weights(uninterrupted)
    assert log(crashed) == log(uninterrupted)


@pytest.mark.parametrize("fails_at", [4, 10])
def test_failed_validation_is_repeated_after_resuming(
    make: MakeRun, uninterrupted: Path, tmp_path: Path, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(training__checkpoint_every=100, training__keep_checkpoints=1)
    calls: list[int] = []
    validate = TranslationTask.validate

    def fail(self: TranslationTask, model: Any) -> Validation:
        calls.append(len(calls))
        if calls[-1] == (0 if fails_at == 4 else 2):
            raise UserError("the scorer has failed")
        return validate(self, model)

    monkeypatch.setattr(TranslationTask, "validate", fail)
    with pytest.raises(UserError, match="the scorer has failed"):
        run_recipe(recipe, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == [f"step-{fails_at:08}"]
    run_recipe(recipe, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)
    assert weights(tmp_path / "run", "best") == weights(uninterrupted, "best")
    assert log(tmp_path / "run") == log(uninterrupted)


def test_diverged_run_without_checkpoint_leaves_no_files(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: TranslationTask, model: Any) -> Validation:
        raise DivergedError(math.nan)

    monkeypatch.setattr(TranslationTask, "validate", fail)
    with pytest.raises(UserError, match="the validation loss is nan"):
        run_recipe(make(training__checkpoint_every=100), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_finished_run_is_reported_and_unchanged(
    make: MakeRun, uninterrupted: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_files(uninterrupted)
    monkeypatch.setattr(TranslationTask, "open", None)  # the data is not even read
    result = run_recipe(make(), uninterrupted)
    assert "already finished, at step 10" in capsys.readouterr().out
    assert (result.steps, result.best_step > 0) == (10, True)
    assert read_files(uninterrupted) == before


def test_tokenizer_is_not_trained_again(
    make: MakeRun, uninterrupted: Path, crashed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.training.tasks.translation.data.train_tokenizers", None)
    run_recipe(make(), crashed)
    assert weights(crashed) == weights(uninterrupted)


@pytest.mark.parametrize(
    "average", [{"training__average": 0.6}, {"training__ema": 0.9}], ids=["mean from step 5", "ema"]
)
def test_averaged_weights_are_resumed(average: dict[str, float], make: MakeRun, tmp_path: Path) -> None:
    recipe = make(**average)
    run_recipe(recipe, tmp_path / "uninterrupted")
    with crashing_at(9):
        run_recipe(recipe, tmp_path / "run")
    run_recipe(recipe, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "uninterrupted")


# Patience


@pytest.fixture
def _no_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first validation of every run the best."""
    monkeypatch.setattr(TranslationTask, "validate", lambda task, model: Validation({"loss": 1.0, "score": 0.0}))


@pytest.mark.usefixtures("_no_improvement")
def test_early_stopped_run_is_finished_until_patience_is_raised(
    make: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patient, impatient = make(**{VALIDATE_EVERY: 1}), make(**{VALIDATE_EVERY: 1}, training__patience=3)
    run_recipe(patient, tmp_path / "uninterrupted")
    assert run_recipe(impatient, tmp_path / "run").stopped_early
    before = read_files(tmp_path / "run")
    result = run_recipe(impatient, tmp_path / "run")
    assert "already finished, at step 4; raise training.patience to continue it" in capsys.readouterr().out
    assert (result.steps, result.best_step, result.stopped_early) == (4, 1, True)
    assert read_files(tmp_path / "run") == before
    assert run_recipe(make(**{VALIDATE_EVERY: 1}, training__patience=5), tmp_path / "run").steps == 6
    result = run_recipe(patient, tmp_path / "run")
    assert (result.steps, result.stopped_early) == (10, False)
    assert weights(tmp_path / "run") == weights(tmp_path / "uninterrupted")
    assert log(tmp_path / "run") == log(tmp_path / "uninterrupted")


@pytest.mark.usefixtures("_no_improvement")
def test_number_of_stale_validations_is_resumed(make: MakeRun, tmp_path: Path) -> None:
    impatient = make(**{VALIDATE_EVERY: 1}, training__patience=5, training__checkpoint_every=1)
    with crashing_at(5):
        run_recipe(impatient, tmp_path / "run")
    assert run_recipe(impatient, tmp_path / "run").steps == 6


# Changed settings


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("optim__lr", 0.02, "optim.lr=0.01, not 0.02"),
        ("optim__schedule", "noam", "optim.schedule=constant, not noam"),
        ("optim__accumulate", 3, "optim.accumulate=2, not 3"),
        ("training__seed", 2, "training.seed=1, not 2"),
        ("model__dropout", 0.1, "model.dropout=0.2, not 0.1"),
        ("model__preset", "small", "model.norm="),
        ("batch__layout", "packed", "batch.layout=padded, not packed"),
        ("tokenizer__size", 341, "tokenizer.size=340, not 341"),
        ("data__valid_source", "x.en", "data.valid_source=null, not a path"),
        ("data__languages", ["en", "de"], 'data.languages=["en", "zh"], not ["en", "de"]'),
        ("search__beam", 2, "search.beam=1, not 2"),
        ("training__monitor", "loss", "training.monitor=auto, not loss"),
        ("training__ema", 0.9, "training.ema=0.0, not 0.9"),
        ("objective__r_drop", 1.0, "objective.r_drop=0.0, not 1.0"),
        ("objective__scheduled_sampling", {"half_life": 9}, "objective.scheduled_sampling=null, not {"),
    ],
)
def test_changed_setting_is_rejected_with_both_values(
    key: str, value: object, message: str, make: MakeRun, crashed: Path
) -> None:
    before = read_files(crashed)
    with pytest.raises(UserError) as error:
        run_recipe(make(**{key: value}), crashed)
    assert message in str(error.value)
    assert read_files(crashed) == before


def test_intervals_and_device_may_change(make: MakeRun, uninterrupted: Path, crashed: Path) -> None:
    changes = {
        VALIDATE_EVERY: 3,
        "training__log_every": 2,
        "training__checkpoint_every": 3,
        "training__keep_checkpoints": 1,
    }
    recipe = make(**changes, training__device="cpu" if torch.cuda.is_available() else "auto")
    run_recipe(recipe, crashed)
    assert weights(crashed) == weights(uninterrupted)
    assert [path.name for path in (crashed / "checkpoints").glob("step-*")] == ["step-00000010"]
    chosen = {"threads": torch.get_num_threads(), "cuda_graph": False, "residual_dtype": "float32"}
    assert load_recipe(crashed / "recipe.yaml").training == recipe.training.changed(**chosen)


def test_explicit_default_is_not_a_change(make: MakeRun, uninterrupted: Path, crashed: Path) -> None:
    run_recipe(make(batch__layout="padded", model__norm=make().model_settings().norm), crashed)
    assert weights(crashed) == weights(uninterrupted)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_number_of_steps_may_change_if_past_steps_do_not_depend_on_it(
    ema: float, make: MakeRun, tmp_path: Path
) -> None:
    run_recipe(make(training__ema=ema), tmp_path / "uninterrupted")
    run_recipe(make(training__ema=ema, training__steps=6), tmp_path / "run")
    run_recipe(make(training__ema=ema), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "uninterrupted")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim__schedule": "cosine"}, "from 6 to 10, because the cosine schedule"),
        ({"training__average": 0.5}, "from 6 to 10 at step 6, because the first averaged step"),
    ],
)
def test_number_of_steps_must_not_change_otherwise(
    changes: dict[str, object], message: str, make: MakeRun, tmp_path: Path
) -> None:
    run_recipe(make(training__steps=6, **changes), tmp_path / "run")
    before = read_files(tmp_path / "run")
    with pytest.raises(UserError, match=message):
        run_recipe(make(**changes), tmp_path / "run")
    assert read_files(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("steps", "step", "allowed"),
    [(12, 5, True), (12, 6, False), (8, 4, True), (8, 5, False)],  # averages start at step 6 of 10, 7 of 12, 5 of 8
)
def test_number_of_steps_may_change_until_weights_are_averaged(
    steps: int, step: int, allowed: bool, make: MakeRun, tmp_path: Path
) -> None:
    old, new = (make(training__average=0.5, training__steps=number) for number in (10, steps))
    refusal = f"cannot change from 10 to {steps} at step {step}"
    with nullcontext() if allowed else pytest.raises(UserError, match=refusal):
        check_settings(old, new, step, tmp_path)


# Threads


@pytest.fixture
def _default_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_default_threads")
@pytest.mark.parametrize(
    ("environment", "of_torch", "cpus", "threads"),
    [
        ({}, 64, 2, 2),  # a container with two CPUs
        ({}, 8, 16, 8),  # torch counts cores, not hyperthreads
        ({"LOCAL_WORLD_SIZE": "4"}, 64, 16, 4),
        ({"LOCAL_WORLD_SIZE": "4"}, 64, 2, 1),
        ({"OMP_NUM_THREADS": "6"}, 6, 2, 6),  # given explicitly
        ({"MKL_NUM_THREADS": "6"}, 6, 2, 6),
    ],
)
def test_default_number_of_threads(
    environment: dict[str, str], of_torch: int, cpus: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("regard.training.run.available_cpus", lambda: cpus)
    torch.set_num_threads(of_torch)
    assert default_threads() == threads


@pytest.mark.usefixtures("_default_threads")
def test_resumed_run_keeps_its_number_of_threads_unless_another_one_is_given(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used: list[int] = []
    take_step = TrainingLoop.take_step

    def record(self: TrainingLoop[Any], batches: Any) -> Any:
        used.append(torch.get_num_threads())
        return take_step(self, batches)

    def train(default: int, **changes: object) -> tuple[list[int], int | None]:
        torch.set_num_threads(1)
        monkeypatch.setattr("regard.training.run.default_threads", lambda: default)
        run_recipe(make(**changes), tmp_path / "run")
        assert torch.get_num_threads() == 1, "the setting of the process is restored"
        steps, used[:] = list(used), []
        return steps, load_recipe(tmp_path / "run" / "recipe.yaml").training.threads

    monkeypatch.setattr(TrainingLoop, "take_step", record)
    assert train(2, training__steps=2) == ([2, 2], 2)
    assert "on 2 CPU threads\n" in capsys.readouterr().out
    assert train(3, training__steps=4) == ([2, 2], 2)
    assert train(3, training__steps=5, training__threads=1) == ([1], 1)


# Changed data


@pytest.fixture
def files(toy: Path, tmp_path: Path) -> dict[str, object]:
    """A copy of the corpus that the test may change."""
    (tmp_path / "data").mkdir()
    for name in ("train.en", "train.zh"):
        shutil.copy(toy / name, tmp_path / "data" / name)
    return {"data__source": str(tmp_path / "data/train.en"), "data__target": str(tmp_path / "data/train.zh")}


def test_changed_file_is_rejected(make: MakeRun, files: dict[str, object], tmp_path: Path) -> None:
    with crashing_at(3):
        run_recipe(make(**files), tmp_path / "run")
    path = Path(str(files["data__target"]))
    path.write_text(path.read_text(encoding="utf-8").replace("我", "你"), encoding="utf-8")
    before = read_files(tmp_path / "run")
    with pytest.raises(UserError, match=r"train\.zh: has changed since the run in .*run was created"):
        run_recipe(make(**files), tmp_path / "run")
    assert read_files(tmp_path / "run") == before


def test_files_may_move(make: MakeRun, files: dict[str, object], uninterrupted: Path, tmp_path: Path) -> None:
    with crashing_at(3):
        run_recipe(make(**files), tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    moved = {key: str(path).replace("/data/", "/elsewhere/") for key, path in files.items()}
    run_recipe(make(**moved), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)


def test_different_tokens_of_unchanged_files_are_rejected(make: MakeRun, crashed: Path) -> None:
    path = crashed / "data" / "fingerprints.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"tokens": "0" * 64}))
    with pytest.raises(UserError, match="other tokens than when the run was created"):
        run_recipe(make(), crashed)


def test_damaged_fingerprints_are_rejected(make: MakeRun, crashed: Path) -> None:
    (crashed / "data" / "fingerprints.json").write_text("{")
    with pytest.raises(UserError, match=r"fingerprints\.json: damaged"):
        run_recipe(make(), crashed)


# Other folders


@pytest.mark.parametrize(("name", "missing"), [("data", r"data/fingerprints\.json"), ("recipe.yaml", r"recipe\.yaml")])
def test_run_without_data_or_recipe_is_rejected_and_unchanged(
    name: str, missing: str, make: MakeRun, crashed: Path
) -> None:
    (crashed / name).rename(crashed.with_name(name))
    before = read_files(crashed)
    with pytest.raises(
        UserError, match=rf"run: has checkpoints, but {missing} is missing, so the run cannot be resumed"
    ):
        run_recipe(make(), crashed)
    assert read_files(crashed) == before


def test_missing_store_is_reported(make: MakeRun, toy: Path, tmp_path: Path) -> None:
    recipe = make(data__store=str(tmp_path / "store"))
    with crashing_at(3):
        run_recipe(recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(UserError, match=r"store/valid\.jsonl: is missing"):
        run_recipe(recipe, tmp_path / "run")


@pytest.mark.parametrize("step", [1, 5])  # before the first checkpoint, and after it
@pytest.mark.parametrize("depth", [0, 1])  # the run folder, or the folder that contains it
def test_deleted_run_folder_is_reported(step: int, depth: int, make: MakeRun, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "run"

    def delete(self: Progress, now: int, report: dict[str, float]) -> None:
        if now == step:
            shutil.rmtree((out, out.parent)[depth])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "step", delete)
        with pytest.raises(UserError, match=r"runs/run: was deleted during the run, which ends; start it again"):
            run_recipe(make(), out)
    assert not out.exists()
    assert run_recipe(make(training__steps=2), out).steps == 2


def test_folder_named_data_is_not_mistaken_for_a_run(make: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "out" / "data").mkdir(parents=True)
    with pytest.raises(UserError, match="already exists"):
        run_recipe(make(), tmp_path / "out")


def test_full_disk_ends_the_run_and_keeps_the_previous_checkpoint(
    make: MakeRun, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(folder: Path, step: int, *rest: Any) -> None:
        if step == 8:
            monkeypatch.setattr("regard.training.checkpoint.fsync", full)
        save_checkpoint(folder, step, *rest)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.training.saving.save_checkpoint", fill)
    with pytest.raises(UserError, match=r"step-00000008: could not be written \(No space left on device\)") as error:
        run_recipe(make(), tmp_path / "run")
    assert str(error.value).endswith("the same command resumes from step-00000006")
    monkeypatch.undo()
    run_recipe(make(), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(uninterrupted)


@pytest.mark.parametrize(("schedule", "can_continue"), [("constant", True), ("cosine", False)])
def test_finished_run_suggests_more_steps_only_if_possible(
    schedule: str,
    can_continue: bool,
    make_recipe: Callable[..., Recipe],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = make_recipe(training__steps=2, optim__schedule=schedule, training__valid_sentences=0)
    run_recipe(recipe, tmp_path / "run")
    run_recipe(recipe, tmp_path / "run")
    assert ("raise training.steps to continue it" in capsys.readouterr().out) == can_continue


def test_other_unicode_line_separators_do_not_split_log_lines(tmp_path: Path) -> None:
    text = "a\u2028b\u0085c"
    entries = [{"step": 1}, {"step": 2, "samples": [text]}, {"step": 3}]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    (tmp_path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"step": 1', encoding="utf-8")
    rewind(tmp_path, 2)
    kept = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert kept == "".join(f"{line}\n" for line in lines[:2])


def test_finished_run_is_reported_if_fewer_steps_are_requested(
    make_recipe: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"training__validate_every": 4, "training__valid_sentences": 0, "optim__schedule": "constant"}
    run_recipe(make_recipe(training__steps=4, **short), tmp_path / "run")
    assert run_recipe(make_recipe(training__steps=2, **short), tmp_path / "run").steps == 4
    assert "already finished" in capsys.readouterr().out
