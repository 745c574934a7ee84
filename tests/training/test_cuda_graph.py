"""Steps that are recorded: the same as any other, on tensors that stay where they are."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from regard.attention.masks import Packed
from regard.attention.positions import Sinusoidal
from regard.errors import UserError
from regard.ops.dispatch import TRITON_INSTALLED
from regard.training import cuda_graph as recording
from regard.training.cuda_graph import StepGraph
from regard.training.recipe import Recipe
from regard.training.run import run_recipe
from regard.training.skip import StepCheck
from regard.training.tasks.nat.targets import Canvas
from tests.images import image_recipe
from tests.training.test_loop import Line, points, run, saved


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each repeated step had."""
    found: list[int] = []
    play = recording._Recording.play

    def count(self: Any, batches: Any) -> Any:
        found.append(len(batches))
        return play(self, batches)

    monkeypatch.setattr(recording._Recording, "play", count)
    return found


def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no step is repeated."""
    monkeypatch.setattr(recording, "WARMUP_STEPS", 10**9)


def test_only_batches_of_the_same_shape_in_a_row_are_repeated() -> None:
    seen: list[float] = []

    def act(batches: Any) -> torch.Tensor:
        seen.append(float(batches[0].sum()))
        return batches[0].sum()

    recorder: StepGraph[Any, Any] = StepGraph(act, torch.device("cpu"))
    answers = [recorder.repeat([torch.full((size,), 1.0 + i)]) for i, size in enumerate([2] * 5 + [3] * 4 + [2] * 4)]
    plain = [answer is None for answer in answers]
    assert plain == [True] * 3 + [False] * 2 + [True] * 3 + [False] + [True] * 3 + [False]
    assert seen == [2 * 4.0, 2 * 5.0, 3 * 9.0, 2 * 13.0]


def test_what_is_repeated_lies_in_memory_as_what_was_met() -> None:
    met: list[tuple[int, ...]] = []
    recorder: StepGraph[Any, Any] = StepGraph(lambda batches: met.append(batches[0].stride()) or 1, torch.device("cpu"))
    for batch in (torch.arange(12).view(3, 4)[:, :2], torch.arange(12).view(3, 4).T, torch.zeros(1, 4).expand(3, 4)):
        while recorder.repeat([batch]) is None:
            pass
    assert met == [(4, 1), (1, 4), (4, 1)]  # elements that share their memory get some of their own


def test_repeated_steps_move_weights_as_plain_ones_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    given = points(4, 4, 4, 4)
    given[2] = (given[2][0] * torch.nan, given[2][1])  # a step that is skipped, once plainly and once repeated
    settings = {"steps": 21, "validate_every": 7, "cuda_graph": True, "ema": 0.5}
    optim = {"accumulate": 1, "schedule": "inverse-sqrt", "warmup": 5}
    run(Line(given), tmp_path / "repeated", optim, **settings)
    assert played == [1] * 18
    never(monkeypatch)
    run(Line(given), tmp_path / "plain", optim, **settings)
    assert len(played) == 18
    for folder in ("last", "best"):
        assert saved(tmp_path / "repeated" / folder) == saved(tmp_path / "plain" / folder)
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("repeated", "plain")]
    for one, other in zip(*(map(json.loads, lines) for lines in logs), strict=True):
        timed = {"seconds", "tokens_per_second", "memory"}
        assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}


def test_batches_that_differ_are_taken_plainly(tmp_path: Path, played: list[int]) -> None:
    run(Line(points(4, 3)), tmp_path / "run", steps=8, cuda_graph=True)
    assert not played


def test_several_batches_of_a_step_are_repeated_together(tmp_path: Path, played: list[int]) -> None:
    run(Line(points(4, 3)), tmp_path / "run", {"accumulate": 2}, steps=8, cuda_graph=True)
    assert played == [2] * 5


@pytest.mark.skipif(not TRITON_INSTALLED, reason="there is no Triton")
def test_a_recording_judges_with_the_kernel_that_plain_steps_had_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    """For other types it would have to be compiled anew, in the middle of what is recorded."""
    from regard.ops.triton import step_check as skips_triton

    judge, met = skips_triton.judge, set()

    class Spied:
        def __getitem__(self, grid: Any) -> Any:
            def launch(*given: torch.Tensor, **options: Any) -> None:
                met.add(tuple(tensor.dtype for tensor in given))
                judge[grid](*given, **options)

            return launch

    monkeypatch.setattr(skips_triton, "judge", Spied())
    monkeypatch.setattr(StepCheck, "judge", StepCheck.judge_by_kernel)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there Triton interprets it
    task = Line([(x.to(device).float(), y.to(device).float()) for x, y in points(4)])  # as precise as what is trained
    task.model.to(device).float()
    run(task, tmp_path / "run", steps=6, cuda_graph=True)
    assert played == [1] * 3
    assert len(met) == 1


PARALLEL: dict[str, dict[str, Any]] = {
    "mask-predict": {"model__length": "classifier"},
    "glancing": {"model__length": "classifier", "objective__reveal": "glancing"},
    "end": {"model__length": "end"},
    "ctc": {"model__length": "ctc", "objective__reveal": "none"},
    "ctc-glat": {"model__length": "ctc", "objective__reveal": "glancing"},
}


@pytest.mark.parametrize("kind", ["translator", "patches", "convolutions", *PARALLEL])
def test_a_recorded_run_learns_what_a_plain_one_does(
    kind: str, painted: Path, tmp_path: Path, make_recipe: Any, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    settings = {"training__steps": 6, "training__validate_every": 6, "training__cuda_graph": True, "training__ema": 0.9}
    recipe: Recipe
    if kind == "translator" or kind in PARALLEL:
        settings |= {"model__kind": "nat"} | PARALLEL[kind] if kind in PARALLEL else {}
        recipe = make_recipe(batch__tokens=150, model__dropout=0.1, training__valid_sentences=0, **settings)
    else:
        recipe = image_recipe(painted, model__drop_path=0.2, model__stem=kind, **settings)
    run_recipe(recipe, tmp_path / "repeated")
    assert played == [1] * 3
    never(monkeypatch)
    run_recipe(recipe, tmp_path / "plain")
    one, other = (
        safetensors.torch.load_file(tmp_path / name / "best" / "model.safetensors") for name in ("repeated", "plain")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(weight, other[name]) for name, weight in one.items())


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_gpu
def test_a_gpu_draws_anew_whenever_a_step_is_repeated() -> None:
    layout = Packed.of([40, 1, 60], device=torch.device("cuda"))

    def act(batches: Any) -> torch.Tensor:
        return Canvas(layout).pick(batches[0])

    recorder: StepGraph[Any, Any] = StepGraph(act, torch.device("cuda"))
    counts = torch.tensor([20, 1, 30], device="cuda")
    torch.manual_seed(3)
    with recorder.plainly():
        plain = [act([counts]) for _ in range(4)]
    while recorder.repeat([counts]) is None:
        pass
    torch.manual_seed(3)
    drawn = [recorder.repeat([counts]).clone() for _ in range(4)]
    assert all(torch.equal(one, other) for one, other in zip(drawn, plain, strict=True))
    assert len({tuple(picked.tolist()) for picked in drawn}) == 4


@on_gpu
def test_a_gpu_repeats_the_same_though_a_table_of_positions_has_grown_meanwhile() -> None:
    places = torch.arange(200, device="cuda")[None]
    encode = Sinusoidal(512).to("cuda")
    recorder: StepGraph[Any, Any] = StepGraph(lambda batches: encode(batches[0], 200).clone(), places.device)
    while (first := recorder.repeat([places])) is None:
        pass
    expected = first.clone()
    encode(places, 1000)
    others = [torch.full((256, 512), 7.0, device="cuda") for _ in range(20)]  # in what was given back
    assert torch.equal(recorder.repeat([places]), expected) and len(others) == 20


@on_gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", PARALLEL)
def test_a_gpu_repeats_a_recorded_step_of_a_model_that_writes_all_at_once(
    kind: str, precision: str, tmp_path: Path, make_recipe: Any, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    settings = {"training__steps": 30, "training__validate_every": 30, "training__log_every": 30}
    settings |= {"training__cuda_graph": True, "training__device": "cuda", "training__precision": precision}
    settings |= {"training__valid_sentences": 0, "batch__tokens": 600, "model__dropout": 0.1}
    recipe = make_recipe(model__kind="nat", **settings, **PARALLEL[kind])
    run_recipe(recipe, tmp_path / "repeated")
    assert played == [1] * 27
    never(monkeypatch)
    run_recipe(recipe, tmp_path / "plain")
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("repeated", "plain")]
    one, other = (json.loads(lines[0]) for lines in logs)
    # A first look that rounding lets see something else shows other tokens, so that more than rounding may differ.
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-3 if precision == "float32" else 2e-2)


@on_gpu
@pytest.mark.parametrize("kind", ["translator", "patches", "convolutions"])
def test_a_gpu_repeats_a_recorded_step(
    kind: str, painted: Path, tmp_path: Path, make_recipe: Any, monkeypatch: pytest.MonkeyPatch, played: list[int]
) -> None:
    settings = {
        "training__steps": 30,
        "training__validate_every": 10,
        "training__cuda_graph": True,
        "training__ema": 0.9,
    }
    settings |= {"training__device": "cuda"}
    recipe: Recipe
    if kind == "translator":
        recipe = make_recipe(batch__tokens=600, model__dropout=0.1, **settings)
    else:
        recipe = image_recipe(painted, model__drop_path=0.2, model__stem=kind, **settings)
    run_recipe(recipe, tmp_path / "repeated")
    assert played == [1] * 27
    never(monkeypatch)
    run_recipe(recipe, tmp_path / "plain")
    one, other = (
        safetensors.torch.load_file(tmp_path / name / "last" / "model.safetensors") for name in ("repeated", "plain")
    )
    for name, weight in one.items():
        torch.testing.assert_close(weight, other[name], atol=2e-3, rtol=2e-3, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch__layout": "padded"}, "training.cuda_graph is for batches of one size; set batch.layout"),
        ({"objective__r_drop": 1.0}, "training.cuda_graph is for plain teacher forcing; leave out objective"),
        ({"training__sharding": "fsdp"}, "training: cuda_graph is for a model that is whole in every process"),
        (
            {"model__kind": "nat", "model__length": "ctc", "batch__layout": "padded"},
            "training.cuda_graph is for batches of one size; set batch.layout",
        ),
        (
            {"model__kind": "nat", "model__attention": {"kind": "linear"}},
            "training.cuda_graph: is for full attention, not linear",
        ),
        (
            {
                "model__kind": "nat",
                "model__length": "end",
                "model__positions": "learned",
                "model__max_length": 64,
            },
            "model.max_length=64 bounds the longest; set data.max_length=30 or less",
        ),
    ],
)
def test_what_cannot_be_recorded_is_refused(make_recipe: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_recipe(training__cuda_graph=True, **changes)


def test_learned_positions_that_reach_are_recorded(make_recipe: Any, tmp_path: Path, played: list[int]) -> None:
    learned = {"model__positions": "learned", "model__max_length": 64, "data__max_length": 30}
    settings = {"training__steps": 5, "training__validate_every": 5, "training__valid_sentences": 0}
    recipe = make_recipe(
        model__kind="nat", model__length="end", batch__tokens=150, training__cuda_graph=True, **learned, **settings
    )
    run_recipe(recipe, tmp_path)
    assert played == [1] * 2
