"""`regard plan`, also against measurements on an H200."""

import json
from pathlib import Path
from typing import Any

import pytest

from regard.errors import UserError
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViTConfig
from regard.training.plan import (
    ACTIVATION_PASSES,
    GPUS,
    MATMUL_SHARE,
    STATE_BYTES,
    UPDATE_BYTES,
    Cluster,
    StepCost,
    Workload,
    find_gpu,
    make_plan,
    parse_interconnect,
    read_measured,
)
from regard.training.recipe import Recipe
from regard.training.tasks.registry import load_recipe
from tests.conftest import Command

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
H200 = GPUS["h200"]
BASE = Workload.of_translator(TransformerConfig.base(32_000), 25_197, captured=True)
VIT = Workload.of_vit(ViTConfig(classes=1000), 256, captured=True)


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def profile() -> dict[str, Any]:
    (row,) = [row for row in results("training-gpu")["rows"] if row["name"] == "regard-captured-bf16"]
    return dict(row)


def recipe(**changes: object) -> Recipe:
    values = {"data.source": "big.jsonl", "tokenizer.size": 32_000, "model.preset": "base", "batch.tokens": 25_000}
    return load_recipe(None, [], values | {key.replace("__", "."): value for key, value in changes.items()})


def test_constants_follow_from_the_profile_of_one_step() -> None:
    """Linear layers are the kernels of cuBLAS; everything else but the update is expressed as passes."""
    row = profile()
    kernels = {kernel["name"]: kernel["ms"] / 1000 for kernel in row["kernels"]}
    linear = sum(seconds for name, seconds in kernels.items() if name.startswith("nvjet"))
    update = sum(seconds for name, seconds in kernels.items() if "FusedOpti" in name)
    share = 6 * BASE.linear * row["tokens"] / linear / (H200.tflops * 1e12)
    rest = row["step_ms"] / 1000 - linear - update
    passes = rest * H200.bandwidth_tb * 1e12 / (BASE.activation_bytes * row["tokens"])
    assert pytest.approx(share, rel=0.01) == MATMUL_SHARE
    assert pytest.approx(passes, rel=0.02) == ACTIVATION_PASSES
    assert pytest.approx(update * H200.bandwidth_tb * 1e12 / BASE.parameters, rel=0.05) == UPDATE_BYTES


def test_step_of_vit_agrees_with_its_measurement() -> None:
    (row,) = [row for row in results("vision-speed-gpu")["rows"] if row["name"] == "regard, captured"]
    cost = StepCost.of(VIT, H200)
    assert 1000 * (cost.batch + cost.update) == pytest.approx(row["step_ms"], rel=0.15)
    step_bytes = VIT.activation_bytes * VIT.tokens + (4 + 2) * VIT.parameters  # beside weights and moments
    assert step_bytes / 2**30 == pytest.approx(row["step_gib"], rel=0.15)


def test_training_of_base_agrees_with_its_measurement() -> None:
    measured = results("training-defaults-gpu")
    plan = make_plan(recipe(), Cluster(H200))
    assert plan.per_second == pytest.approx(measured["tokens_per_second"], rel=0.15)
    assert plan.memory_gb == pytest.approx(measured["peak_mb"] / 1000, rel=0.15)
    row = profile()
    memory = (STATE_BYTES * BASE.parameters + BASE.activation_bytes * row["tokens"]) / 2**30
    assert memory == pytest.approx(row["peak_gib"], rel=0.15)


def test_measured_step_replaces_the_computed_one() -> None:
    one = make_plan(recipe(optim__accumulate=4), Cluster(H200), measured=0.2)
    assert one.step_ms == pytest.approx(200)
    four = make_plan(recipe(optim__accumulate=4), Cluster(H200, 4), measured=0.2)
    assert 50 < four.step_ms < 55


def test_all_reduce_uses_the_slower_link_between_nodes() -> None:
    size = 1e9
    inside = Cluster(H200, 8).all_reduce_seconds(size)
    assert inside == pytest.approx(2 * 7 / 8 * 1e9 / (0.8 * 450e9))
    across = Cluster(H200, 16, network_gb=50).all_reduce_seconds(size)
    assert across == pytest.approx(inside + 2 * 1 / 2 * (1e9 / 8) / (0.8 * 50e9))
    assert Cluster(H200).all_reduce_seconds(size) == 0


