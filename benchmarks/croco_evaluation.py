"""What shows that a model has learned to use the second view: its scores on pairs never trained on, and verdicts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from regard.data.two_view import SceneSettings
from regard.data.two_view.random import SceneRandom
from regard.data.two_view.stereo import StereoPair, read_scenes
from regard.evaluation.croco import CompletionScores, LabelledPairs, choose_visible, score_completion, second_views
from regard.inspection.two_view import draw_matches, draw_reconstructions, find_peaks
from regard.models.croco import CroCo
from regard.models.folder import find_model_folder, load_model
from regard.runtime import choose_device
from regard.training.recipe import Recipe
from regard.training.tasks.croco.data import HELD_OUT
from regard.training.tasks.croco.recipe import CroCoRecipe

CHOICE, TEST, FAR, APART = (factor * HELD_OUT for factor in (2, 3, 4, 5))
"""The numbers from which on scenes choose the layer, are like those of training, move all the way, lie apart."""
AT_A_TIME = 128
OWN_PLACE = 0.45
"""Where looking at one's own place hits more often than this, hits prove little."""
ZOOM = 2
"""How many views high a photograph is: one view high, matches would lie next to one's own place."""


def prove(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores the run in OUT/completion on scenes as in training, far apart and without overlap, and on photographs."""
    run = arguments.out / "completion"
    device = choose_device(arguments.device)
    recipe = Recipe.load(run / "recipe.yaml")
    assert isinstance(recipe, CroCoRecipe)
    model, masked, seed = load_croco(run, device), recipe.completion.mask_ratio, recipe.training.seed
    near, apart = recipe.data.scenes.changed(disjoint=0.0), recipe.data.scenes.changed(disjoint=1.0)
    far = near.changed(gradual=False)

    def scenes(settings: SceneSettings, first: int, many: int = arguments.pairs) -> Iterator[LabelledPairs]:
        return render_labelled(settings, seed, first, many, device)

    chosen = score_completion(model, scenes(far, CHOICE), masked)
    layer = max(chosen.hits, key=chosen.hits.__getitem__)
    parts = {
        "scenes": score_completion(model, scenes(near, TEST), masked),
        "far": score_completion(model, scenes(far, FAR), masked),
        "apart": score_completion(model, scenes(apart, APART), masked),
    }
    shows = judge(*parts.values(), layer)
    draw(arguments.out, "scenes", model, next(scenes(far, FAR, AT_A_TIME)), masked, layer)
    if arguments.data is not None:
        photos = [photo.resized(ZOOM * near.size[0]) for photo in read_scenes(arguments.data)]
        crops = list(cut_photos(photos, near.size, device))
        parts["photographs"] = score_completion(model, crops, masked)
        parts["photographs_apart"] = score_completion(model, list(cut_apart(photos, near.size, device)), masked)
        draw(arguments.out, "photographs", model, crops[0], masked, layer)
    return {name: asdict(scores) | {"gap": scores.gap, "gain": scores.gain} for name, scores in parts.items()} | {
        "layer": layer,
        "layer_hits_on_other_scenes": chosen.hits[layer],
        "shows": shows,
    }


def judge(near: CompletionScores, far: CompletionScores, apart: CompletionScores, layer: str) -> dict[str, bool]:
    """What was asked beforehand, and whether it is so."""
    return {
        "true at most half of shuffled": near.losses["true"] <= 0.5 * near.losses["shuffled"],
        "shuffled no better than none": near.losses["shuffled"] >= near.losses["none"],
        "the gap closes where views do not overlap": (
            abs(apart.gap) <= 0.1 * near.gap and abs(apart.gain) <= 0.1 * near.gain
        ),
        "the peak hits the true patch for at least 70 %": min(near.hits[layer], far.hits[layer]) >= 0.7,
        "the same for 70 % of those that are not at their own place, which are most where cameras are far apart": (
            far.moved_hits[layer] >= 0.7 and far.same_position <= OWN_PLACE
        ),
    }


def score_choice(arguments: argparse.Namespace, recipe: CroCoRecipe, run: Path) -> dict[str, float]:
    """How a run does on the scenes that choose, which are the recipe's own, whatever the run was trained on."""
    device = choose_device(arguments.device)
    settings, model = recipe.data.scenes.changed(disjoint=0.0, gradual=False), load_croco(run, device)
    batches = render_labelled(settings, recipe.training.seed, CHOICE, arguments.pairs, device)
    scores = score_completion(model, batches, recipe.completion.mask_ratio)
    return {
        "ratio": scores.losses["true"] / scores.losses["shuffled"],
        "hits": max(scores.hits.values()),
        "same_position": scores.same_position,
        "moved_hits": max(scores.moved_hits.values()),
    } | scores.losses


def load_croco(run: Path, device: torch.device | str) -> CroCo:
    model, _ = load_model(find_model_folder(run), device)
    assert isinstance(model, CroCo)
    return model


def render_labelled(
    settings: SceneSettings, seed: int, first: int, many: int, device: torch.device
) -> Iterator[LabelledPairs]:
    for numbers in (torch.arange(many, device=device) + first).split(AT_A_TIME):
        yield LabelledPairs.rendered(settings, seed, numbers)


def cut_photos(photos: list[StereoPair], size: tuple[int, int], device: torch.device) -> Iterator[LabelledPairs]:
    """Crops at the same place of both photographs, the next pair always another scene."""
    height, width = size
    for down in (0.0, 1.0):
        for across in (0.0, 0.5, 1.0):
            cut = []
            for photo in photos:
                top, left = (
                    round(share * (room - part))
                    for share, room, part in zip((down, across), photo.left.shape[-2:], size, strict=True)
                )
                part = (slice(top, top + height), slice(left, left + width))
                cut.append(label_crop(photo, part, photo.right[:, *part]))
            yield together(cut, device)


def cut_apart(photos: list[StereoPair], size: tuple[int, int], device: torch.device) -> Iterator[LabelledPairs]:
    """Crops at the left end of the left photograph and at the right end of the right one: nothing in common."""
    height, width = size
    for photo in photos:
        assert photo.left.shape[-1] >= 2 * width, f"{photo.name} is too narrow for two crops side by side"
    for rows in (slice(0, height), slice(-height, None)):
        cut = [label_crop(photo, (rows, slice(0, width)), photo.right[:, rows, -width:], True) for photo in photos]
        yield together(cut, device)


def label_crop(
    photo: StereoPair, part: tuple[slice, slice], view2: torch.Tensor, apart: bool = False
) -> tuple[torch.Tensor, ...]:
    """A crop of the left photograph with one of the right, and where what it shows is found there."""
    disparity, known = photo.disparity[part], photo.known[part]
    height, width = disparity.shape
    x, y = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    place = torch.stack((x - disparity, y), -1)
    inside = place[..., 0] >= 0
    covisible = photo.covisible[part] & inside & (not apart)
    unseen = torch.ones_like(known) if apart else known & ~covisible
    return photo.left[:, *part], view2, place, covisible, unseen


def together(cut: list[tuple[torch.Tensor, ...]], device: torch.device) -> LabelledPairs:
    return LabelledPairs(*(torch.stack(values).to(device) for values in zip(*cut, strict=True)))


def draw(out: Path, name: str, model: CroCo, pairs: LabelledPairs, masked: float, layer: str) -> None:
    """Completions with the true second view, another one and none; and what the attention takes for matches."""
    view1, seconds = pairs.view1[:8], second_views(pairs.view2[:8])
    seen = choose_visible(model, view1, masked, SceneRandom(0, torch.arange(len(view1), device=view1.device)))
    draw_reconstructions(model, view1, seen, list(seconds.values())).save(out / f"{name}-completed.png")
    attended = find_peaks(model, view1, seconds["true"], seen, [layer])[layer]
    for row in range(min(2, len(view1))):
        picture = draw_matches(view1, seconds["true"], attended, model.config.patch, row)
        picture.save(out / f"{name}-matches-{row}.png")
