"""Compiled models: one graph, and the same weights as without compilation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from regard.errors import UserError
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from tests.images import image_recipe
from tests.training.tasks.test_croco import recipe as completion_recipe

SHORT = {"training__steps": 3, "training__validate_every": 3}
RUNS = ("plain", "compiled")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """Collect the compiled graphs and run them without code generation, which would take a minute."""
    graphs: list[torch.fx.GraphModule] = []
    compile_module = nn.Module.compile

    def collect(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_module(self, backend=collect, fullgraph=True))
    torch._dynamo.reset()
    return graphs


def image_classifier(painted: Path, **changes: object) -> Recipe:
    return image_recipe(painted, model__drop_path=0.2, training__ema=0.9, **SHORT, **changes)


def convolutional_classifier(painted: Path, **changes: object) -> Recipe:
    return image_classifier(painted, model__stem="convolutions", **changes)


def completion_model(painted: Path, **changes: object) -> Recipe:
    return completion_recipe(completion__initial_mask_ratio=0.9, **SHORT, **changes)


@pytest.mark.parametrize("build", [image_classifier, convolutional_classifier, completion_model])
def test_compiled_step_is_one_graph_with_the_same_result(
    build: Callable[..., Recipe], painted: Path, tmp_path: Path, graphs: list[torch.fx.GraphModule]
) -> None:
    run_recipe(build(painted), tmp_path / "plain")
    assert not graphs
    run_recipe(build(painted, training__compile=True), tmp_path / "compiled")
    assert len(graphs) == 1
    plain, compiled = (safetensors.torch.load_file(tmp_path / run / "best" / "model.safetensors") for run in RUNS)
    assert plain.keys() == compiled.keys()
    for name, weight in plain.items():
        torch.testing.assert_close(compiled[name], weight, msg=lambda text, name=name: f"{name}: {text}")


def test_growing_mask_ratio_needs_only_two_graphs(
    painted: Path, tmp_path: Path, graphs: list[torch.fx.GraphModule]
) -> None:
    ramp = {"completion__initial_mask_ratio": 0.2, "completion__ramp_steps": 6, "training__steps": 6}
    run_recipe(completion_recipe(**ramp, training__compile=True), tmp_path / "run")
    assert len(graphs) == 2  # a static and a dynamic shape


def test_sharded_model_cannot_be_compiled(painted: Path) -> None:
    with pytest.raises(UserError, match="compile needs the complete model in every process; set sharding=ddp"):
        image_classifier(painted, training__compile=True, training__sharding="fsdp")
