"""Training steps in CUDA graphs: they equal eager steps; on a CPU the static tensors are tested alone."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from regard.errors import UserError
from regard.layers import Sinusoidal
from regard.masks import Packed
from regard.training import cuda_graph
from regard.training.cuda_graph import StepGraph, signature_of, tensors_of, with_tensors
from regard.training.loop import TrainingLoop
from regard.training.objectives.nat import NATTargets
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.state import DataPosition, DataShard
from regard.training.tasks.translation.task import TranslationTask
from regard.training.text_batches import TextBatch
from tests.images import TINY, WINDOWED, image_recipe
from tests.training.tasks.test_croco import recipe as pair_recipe
from tests.training.test_loop import Line, points, run, saved


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of batches of each replayed step."""
    found: list[int] = []
    replay = cuda_graph._CapturedStep.replay

    def count(self: Any, batches: Any) -> Any:
        found.append(len(batches))
        return replay(self, batches)

    monkeypatch.setattr(cuda_graph._CapturedStep, "replay", count)
    return found


def disable_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run all steps eagerly from now on."""
    monkeypatch.setattr(cuda_graph, "WARMUP_STEPS", 10**9)


def test_steps_are_captured_after_consecutive_batches_of_one_shape() -> None:
    seen: list[float] = []

    def run_step(batches: Any) -> torch.Tensor:
        seen.append(float(batches[0].sum()))
        return batches[0].sum()

    step_graph: StepGraph[Any, Any] = StepGraph([run_step], torch.device("cpu"))
    sizes = [2] * 5 + [3] * 4 + [2] * 4
    results = [step_graph.try_replay([torch.full((size,), 1.0 + i)]) for i, size in enumerate(sizes)]
    eager = [result is None for result in results]
    assert eager == [True] * 3 + [False] * 2 + [True] * 3 + [False] + [True] * 3 + [False]
    assert seen == [2 * 4.0, 2 * 5.0, 3 * 9.0, 2 * 13.0]


def test_static_tensors_keep_the_strides() -> None:
    strides: list[tuple[int, ...]] = []
    step_graph: StepGraph[Any, Any] = StepGraph(
        [lambda batches: strides.append(batches[0].stride()) or 1], torch.device("cpu")
    )
    for batch in (torch.arange(12).view(3, 4)[:, :2], torch.arange(12).view(3, 4).T, torch.zeros(1, 4).expand(3, 4)):
        while step_graph.try_replay([batch]) is None:
            pass
    assert strides == [(4, 1), (1, 4), (4, 1)]  # expanded tensors are copied


def test_replayed_steps_equal_eager_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replayed: list[int]) -> None:
    given = points(4, 4, 4, 4)
    given[2] = (given[2][0] * torch.nan, given[2][1])  # skipped, once in an eager and once in a replayed step
    settings = {"steps": 21, "validate_every": 7, "cuda_graph": True, "ema": 0.5}
    optim = {"accumulate": 1, "schedule": "inverse-sqrt", "warmup": 5}
    run(Line(given), tmp_path / "replayed", optim, **settings)
    assert replayed == [1] * 18
    disable_capture(monkeypatch)
    run(Line(given), tmp_path / "eager", optim, **settings)
    assert len(replayed) == 18
    for folder in ("last", "best"):
        assert saved(tmp_path / "replayed" / folder) == saved(tmp_path / "eager" / folder)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("replayed", "eager")]
    for one, other in zip(*(map(json.loads, lines) for lines in logs), strict=True):
        timed = {"seconds", "tokens_per_second", "memory", "phases"}
        assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}


def test_batches_of_different_shapes_are_not_captured(tmp_path: Path, replayed: list[int]) -> None:
    run(Line(points(4, 3)), tmp_path / "run", steps=8, cuda_graph=True)
    assert not replayed


def test_steps_run_eagerly_if_capture_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replayed: list[int]
) -> None:
    def capture(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(cuda_graph._CapturedStep, "__init__", capture)
    settings = {"steps": 9, "validate_every": 9, "cuda_graph": True}
    run(Line(points(4)), tmp_path / "run", **settings)
    assert not replayed
    log = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    events = [entry for entry in map(json.loads, log) if "event" in entry]
    assert [entry["step"] for entry in events] == [4]
    assert "steps run eagerly from now on" in events[0]["event"]
    disable_capture(monkeypatch)
    run(Line(points(4)), tmp_path / "eager", **settings)
    assert saved(tmp_path / "run" / "last") == saved(tmp_path / "eager" / "last")


def test_accumulated_batches_are_replayed_together(tmp_path: Path, replayed: list[int]) -> None:
    run(Line(points(4, 3)), tmp_path / "run", {"accumulate": 2}, steps=8, cuda_graph=True)
    assert replayed == [2] * 5


NAT_VARIANTS: dict[str, dict[str, Any]] = {
    "mask-predict": {"model__length": "classifier"},
    "glancing": {"model__length": "classifier", "objective__reveal": "glancing"},
    "end": {"model__length": "end"},
    "ctc": {"model__length": "ctc", "objective__reveal": "none"},
    "ctc-glat": {"model__length": "ctc", "objective__reveal": "glancing"},
    "dag-glat": {"model__length": "dag", "model__upsample_ratio": 3},
}


OBJECTIVES: dict[str, dict[str, Any]] = {
    "r-drop": {"objective__r_drop": 2.0},
    "simcut": {"objective__simcut": {"p": 0.2}},
    "scheduled-sampling": {"objective__scheduled_sampling": {"half_life": 2, "choice": "sample"}},
    "guided-attention": {"objective__guided_attention": {"steps": 100, "layers": [1]}},
    "all": {
        "objective__r_drop": 2.0,
        "objective__scheduled_sampling": {"half_life": 2, "decay": "linear"},
        "objective__guided_attention": {"steps": 100},
    },
}


TEXTS: dict[str, dict[str, Any]] = {
    "translator": {},
    "accumulation": {"optim__accumulate": 2},
    "average": {"training__ema": 0.0, "training__average": 0.5},
    **OBJECTIVES,
    **{kind: {"model__kind": "nat"} | changes for kind, changes in NAT_VARIANTS.items()},
}
IMAGES: dict[str, dict[str, Any]] = {
    "patches": {"model__stem": "patches"},
    "convolutions": {"model__stem": "convolutions"},
    "mixing": {"augmentation__preset": "strong", "augmentation__mix_prob": 0.5, "augmentation__mix_until": 0.9},
    "swin": {},
}
PAIRS: dict[str, dict[str, Any]] = {
    "croco": {},
    "croco with a rising mask ratio": {"completion__initial_mask_ratio": 0.2, "completion__ramp_levels": 2},
    "disparity": {"model__head": "dense"},
}
RUNS = [*TEXTS, *IMAGES, *PAIRS]


@pytest.fixture
def recipe_of(make_recipe: Any, painted: Path) -> Callable[..., Recipe]:
    """Return a function that builds the recipe of one of `RUNS` with changes."""

    def build(kind: str, **changes: Any) -> Recipe:
        changes = {"training__cuda_graph": True, "training__ema": 0.9} | changes
        if kind in TEXTS:
            text = {"batch__tokens": 150, "model__dropout": 0.1, "training__valid_sentences": 0}
            recipe: Recipe = make_recipe(**text | changes | TEXTS[kind])
            return recipe
        if kind in IMAGES:
            return image_recipe(
                painted, WINDOWED if kind == "swin" else TINY, model__drop_path=0.2, **changes | IMAGES[kind]
            )
        return pair_recipe(**{"completion__ramp_steps": 5} | changes | PAIRS[kind])

    return build


def outcome(out: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Return the weights of the last model, and the log without times."""
    timed = {"seconds", "memory", *(f"{unit}_per_second" for unit in ("tokens", "images", "pairs"))}
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = [{k: v for k, v in entry.items() if k not in timed} for entry in entries if "phases" not in entry]
    return safetensors.torch.load_file(out / "last" / "model.safetensors"), kept