def test_communication_overlaps_only_without_cuda_graphs() -> None:
    cluster = Cluster(H200, 16)
    captured = make_plan(recipe(optim__accumulate=16), cluster)
    eager = make_plan(recipe(optim__accumulate=16, training__cuda_graph=False), cluster)
    assert captured.exposed_ms == pytest.approx(1000 * cluster.all_reduce_seconds(4 * captured.parameters))
    assert eager.exposed_ms < captured.exposed_ms
    accumulated = make_plan(recipe(optim__accumulate=64), cluster)
    assert accumulated.exposed_ms == pytest.approx(captured.exposed_ms)
    assert accumulated.efficiency > captured.efficiency


def test_sharding_divides_the_state() -> None:
    whole, sharded = (
        make_plan(recipe(optim__accumulate=8, training__sharding=name), Cluster(H200, 8)) for name in ("ddp", "fsdp")
    )
    assert sharded.state_gb == pytest.approx(whole.parameters * (16 / 8 + 4) / 1e9)
    assert sharded.memory_gb < whole.memory_gb
    assert not make_plan(recipe(batch__tokens=800_000), Cluster(H200)).fits


def test_hours_energy_and_cost_follow_from_the_step() -> None:
    plan = make_plan(recipe(optim__accumulate=64), Cluster(H200, 64), units=27e9, price=2.5, watts=600)
    assert plan.steps == round(27e9 / (64 * 25_000))
    assert plan.hours == pytest.approx(plan.steps * plan.step_ms / 3.6e6)
    assert plan.gpu_hours == pytest.approx(64 * plan.hours)
    assert plan.energy_kwh == pytest.approx(0.6 * plan.gpu_hours)
    assert plan.cost == pytest.approx(2.5 * plan.gpu_hours)


def test_worked_example_of_the_documentation_is_computed() -> None:
    for gpus in (1, 64):
        big = recipe(model__preset="big", optim__accumulate=gpus, data__source=None, data__builtin="en-zh")
        plan = make_plan(big, Cluster(H200, gpus), units=27e9, price=3)
        shown = f"{plan.memory_gb:.1f} GB", f"{plan.step_ms:.1f} ms", f"{plan.per_second:,.0f}", f"{plan.steps:,}"
        shown += f"{plan.hours:.2f}", f"{plan.energy_kwh:.1f} kWh", f"{plan.cost:.2f}"
        for page in ("scaling.md", "zh/scaling.md"):
            text = (RESULTS.parents[1] / "docs" / page).read_text("utf-8")
            assert [value for value in shown if f"| {value}" not in text] == []


def test_invalid_input_is_explained() -> None:
    with pytest.raises(UserError, match=r"model\.kind: plan computes transformer and vit, not nat"):
        make_plan(recipe(model__kind="nat"), Cluster(H200))
    with pytest.raises(UserError, match="a step of 1 batch cannot be divided among 2 processes"):
        make_plan(recipe(), Cluster(H200, 2))
    with pytest.raises(UserError, match=r"training\.precision: plan computes steps in bfloat16"):
        make_plan(recipe(training__precision="float32"), Cluster(H200))
    with pytest.raises(UserError, match="--gpu v100: no data sheet; known are h200"):
        find_gpu("v100")
    for text in ("fast", "-1", "inf", "nan"):
        with pytest.raises(UserError, match=f"--interconnect {text}: write infiniband-400"):
            parse_interconnect(text)
    for values in ([], {}, {"training": [{"name": "other", "step_ms": 1}, {"name": "the recipe", "error": "no"}]}):
        with pytest.raises(UserError, match=r"bench.json: has no step time of the recipe"):
            read_measured(values, "bench.json")


def test_command_prints_a_plan(command: Command, tmp_path: Path) -> None:
    (tmp_path / "vit.yaml").write_text(
        "data: {images: photos}\nmodel: {kind: vit, preset: base}\ntraining: {steps: 10}\n"
    )
    (tmp_path / "bench.json").write_text(json.dumps({"training": [{"name": "the recipe", "step_ms": 100}]}))
    given = ["plan", tmp_path / "vit.yaml", "--images", 1e6, "--price", 2, "--measured", tmp_path / "bench.json"]
    text = command(*given)
    assert text.out.startswith("computed, not measured: "), text.err
    assert "step            100.0 ms" in text.out
    values = json.loads(command(*given, "--json").out)
    assert values["per_second"] == pytest.approx(2560)
    assert values["cost"] == pytest.approx(2 * values["gpu_hours"], rel=1e-4)
    assert "--pairs: the recipe trains on images; omit it" in command("plan", tmp_path / "vit.yaml", "--pairs", 1).error
    assert "--price -1: must be a number above 0" in command("plan", tmp_path / "vit.yaml", "--price", -1).error
