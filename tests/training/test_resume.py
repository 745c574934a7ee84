import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.training.checkpoint import save_checkpoint
from regard.training.progress import Progress
from regard.training.recipe import Recipe
from regard.training.resume import rewind
from regard.training.run import run_recipe
from regard.training.task import DivergedError, Validation
from regard.training.tasks.translation.task import TranslationTask
from tests.conftest import small_recipe

MakeRun = Callable[..., Recipe]
LOOK = "training__validate_every"


class Crash(BaseException):
    """The end of a process, as far as a test can have it within its own."""


@contextmanager
def crashing_at(step: int) -> Iterator[None]:
    """Ends training when this step is logged: its work is done, nothing of it has been saved."""

    def crash(self: Progress, now: int, report: dict[str, float]) -> None:
        if now == step:
            raise Crash

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Progress, "step", crash)
        yield


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(out: Path, name: str = "last") -> bytes:
    return (out / name / "model.safetensors").read_bytes()


def log(out: Path) -> list[tuple[int, Any]]:
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(entry["step"], entry.get("loss", entry.get("validation"))) for entry in entries]


@pytest.fixture(scope="module")
def make(toy: Path) -> MakeRun:
    """Builds a recipe of ten steps with dropout, accumulation and a checkpoint every other step."""
    settings = {
        "model__dropout": 0.2,
        "optim__accumulate": 2,
        "optim__schedule": "constant",
        "training__steps": 10,
        LOOK: 4,
        "training__log_every": 1,
        "training__checkpoint_every": 2,
        "training__valid_sentences": 3,
    }
    return lambda **changes: small_recipe(toy / "train.en", toy / "train.zh", **settings | changes)


