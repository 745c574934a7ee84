"""benchmarks/defaults.py, captured_steps.py and time_to_quality.py: valid settings, comparison and tables."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import captured_steps, time_to_quality
from benchmarks.reports import speed
from regard.training.recipe import Recipe
from regard.training.tasks.registry import load_recipe
from tools.kill_captured import JOBS, command

CITED = {"machine": "a GPU", "versions": {"torch": "2.11"}, "date": "2026-01-01", "command": "python x.py"}


def load(case: captured_steps.Case, settings: dict[str, Any]) -> Recipe:
    return load_recipe(Path(case.recipe) if case.recipe else None, [], settings)


@pytest.mark.parametrize("tiny", [True, False])
def test_all_cases_are_valid_recipes_with_captured_steps(tmp_path: Path, tiny: bool) -> None:
    bench = captured_steps.Bench(tmp_path, tmp_path, torch.device("cpu"), tiny)
    (tmp_path / "images").mkdir()
    for case in captured_steps.CASES.values():
        assert load(case, bench.settings(case)).training.uses_cuda_graph
    names = {name for pair in captured_steps.RELATIVE.values() for name in pair}
    assert names <= captured_steps.CASES.keys()


def test_targets_are_valid_recipes() -> None:
    for name, target in time_to_quality.TARGETS.items():
        words = target.words(Path("data"), Path("out"), 2, ["optim.lr=0.1"])
        assert words[:2] == ["train", target.recipe], name
        settings = [word for before, word in itertools.pairwise(words) if before == "--set"]
        recipe = load_recipe(Path(target.recipe), settings)
        assert (recipe.training.seed, recipe.optim.lr) == (2, 0.1)


@pytest.mark.parametrize("job", JOBS)
def test_jobs_that_are_killed_are_valid_recipes(job: str, tmp_path: Path) -> None:
    words = command(job, tmp_path, tmp_path / "run", "cuda", 50)
    settings = [word for before, word in itertools.pairwise(words) if before == "--set"]
    given = {"data.images": "x"} if job == "images" else {"data.source": "a.en", "data.target": "a.zh"}
    recipe = load_recipe(None, settings, given)
    assert (recipe.training.uses_cuda_graph, recipe.training.device, recipe.training.steps) == (True, "cuda", 50)


def test_differences_of_weights() -> None:
    one = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    assert captured_steps.differences(one, {name: weight.clone() for name, weight in one.items()}) == 0
    other = {"a": torch.tensor([1.0, 2.5]), "b": torch.tensor([2.0])}
    assert captured_steps.differences(one, other) == 1.0


def test_tables_show_gains_kills_and_times() -> None:
    rows = [
        {"name": "plain", "ms": 3.0, "eager_ms": 60.0, "gain": 20.0, "identical": True, "max_difference": 0.0},
        {"name": "CTC", "ms": 5.0, "eager_ms": 50.0, "gain": 10.0, "identical": False, "max_difference": 2e-4}
        | {"max_difference_of_eager_runs": 3e-4},
        {"name": "base", "ms": 23.0},
    ]
    written = speed.write_captured({"what": "steps", "rows": rows, "relative": {"r-drop": 2.1}} | CITED)
    assert "| plain | 3.00 | 60.0 | 20.0× | identical |" in written
    assert "| CTC | 5.00 | 50.0 | 10.0× | differ by 0.0002 (two eager runs: 0.0003) |" in written
    assert "r-drop: 2.10" in written and "base" not in written
    jobs = [{"job": "R-Drop", "identical": True}, {"job": "CTC", "identical": False}]
    written = speed.write_defaults({"kills-gpu": {"kills": 63, "jobs": jobs}})
    assert "63 processes" in written and "1 of 2 runs" in written
    runs = [{"score": 41.25, "seconds": 30.5, "phases": {"steps": 20.0}}]
    result = {"recipe": "multi30k-en-de", "what": "BLEU", "bound": 41.0, "score": 41.25, "seconds": 30.5, "runs": runs}
    written = speed.write_time_to_quality({"time-to-quality-multi30k": result | {"settings": ["a=1"]} | CITED})
    assert "| multi30k-en-de | 41 BLEU | 41.25 | 41.25 | **30.5** | 30.5 | 20.0 |" in written
    assert "multi30k-en-de with `a=1`: a GPU, torch 2.11, 2026-01-01." in written