@pytest.mark.parametrize("kind", RUNS)
def test_run_with_cuda_graph_has_the_same_weights_and_log(
    kind: str,
    tmp_path: Path,
    recipe_of: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
    replayed: list[int],
) -> None:
    steps = 9 if "rising" in kind else 6
    recipe = recipe_of(kind, training__steps=steps, training__validate_every=steps, training__log_every=1)
    run_recipe(recipe, tmp_path / "replayed")
    assert replayed == ([1] * 3 if "rising" in kind else [recipe.optim.accumulate] * 3)
    disable_capture(monkeypatch)
    run_recipe(recipe, tmp_path / "eager")
    (weights, log), (eager_weights, eager_log) = outcome(tmp_path / "replayed"), outcome(tmp_path / "eager")
    assert log == eager_log
    assert weights.keys() == eager_weights.keys()
    assert all(torch.equal(weight, eager_weights[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("objective", "steps_replayed"),
    [
        ({"objective__scheduled_sampling": {"half_life": 9, "start": 5}}, [4, 5, 9, 10, 11, 12]),
        ({"objective__guided_attention": {"steps": 5, "weight": 3.0}}, [4, 5, 9, 10, 11, 12]),
    ],
    ids=["scheduled sampling starts", "guided attention ends"],
)
def test_step_is_captured_again_when_the_objective_changes(
    objective: dict[str, Any],
    steps_replayed: list[int],
    tmp_path: Path,
    make_recipe: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"training__steps": 12, "training__validate_every": 12, "training__log_every": 1}
    settings |= {"training__cuda_graph": True, "training__valid_sentences": 0, "batch__tokens": 150}
    recipe = make_recipe(model__dropout=0.1, **settings, **objective)
    replayed: list[int] = []
    replay = TrainingLoop._replayed_step

    def record(self: Any, batches: Any, units: int, step: int, operations_key: Any) -> Any:
        result = replay(self, batches, units, step, operations_key)
        replayed.extend([step] if result is not None else [])
        return result

    monkeypatch.setattr(TrainingLoop, "_replayed_step", record)
    run_recipe(recipe, tmp_path / "replayed")
    assert replayed == steps_replayed
    disable_capture(monkeypatch)
    run_recipe(recipe, tmp_path / "eager")
    assert replayed == steps_replayed
    assert outcome(tmp_path / "replayed")[1] == outcome(tmp_path / "eager")[1]


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
def test_replays_draw_new_random_numbers() -> None:
    layout = Packed.of([40, 1, 60], device=torch.device("cuda"))

    def run_step(batches: Any) -> torch.Tensor:
        return NATTargets(layout).sample(batches[0])

    step_graph: StepGraph[Any, Any] = StepGraph([run_step], torch.device("cuda"))
    counts = torch.tensor([20, 1, 30], device="cuda")
    torch.manual_seed(3)
    with step_graph.eager():
        eager = [run_step([counts]) for _ in range(4)]
    while step_graph.try_replay([counts]) is None:
        pass
    torch.manual_seed(3)
    replayed = [step_graph.try_replay([counts]).clone() for _ in range(4)]
    assert all(torch.equal(one, other) for one, other in zip(replayed, eager, strict=True))
    assert len({tuple(sampled.tolist()) for sampled in replayed}) == 4


@on_gpu
def test_replay_is_unaffected_by_a_grown_position_table() -> None:
    positions = torch.arange(200, device="cuda")[None]
    encode = Sinusoidal(512).to("cuda")
    step_graph: StepGraph[Any, Any] = StepGraph([lambda batches: encode(batches[0], 200).clone()], positions.device)
    while (first := step_graph.try_replay([positions])) is None:
        pass
    expected = first.clone()
    encode(positions, 1000)
    others = [torch.full((256, 512), 7.0, device="cuda") for _ in range(20)]  # reuse freed memory
    assert torch.equal(step_graph.try_replay([positions]), expected) and len(others) == 20


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", RUNS)
def test_run_with_cuda_graph_has_a_similar_loss_on_a_gpu(
    kind: str,
    precision: str,
    tmp_path: Path,
    recipe_of: Callable[..., Recipe],
    monkeypatch: pytest.MonkeyPatch,
    replayed: list[int],
) -> None:
    settings = {"training__steps": 20, "training__validate_every": 20, "training__log_every": 20}
    settings |= {"training__device": "cuda", "training__precision": precision}
    recipe = recipe_of(kind, **settings)
    run_recipe(recipe, tmp_path / "replayed")
    assert replayed == [recipe.optim.accumulate] * (20 - 3 - 3 * ("rising" in kind))
    disable_capture(monkeypatch)
    run_recipe(recipe, tmp_path / "eager")
    one, other = (outcome(tmp_path / name)[1][0]["loss"] for name in ("replayed", "eager"))
    # Rounding may change the first pass of GLAT and thus the revealed tokens, so that losses differ by more.
    assert one == pytest.approx(other, rel=1e-3 if precision == "float32" else 2e-2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch__layout": "padded"}, "training.cuda_graph needs batches of fixed shape; set batch.layout"),
        ({"training__sharding": "fsdp"}, "training: cuda_graph needs the complete model in every process"),
        (
            {"model__kind": "nat", "model__length": "ctc", "batch__layout": "padded"},
            "training.cuda_graph needs batches of fixed shape; set batch.layout",
        ),
        (
            {"model__kind": "nat", "model__attention": {"kind": "linear"}},
            "training.cuda_graph: needs full attention, not linear",
        ),
        (
            {
                "model__kind": "nat",
                "model__length": "end",
                "model__positions": "learned",
                "model__max_length": 64,
            },
            "model.max_length=64 is too small for upsampled text; set data.max_length=30 or less",
        ),
    ],
)
def test_recipe_that_cannot_be_captured_is_rejected(make_recipe: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_recipe(training__cuda_graph=True, **changes)


def test_learned_positions_are_captured_if_there_are_enough(
    make_recipe: Any, tmp_path: Path, replayed: list[int]
) -> None:
    learned = {"model__positions": "learned", "model__max_length": 64, "data__max_length": 30}
    settings = {"training__steps": 5, "training__validate_every": 5, "training__valid_sentences": 0}
    recipe = make_recipe(
        model__kind="nat", model__length="end", batch__tokens=150, training__cuda_graph=True, **learned, **settings
    )
    run_recipe(recipe, tmp_path)
    assert replayed == [1] * 2


# Batches


def test_tensors_of_a_batch_can_be_replaced(build: Callable[..., TranslationTask]) -> None:
    task = build(training__cuda_graph=True, batch__layout="packed", batch__tokens=150)
    one, other = (placed.item for placed in islice(task.batches(DataPosition(), DataShard()), 2))
    assert one.count != other.count  # otherwise the test is meaningless
    assert signature_of(one) == signature_of(other)
    copy = with_tensors(one, [tensor.clone() for tensor in tensors_of(other)])
    assert isinstance(copy, TextBatch)
    assert isinstance(copy.target_layout, Packed)
    assert torch.equal(copy.target_layout.offsets, other.target_layout.offsets)
    assert torch.equal(task.loss(copy, 1).total, task.loss(other, 1).total)
    assert all(a is not b for a, b in zip(tensors_of(copy), tensors_of(other), strict=True))


def test_signature_depends_on_shapes_dtypes_and_values() -> None:
    layout = Packed.of([3, 2])
    assert signature_of(layout) == signature_of(Packed.of([3, 2]))
    assert signature_of(layout) != signature_of(Packed(layout.offsets, 4, 5))
    assert signature_of((torch.zeros(2), None)) != signature_of((torch.zeros(3), None))
    assert signature_of((torch.zeros(2), None)) != signature_of((torch.zeros(2, dtype=torch.int32), None))
    assert signature_of((torch.zeros(2, 2),)) != signature_of((torch.zeros(2, 2).t(),))