@pytest.fixture(scope="module")
def whole(make: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted. Not to be written to."""
    out = tmp_path_factory.mktemp("whole") / "run"
    run_recipe(make(), out)
    return out


@pytest.fixture(scope="module")
def first_half(make: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("broken") / "run"
    with crashing_at(7):
        run_recipe(make(), out)
    return out


@pytest.fixture
def broken(first_half: Path, tmp_path: Path) -> Path:
    """The same run, crashed in its seventh step, with the checkpoints of steps 4 and 6."""
    return shutil.copytree(first_half, tmp_path / "run")


def test_it_goes_on_where_it_stopped_and_says_so(
    make: MakeRun, whole: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run_recipe(make(), broken)
    assert "resuming from step 6\n" in capsys.readouterr().out
    assert weights(broken) == weights(whole)
    assert weights(broken, "best") == weights(whole, "best")
    assert log(broken) == log(whole)
    assert outcome.steps == 10
    assert outcome.best_step == json.loads((whole / "best" / "scores.json").read_text())["step"]


def test_lines_beyond_the_checkpoint_are_cut_off_the_log(make: MakeRun, whole: Path, broken: Path) -> None:
    with (broken / "log.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 7, "loss": 9.9}\n{"step": 8, "lo')  # as a killed process may leave it
    run_recipe(make(), broken)
    assert log(broken) == log(whole)


def test_a_damaged_checkpoint_costs_only_the_steps_since_the_one_before(
    make: MakeRun, whole: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (broken / "checkpoints" / "step-00000006" / "state.safetensors").write_bytes(b"")
    run_recipe(make(), broken)
    said = capsys.readouterr().out
    assert "checkpoints/step-00000006: damaged (state.safetensors" in said
    assert "resuming from step 4\n" in said
    assert weights(broken) == weights(whole)


def test_if_no_checkpoint_is_whole_nothing_is_touched(make: MakeRun, broken: Path) -> None:
    for place in (broken / "checkpoints").glob("step-*"):
        (place / "manifest.json").unlink()
    before = everything(broken)
    with pytest.raises(UserError, match="all 2 checkpoints are damaged"):
        run_recipe(make(), broken)
    assert everything(broken) == before


def test_before_its_first_checkpoint_a_run_begins_again(
    make: MakeRun, whole: Path, broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(broken / "checkpoints")
    run_recipe(make(), broken)
    assert "starting again, because no checkpoint was saved\n" in capsys.readouterr().out
    assert weights(broken) == weights(whole)
    assert log(broken) == log(whole)


@pytest.mark.parametrize("fails_at", [4, 10])
def test_a_validation_that_fails_costs_nothing_that_was_learned(
    make: MakeRun, whole: Path, tmp_path: Path, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make(training__checkpoint_every=100, training__keep_checkpoints=1)
    done: list[int] = []
    validate = TranslationTask.validate

    def fail(self: TranslationTask, model: Any) -> Validation:
        done.append(len(done))
        if done[-1] == (0 if fails_at == 4 else 2):
            raise UserError("the judge has gone")
        return validate(self, model)

    monkeypatch.setattr(TranslationTask, "validate", fail)
    with pytest.raises(UserError, match="the judge has gone"):
        run_recipe(recipe, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == [f"step-{fails_at:08}"]
    run_recipe(recipe, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(whole)
    assert weights(tmp_path / "run", "best") == weights(whole, "best")
    assert log(tmp_path / "run") == log(whole)


def test_a_model_that_diverged_before_anything_was_saved_leaves_nothing(
    make: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: TranslationTask, model: Any) -> Validation:
        raise DivergedError("the validation loss is nan")

    monkeypatch.setattr(TranslationTask, "validate", fail)
    with pytest.raises(UserError, match="the validation loss is nan"):
        run_recipe(make(training__checkpoint_every=100), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_done_says_so_and_does_nothing(
    make: MakeRun, whole: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(whole)
    monkeypatch.setattr(TranslationTask, "open", None)  # the data is not even read
    outcome = run_recipe(make(), whole)
    assert "already finished, at step 10" in capsys.readouterr().out
    assert (outcome.steps, outcome.best_step > 0) == (10, True)
    assert everything(whole) == before


def test_the_tokenizer_is_not_learned_again(
    make: MakeRun, whole: Path, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.training.tasks.translation.data.train_tokenizers", None)
    run_recipe(make(), broken)
    assert weights(broken) == weights(whole)


@pytest.mark.parametrize("how", [{"training__average": 0.6}, {"training__ema": 0.9}], ids=["mean from step 5", "ema"])
def test_the_average_goes_on(how: dict[str, float], make: MakeRun, tmp_path: Path) -> None:
    recipe = make(**how)
    run_recipe(recipe, tmp_path / "whole")
    with crashing_at(9):
        run_recipe(recipe, tmp_path / "run")
    run_recipe(recipe, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


# Patience


@pytest.fixture
def _nothing_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first validation of every run is its best."""
    monkeypatch.setattr(TranslationTask, "validate", lambda task, model: Validation({"loss": 1.0, "score": 0.0}))


@pytest.mark.usefixtures("_nothing_is_better")
def test_a_run_that_stopped_early_is_done_until_its_patience_is_raised(
    make: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patient, impatient = make(**{LOOK: 1}), make(**{LOOK: 1}, training__patience=3)
    run_recipe(patient, tmp_path / "whole")
    assert run_recipe(impatient, tmp_path / "run").stopped_early
    before = everything(tmp_path / "run")
    outcome = run_recipe(impatient, tmp_path / "run")
    assert "already finished, at step 4; raise training.patience to continue it" in capsys.readouterr().out
    assert (outcome.steps, outcome.best_step, outcome.stopped_early) == (4, 1, True)
    assert everything(tmp_path / "run") == before
    assert run_recipe(make(**{LOOK: 1}, training__patience=5), tmp_path / "run").steps == 6
    outcome = run_recipe(patient, tmp_path / "run")
    assert (outcome.steps, outcome.stopped_early) == (10, False)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert log(tmp_path / "run") == log(tmp_path / "whole")


@pytest.mark.usefixtures("_nothing_is_better")
def test_patience_is_remembered(make: MakeRun, tmp_path: Path) -> None:
    impatient = make(**{LOOK: 1}, training__patience=5, training__checkpoint_every=1)
    with crashing_at(5):
        run_recipe(impatient, tmp_path / "run")
    assert run_recipe(impatient, tmp_path / "run").steps == 6


# Settings that differ


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("optim__lr", 0.02, "optim.lr=0.01, not 0.02"),
        ("optim__schedule", "noam", "optim.schedule=constant, not noam"),
        ("optim__accumulate", 3, "optim.accumulate=2, not 3"),
        ("training__seed", 2, "training.seed=1, not 2"),
        ("model__dropout", 0.1, "model.dropout=0.2, not 0.1"),
        ("model__preset", "small", "model.norm="),
        ("batch__layout", "packed", "batch.layout=padded, not packed"),
        ("tokenizer__size", 341, "tokenizer.size=340, not 341"),
        ("data__valid_source", "x.en", "data.valid_source=null, not a file"),
        ("data__languages", ["en", "de"], 'data.languages=["en", "zh"], not ["en", "de"]'),
        ("search__beam", 2, "search.beam=1, not 2"),
        ("training__monitor", "loss", "training.monitor=auto, not loss"),
        ("training__ema", 0.9, "training.ema=0.0, not 0.9"),
        ("objective__r_drop", 1.0, "objective.r_drop=0.0, not 1.0"),
        ("objective__scheduled_sampling", {"half_life": 9}, "objective.scheduled_sampling=null, not {"),
    ],
)
def test_a_changed_setting_is_refused_with_both_values(
    key: str, value: object, said: str, make: MakeRun, broken: Path
) -> None:
    before = everything(broken)
    with pytest.raises(UserError) as refused:
        run_recipe(make(**{key: value}), broken)
    assert said in str(refused.value)
    assert everything(broken) == before


