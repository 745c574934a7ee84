"""The proof of cross-view completion: what passes and what does not, on which pairs, and after how many steps."""

import importlib
import json
import signal
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from regard.attention.positions import grid_positions
from regard.data.two_view.stereo import StereoPair
from regard.evaluation.croco import CompletionScores, LabelledPairs
from regard.training.step_timing import Pace, StepTiming
from regard.training.tasks.croco.recipe import CroCoRecipe
from regard.training.tasks.croco.task import CompletionTask, MaskedPairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LAYER = "decoder.0.cross"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def scores(true: float, shuffled: float, none: float, hits: float = 0.8, own: float = 0.3) -> CompletionScores:
    losses = {"true": true, "shuffled": shuffled, "none": none}
    return CompletionScores(8, 0.7, losses, losses, losses, {LAYER: hits}, own, 1 - own, {LAYER: hits})


GOOD = (scores(0.4, 0.9, 0.85), scores(0.5, 0.9, 0.85), scores(0.86, 0.86, 0.85))


def test_a_model_that_does_what_was_asked_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(module("croco_evaluation", monkeypatch).judge(*GOOD, LAYER).values())


@pytest.mark.parametrize(
    ("place", "other", "claims"),
    [
        (0, scores(0.5, 0.9, 0.85), ["true at most half"]),
        (0, scores(0.3, 0.8, 0.85), ["shuffled no better"]),
        (2, scores(0.7, 0.86, 0.85), ["the gap closes"]),
        (2, scores(1.0, 1.0, 0.85), ["the gap closes"]),  # a view that only leads astray
        (2, scores(0.85, 0.7, 0.85), ["the gap closes"]),
        (1, scores(0.5, 0.9, 0.85, hits=0.6), ["the peak hits", "the same for 70 %"]),
        (1, scores(0.5, 0.9, 0.85, own=0.76), ["the same for 70 %"]),  # where one's own place would do
        (1, replace(GOOD[1], moved_hits={LAYER: 0.5}), ["the same for 70 %"]),
    ],
)
def test_each_claim_can_fail(
    place: int, other: CompletionScores, claims: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [other if number == place else good for number, good in enumerate(GOOD)]
    shows = module("croco_evaluation", monkeypatch).judge(*given, LAYER)
    failed = [claim for claim, shown in shows.items() if not shown]
    assert len(failed) == len(claims)
    assert all(claim.startswith(start) for claim, start in zip(failed, claims, strict=True))


def own_place(pairs: LabelledPairs, patch: int) -> float:
    truth, covisible = pairs.true_patches(patch)
    rows, columns = (size // patch for size in pairs.view1.shape[-2:])
    near = (grid_positions(rows, columns, "cpu")[None] - truth).abs().amax(-1) <= 1
    return float((near & covisible).sum() / covisible.sum())


def test_matches_of_the_recipe_lie_elsewhere_than_at_their_own_place(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = module("croco_evaluation", monkeypatch)
    recipe = CroCoRecipe.load(Path("croco-scenes"), [], {})
    far = recipe.data.scenes.changed(disjoint=0.0, gradual=False)
    patch = recipe.model_settings().patch
    (pairs,) = proof.render_labelled(far, 1, proof.FAR, 96, torch.device("cpu"))
    assert own_place(pairs, patch) <= proof.OWN_PLACE - 0.05
    assert own_place(pairs, 2 * patch) > 0.9, "with larger patches it would prove nothing"


def photo(seed: int) -> StereoPair:
    chance = torch.Generator().manual_seed(seed)
    left, right = (torch.rand(3, 16, 40, generator=chance) for _ in range(2))
    disparity = torch.full((16, 40), 4.0)
    known = torch.ones(16, 40, dtype=torch.bool)
    known[:, 10:12] = False
    return StereoPair(f"photo {seed}", left, right, disparity, known, known & (torch.arange(40) >= 4))


def test_crops_of_photographs_know_what_is_where(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, photos = module("croco_evaluation", monkeypatch), [photo(1), photo(2)]
    first, *others = proof.cut_photos(photos, (8, 16), torch.device("cpu"))
    assert len(others) == 5 and len(first.view1) == 2
    assert torch.equal(first.view1[1], photos[1].left[:, :8, :16])
    assert torch.equal(others[-1].view2[0], photos[0].right[:, 8:, 24:])
    assert first.positions[0, 2, 7].tolist() == [3.5, 2.5]
    assert first.covisible[0, 0].tolist() == [False] * 4 + [True] * 6 + [False] * 2 + [True] * 4
    assert first.unseen[0, 0].tolist() == [True] * 4 + [False] * 12, "what was not measured may be anywhere"
    assert first.unseen_patches(4)[0].tolist() == [True, False, False, False] * 2
    for apart in proof.cut_apart(photos, (8, 16), torch.device("cpu")):
        assert apart.unseen.all() and not apart.covisible.any()
    assert torch.equal(apart.view1[0], photos[0].left[:, 8:, :16])
    assert torch.equal(apart.view2[0], photos[0].right[:, 8:, 24:])


def run(steps: int, pixels_off: float, scored: int | None = None) -> dict[str, object]:
    last = {"step": steps if scored is None else scored, "pixels_off": pixels_off, "pixels_off_flat": 1.5}
    return {"steps": steps, "log": [last]}


@pytest.mark.parametrize(
    ("pretrained", "scratch", "shown"),
    [
        (run(20, 1.0), run(20, 2.0), [True, True]),
        (run(20, 1.4), run(20, 1.0), [False, True]),
        (run(20, 1.6), run(20, 2.0), [True, False]),  # neither has learned anything
        (run(20, 1.0), run(12, 2.0), [False, False]),
        (run(12, 1.0), run(12, 2.0), [False, False]),  # equal, but not as many as were chosen
        (run(20, 1.0), run(20, 2.0, scored=18), [False, False]),
        (run(20, 1.0), {"steps": 2, "log": []}, [False, False]),
    ],
)
def test_pretraining_is_judged_after_equal_steps(
    pretrained: dict[str, object], scratch: dict[str, object], shown: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = module("croco_training", monkeypatch).judge_disparity(pretrained, scratch, 20)
    assert list(judged.values()) == shown


TINY = [
    *("model.preset=micro", "model.width=16", "model.heads=2", "model.decoder_width=16", "model.decoder_heads=2"),
    *("data.scenes.size=[16,16]", "data.scenes.objects=1", "data.hold_out=4", "batch.pairs=4", "training.device=cpu"),
]


def test_the_steps_that_were_done_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = module("croco_training", monkeypatch)
    recipe = training.fitted(training.load("croco-scenes", TINY), 4)
    assert training.run_within(recipe, tmp_path / "whole", 600) == 4
    make = CompletionTask.make

    def until_time_is_up(task: CompletionTask, numbers: torch.Tensor, batch: int) -> MaskedPairs:
        if batch == 2:
            signal.raise_signal(signal.SIGTERM)
        return make(task, numbers, batch)

    monkeypatch.setattr(CompletionTask, "make", until_time_is_up)
    assert training.run_within(recipe, tmp_path / "cut", 600) == 3
    assert "stopped after 600 s" in capsys.readouterr().out


def test_a_trial_times_steps_that_rise_and_steps_that_have_risen(monkeypatch: pytest.MonkeyPatch) -> None:
    planning, load = module("croco_planning", monkeypatch), module("croco_training", monkeypatch).load
    seen: list[int] = []
    make = CompletionTask.make

    def noting(task: CompletionTask, numbers: torch.Tensor, batch: int) -> MaskedPairs:
        pairs = make(task, numbers, batch)
        seen.append(pairs.visible.shape[1])
        return pairs

    monkeypatch.setattr(CompletionTask, "make", noting)
    speed = planning.measure_speed(load("croco-scenes", TINY), 0)
    assert speed.rising > 0
    assert speed.settled > 0
    rehearsed, *taken = seen
    first = Pace.on(torch.device("cpu")).warm_up + planning.EACH
    assert [rehearsed, *taken] == [6] * (1 + first) + [2] * (1 + planning.EACH)  # of 16: 0.6 masked, then 0.9


def test_a_trial_is_not_misled_by_a_stretch_that_was_compiled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    planning, load = module("croco_planning", monkeypatch), module("croco_training", monkeypatch).load
    timing = StepTiming("pairs", milliseconds=[9000.0, 50.0, 50.0, 8000.0, 20.0, 700.0, 20.0])
    monkeypatch.setattr(planning, "time_steps", lambda *given, **more: timing)
    assert planning.measure_speed(load("croco-scenes", TINY), 1) == pytest.approx((0.05 * 0.6 + 0.02 * 0.4, 0.02))
    assert planning.measure_speed(load("croco-scenes", [*TINY, "completion.ramp_levels=2"]), 1) == (0.05, 0.02)
    assert planning.measure_speed(load("croco-scenes", [*TINY, "completion.initial_mask_ratio=null"]), 1) == (
        0.02,
        0.02,
    )


@pytest.mark.parametrize("seconds", [1.0, 60.0, 100.0, 5000.0])
def test_as_many_steps_are_planned_as_take_the_time(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    planning, load = module("croco_planning", monkeypatch), module("croco_training", monkeypatch).load
    recipe, speed = load("croco-scenes", TINY), planning.Speed(rising=0.05, settled=0.02)
    steps = planning.count_steps(recipe, speed, seconds)
    rising = planning.fitted(recipe, steps).completion.ramp_steps
    assert rising * speed.rising + (steps - rising) * speed.settled == pytest.approx(seconds, abs=0.2)
    assert planning.count_steps(recipe, speed, 0.01) == 20


def test_steps_that_are_given_need_no_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = module("croco_training", monkeypatch)
    monkeypatch.delattr(training, "measure_speed")
    found = training.train(Namespace(steps=3, set=TINY, device="cpu", out=tmp_path), 10)
    assert (found["steps_planned"], found["steps"], found["pairs"]) == (3, 3, 12)
    with pytest.raises(NameError):
        training.train(Namespace(steps=None, share=0.8, set=TINY, device="cpu", out=tmp_path / "trial"), 10)


def test_models_of_several_patches_do_not_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    racing = module("croco_variants", monkeypatch)
    arguments = Namespace(variant=["plain", "coarse model.patch=8"], out=tmp_path, set=[], device="cpu")
    with pytest.raises(SystemExit, match=r"coarse: model\.patch= cannot differ within a race"):
        racing.race(arguments, 1.0, lambda run: {})
    assert all("patch" not in variant for variant in racing.VARIANTS)


@pytest.mark.parametrize("out", ["/home/somebody/runs/proof", "../elsewhere/proof", "proof/"])
def test_results_name_no_folders_of_the_machine(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    croco = module("croco", monkeypatch)
    words = ["all", "--minutes", "7", f"--out={out}", "--data", "/srv/stereo-middlebury", "--set", "optim.lr=2e-3"]
    told = [croco.tell(word, Path(out)) for word in [*words, "data.images=/srv/pairs", "--race", "1/2"]]
    assert told == [
        *("all", "--minutes", "7", "--out=runs/proof", "--data", "stereo-middlebury", "--set", "optim.lr=2e-3"),
        *("data.images=pairs", "--race", "1/2"),
    ]
    monkeypatch.setattr(sys, "argv", ["croco.py", "check", "--out", str(tmp_path)])
    croco.save(tmp_path, "check", {}, torch.device("cpu"))
    (command,) = json.loads((tmp_path / "croco.json").read_text("utf-8"))["commands"]
    assert command == f"python benchmarks/croco.py check --out runs/{tmp_path.name}"
