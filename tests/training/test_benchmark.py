"""`regard bench --training`: real training steps of a recipe in several variants, without changing the run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import UserError
from regard.ops.linear import supports
from regard.training import benchmark
from regard.training.benchmark import (
    Row,
    Variant,
    changes_for_libraries,
    list_changes,
    list_notes,
    tabulate,
    time_training,
    use_transformers_model,
)
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.step_timing import MIN_GROUPS, StepTiming
from regard.training.tasks.registry import load_recipe
from tests.conftest import Command, small_recipe
from tests.training.tasks.test_croco import recipe as two_views

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def rows_of(run: Path, *libraries: str) -> dict[str, StepTiming]:
    found = time_training([str(run)], CPU, 0, libraries).rows
    return {row.variant.name: row.timing for row in found if row.timing is not None}


def test_training_steps_are_timed_without_changing_the_run(trained_run: Path, command: Command, tmp_path: Path) -> None:
    before, out = state_of(trained_run), tmp_path / "steps.json"
    answer = command("bench", trained_run, "--training", "--seconds", 0, "--out", out, "--device", "cpu")
    assert answer.code == 0, answer.err
    assert state_of(trained_run) == before
    record = json.loads(out.read_text(encoding="utf-8"))
    names = ["the recipe", "batch.layout=packed"]
    names += ["training.precision=bfloat16"] if supports("bfloat16") else []
    assert [row["name"] for row in record["training"]] == names
    for row in record["training"]:
        assert row["run"] == str(trained_run)
        assert row["steps"] == MIN_GROUPS
        assert row["slowest"] <= row["tokens_per_second"] <= row["fastest"]
        # Batches have at most 256 tokens and are mostly full, so rate and step time must be consistent.
        assert 50 < row["tokens_per_second"] * row["step_ms"] / 1000 < 600
        assert row["peak_bytes"] is None
    assert "tokens (1.00×)" in answer.out
    assert f"{trained_run}, batch.layout=packed …" in answer.err


def test_steps_of_every_task_can_be_timed(image_run: Path, tmp_path: Path, toy: Path) -> None:
    def unit(run: Path, *changes: str) -> str:
        timing = benchmark._time_variant(Variant(str(run), changes), CPU, 0).timing
        assert timing is not None
        return timing.unit

    assert unit(image_run) == "images"
    run_recipe(two_views(), tmp_path / "views")
    assert unit(tmp_path / "views") == "pairs"
    short = {"training__steps": 2, "training__valid_sentences": 0}
    run_recipe(small_recipe(toy / "train.en", toy / "train.zh", model__kind="nat", **short), tmp_path / "nat")
    assert unit(tmp_path / "nat", "batch.layout=packed") == "tokens"


def test_transformers_model_trains_in_the_same_loop(trained_run: Path) -> None:
    pytest.importorskip("transformers")
    assert rows_of(trained_run, "huggingface")["transformers"].steps == MIN_GROUPS
    task, _ = Variant(str(trained_run)).prepare(CPU)
    task.model.eval()
    batch = task.largest_batch()
    with torch.no_grad():
        ours = task.loss(batch, 1)
        use_transformers_model(task)
        task.model.eval()
        other = task.loss(batch, 1)
    assert other.count == ours.count
    torch.testing.assert_close(other.total, ours.total, rtol=1e-4, atol=1e-3)


def test_library_that_cannot_train_is_rejected_before_timing(
    trained_run: Path, image_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(benchmark, "time_steps", None)
    with pytest.raises(UserError, match="--library ctranslate2: cannot train"):
        time_training([str(trained_run)], CPU, 0, ["ctranslate2"])
    with pytest.raises(UserError, match="--library huggingface: the ViT of transformers has pooling class"):
        time_training([str(image_run)], CPU, 0, ["huggingface"])


def test_path_without_a_run_is_rejected(trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    timing = StepTiming("tokens", [90.0], [10.0], 10)
    monkeypatch.setattr(benchmark, "time_steps", lambda *_: timing)
    assert "not a run" in command("bench", trained_run.parent, "--training").error
    assert command("bench", trained_run / "best", "--training", "--seconds", 0, "--device", "cpu").code == 0


# Variants


def joined(changes: Iterator[tuple[str, ...]]) -> list[str]:
    return [" ".join(change) for change in changes]


def loaded(**changes: Any) -> Recipe:
    return small_recipe(Path("a.en"), Path("a.zh"), batch__layout="padded", **changes)


def test_gpu_variants_include_cuda_graphs_compilation_and_precision() -> None:
    assert joined(list_changes(loaded(), GPU)) == [
        "",
        "batch.layout=packed",
        "training.precision=float32",
        "training.residual_dtype=bfloat16",
        "batch.layout=packed training.cuda_graph=true",
        "batch.layout=packed training.cuda_graph=true training.residual_dtype=bfloat16",
        "batch.layout=packed training.compile=true",
    ]


def test_settings_of_the_recipe_are_not_repeated_as_variants() -> None:
    settings = {"batch__layout": "packed", "training__cuda_graph": True, "training__residual_dtype": "bfloat16"}
    recipe = small_recipe(Path("a.en"), Path("a.zh"), **settings)
    float32 = "training.precision=float32 training.residual_dtype=float32"
    assert joined(list_changes(recipe, GPU)) == ["", float32, "training.compile=true"]
    assert changes_for_libraries(recipe) == (
        "training.cuda_graph=false",
        "batch.layout=padded",
        "training.residual_dtype=float32",
    )
    assert changes_for_libraries(loaded()) == ()


def test_every_variant_is_a_valid_recipe_or_has_a_reason(tmp_path: Path) -> None:
    taught = loaded(objective__r_drop=1.0)
    (tmp_path / "recipe.yaml").write_text(json.dumps(taught.model_dump(mode="json")), encoding="utf-8")
    errors = []
    for changes in list_changes(taught, GPU):
        try:
            load_recipe(tmp_path / "recipe.yaml", changes)
        except UserError as error:
            errors.append(f"{changes[-1]}: {error}")
    assert len(errors) == 1
    assert "plain teacher forcing" in errors[0]


def test_failed_variant_is_a_row_but_failed_recipe_is_an_error(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = StepTiming("tokens", [90.0], [10.0], 10)

    def fail(variant: Variant, device: torch.device, seconds: float) -> Row:
        if "batch.layout=packed" in variant.changes:
            raise RuntimeError("no\nluck")
        return Row(variant, timing)

    monkeypatch.setattr(benchmark, "_time_variant", fail)
    found = time_training([str(trained_run)], CPU, 0)
    assert [row.error for row in found.rows][:2] == ["", "no luck"]
    assert "| batch.layout=packed | failed |" in tabulate(found.rows)
    assert list_notes(found.rows) == ["batch.layout=packed: no luck"]
    assert found.as_dict()["training"][1]["error"] == "no luck"
    monkeypatch.setattr(benchmark, "_time_variant", lambda *_: (_ for _ in ()).throw(UserError("none fits")))
    with pytest.raises(UserError, match="none fits"):
        time_training([str(trained_run)], CPU, 0)


def test_table_has_memory_columns_on_a_gpu() -> None:
    timing = StepTiming("tokens", [90.0, 100.0, 200.0], [10.0, 11.0, 12.0], 30, 2.5, 3e9, 12_345.0)
    slow = StepTiming("tokens", [50.0], [20.0], 10, 0.5, 1e9, 5_000.0, ["step 1: out of memory"])
    rows = [Row(Variant("a"), timing), Row(Variant("a", ("x=1",)), slow), Row(Variant("b"), slow)]
    lines = tabulate(rows).splitlines()
    assert lines[0] == "|  | per second | step, ms | warm-up, s | peak, GB | KB each |"
    assert lines[2] == "| a, the recipe | 100 tokens (1.00×) | 11.0 | 2.5 | 3.00 | 12.3 |"
    assert lines[3] == "| a, x=1 | 50 tokens (0.50×) | 20.0 | 0.5 | 1.00 | 5.0 |"
    assert lines[4].startswith("| b, the recipe | 50 tokens (1.00×) |")
    assert list_notes(rows[:2]) == ["x=1: step 1: out of memory"]