def test_how_often_to_look_and_where_to_run_may_change(make: MakeRun, whole: Path, broken: Path) -> None:
    changes = {LOOK: 3, "training__log_every": 2, "training__checkpoint_every": 3, "training__keep_checkpoints": 1}
    recipe = make(**changes, training__device="auto" if not _has_gpu() else "cpu")
    run_recipe(recipe, broken)
    assert weights(broken) == weights(whole)
    assert [path.name for path in (broken / "checkpoints").glob("step-*")] == ["step-00000010"]
    assert Recipe.load(broken / "recipe.yaml").training == recipe.training


def test_the_default_and_the_same_value_written_out_are_the_same_setting(
    make: MakeRun, whole: Path, broken: Path
) -> None:
    run_recipe(make(batch__layout="padded", model__norm=make().model_config_for(8, 8).norm), broken)
    assert weights(broken) == weights(whole)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_run_can_be_made_longer_where_its_past_does_not_depend_on_its_length(
    ema: float, make: MakeRun, tmp_path: Path
) -> None:
    run_recipe(make(training__ema=ema), tmp_path / "whole")
    run_recipe(make(training__ema=ema, training__steps=6), tmp_path / "run")
    run_recipe(make(training__ema=ema), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"optim__schedule": "cosine"}, "from 6 to 10, because the cosine schedule"),
        ({"training__average": 0.5}, "from 6 to 10 at step 6, because the first averaged step"),
    ],
)
def test_or_else_that_is_refused(changes: dict[str, object], said: str, make: MakeRun, tmp_path: Path) -> None:
    run_recipe(make(training__steps=6, **changes), tmp_path / "run")
    before = everything(tmp_path / "run")
    with pytest.raises(UserError, match=said):
        run_recipe(make(**changes), tmp_path / "run")
    assert everything(tmp_path / "run") == before


# Data that differs


@pytest.fixture
def files(toy: Path, tmp_path: Path) -> dict[str, object]:
    """A corpus of one's own."""
    (tmp_path / "data").mkdir()
    for name in ("train.en", "train.zh"):
        shutil.copy(toy / name, tmp_path / "data" / name)
    return {"data__source": str(tmp_path / "data/train.en"), "data__target": str(tmp_path / "data/train.zh")}


def test_a_changed_file_is_named_and_refused(make: MakeRun, files: dict[str, object], tmp_path: Path) -> None:
    with crashing_at(3):
        run_recipe(make(**files), tmp_path / "run")
    path = Path(str(files["data__target"]))
    path.write_text(path.read_text(encoding="utf-8").replace("我", "你"), encoding="utf-8")
    before = everything(tmp_path / "run")
    with pytest.raises(UserError, match=r"train\.zh: has changed since the run in .*run was created"):
        run_recipe(make(**files), tmp_path / "run")
    assert everything(tmp_path / "run") == before


def test_a_file_may_have_moved(make: MakeRun, files: dict[str, object], whole: Path, tmp_path: Path) -> None:
    with crashing_at(3):
        run_recipe(make(**files), tmp_path / "run")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    moved = {key: str(path).replace("/data/", "/elsewhere/") for key, path in files.items()}
    run_recipe(make(**moved), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(whole)


def test_other_tokens_of_the_same_files_are_refused(make: MakeRun, broken: Path) -> None:
    path = broken / "data" / "fingerprints.json"
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"tokens": "0" * 64}))
    with pytest.raises(UserError, match="other tokens than when the run was created"):
        run_recipe(make(), broken)


def test_damaged_fingerprints_are_named(make: MakeRun, broken: Path) -> None:
    (broken / "data" / "fingerprints.json").write_text("{")
    with pytest.raises(UserError, match=r"fingerprints\.json: damaged"):
        run_recipe(make(), broken)


# Folders of others


def test_a_run_without_what_it_takes_to_go_on_is_left_alone(make: MakeRun, broken: Path) -> None:
    shutil.rmtree(broken / "data")  # as runs were before there were checkpoints
    before = everything(broken)
    with pytest.raises(UserError, match="already exists and is not an empty folder"):
        run_recipe(make(), broken)
    assert everything(broken) == before


def test_a_folder_of_data_is_not_taken_for_an_unfinished_run(make: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "out" / "data").mkdir(parents=True)
    with pytest.raises(UserError, match="already exists"):
        run_recipe(make(), tmp_path / "out")


def test_a_full_disk_ends_the_run_with_one_sentence(
    make: MakeRun, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(folder: Path, step: int, *rest: Any) -> None:
        if step == 8:
            monkeypatch.setattr("regard.training.checkpoint.fsync", full)
        save_checkpoint(folder, step, *rest)

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.training.loop.save_checkpoint", fill)
    with pytest.raises(UserError, match=r"step-00000008: could not be written \(No space left on device\)") as refused:
        run_recipe(make(), tmp_path / "run")
    assert str(refused.value).endswith("the same command resumes from step-00000006")
    monkeypatch.undo()
    run_recipe(make(), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(whole)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.mark.parametrize(("change", "can_go_on"), [("constant", True), ("cosine", False)])
def test_a_run_that_is_done_promises_more_steps_only_where_they_are_possible(
    change: str, can_go_on: bool, make_recipe: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = make_recipe(training__steps=2, optim__schedule=change, training__valid_sentences=0)
    run_recipe(recipe, tmp_path / "run")
    run_recipe(recipe, tmp_path / "run")
    assert ("raise training.steps to continue it" in capsys.readouterr().out) == can_go_on


def test_a_sentence_with_other_line_ends_stays_in_the_log(tmp_path: Path) -> None:
    odd = "a\u2028b\u0085c"
    entries = [{"step": 1}, {"step": 2, "samples": [odd]}, {"step": 3}]
    lines = [json.dumps(entry, ensure_ascii=False) for entry in entries]
    (tmp_path / "log.jsonl").write_text("".join(f"{line}\n" for line in lines) + '{"step": 1', encoding="utf-8")
    rewind(tmp_path, 2)
    kept = (tmp_path / "log.jsonl").read_text(encoding="utf-8")
    assert kept == "".join(f"{line}\n" for line in lines[:2])


def test_a_run_that_is_done_says_so_also_where_fewer_steps_are_asked_for(
    make_recipe: Callable[..., Recipe], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"training__validate_every": 4, "training__valid_sentences": 0, "optim__schedule": "constant"}
    run_recipe(make_recipe(training__steps=4, **short), tmp_path / "run")
    assert run_recipe(make_recipe(training__steps=2, **short), tmp_path / "run").steps == 4
    assert "already finished" in capsys.readouterr().out
