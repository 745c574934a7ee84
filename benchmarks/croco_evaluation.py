"""Evaluation of cross-view completion: scores on held-out pairs, criteria, and figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from croco_scores import CompletionScores, LabelledPairs, score_completion
from PIL import Image
from stereo import StereoPair, read_scenes
from torch import Tensor

from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.evaluation.croco import choose_visible, second_views
from regard.inspection.two_view import draw_matches, find_peaks, to_image
from regard.layers import patchify, unpatchify
from regard.models.croco import CroCo
from regard.models.folder import find_model_folder, load_model
from regard.ops.dispatch import choose_device
from regard.training.tasks.croco import HELD_OUT, CroCoRecipe
from regard.training.tasks.registry import load_recipe

LAYER_SCENES, TEST, LARGE_BASELINE, DISJOINT = (factor * HELD_OUT for factor in (2, 3, 4, 5))
"""First index of the scenes that select the layer, that resemble training, of largest baseline, without overlap."""
BATCH = 128
GAP = 4
"""Pixels between the images of `draw_reconstructions`."""
MAX_SAME_POSITION = 0.45
"""If the same position is correct more often than this, correct attention peaks prove little."""
PHOTO_SCALE = 2
"""Height of a photograph in views; at height 1, matches would lie next to the same position."""


def evaluate(arguments: argparse.Namespace) -> dict[str, Any]:
    """Score the run in OUT/completion on held-out scenes and on photographs, and check the criteria."""
    run = arguments.out / "completion"
    device = choose_device(arguments.device)
    recipe = load_recipe(run / "recipe.yaml")
    assert isinstance(recipe, CroCoRecipe)
    model, mask_ratio, seed = load_croco(run, device), recipe.completion.mask_ratio, recipe.training.seed
    usual, disjoint = recipe.data.scenes.changed(disjoint=0.0), recipe.data.scenes.changed(disjoint=1.0)
    far = usual.changed(gradual=False)

    def scenes(settings: SceneSettings, first: int, count: int = arguments.pairs) -> Iterator[LabelledPairs]:
        return render_labelled(settings, seed, first, count, device)

    selection = score_completion(model, scenes(far, LAYER_SCENES), mask_ratio)
    layer = max(selection.hits, key=selection.hits.__getitem__)
    scores = {
        "scenes": score_completion(model, scenes(usual, TEST), mask_ratio),
        "far": score_completion(model, scenes(far, LARGE_BASELINE), mask_ratio),
        "apart": score_completion(model, scenes(disjoint, DISJOINT), mask_ratio),
    }
    criteria = check_criteria(*scores.values(), layer)
    draw(arguments.out, "scenes", model, next(scenes(far, LARGE_BASELINE, BATCH)), mask_ratio, layer)
    if arguments.data is not None:
        photos = [photo.resized(PHOTO_SCALE * usual.size[0]) for photo in read_scenes(arguments.data)]
        crops = list(crop_photos(photos, usual.size, device))
        scores["photographs"] = score_completion(model, crops, mask_ratio)
        scores["photographs_apart"] = score_completion(model, crop_disjoint(photos, usual.size, device), mask_ratio)
        draw(arguments.out, "photographs", model, crops[0], mask_ratio, layer)
    return {name: asdict(one) | {"gap": one.gap, "gain": one.gain} for name, one in scores.items()} | {
        "layer": layer,
        "layer_hits_on_other_scenes": selection.hits[layer],
        "criteria": criteria,
    }


def check_criteria(
    usual: CompletionScores, far: CompletionScores, disjoint: CompletionScores, layer: str
) -> dict[str, bool]:
    """Check the criteria on scenes as in training, of largest baseline, and without overlap."""
    return {
        "the loss with the true second view is at most half of that with a shuffled one": (
            usual.losses["true"] <= 0.5 * usual.losses["shuffled"]
        ),
        "a shuffled second view is no better than none": usual.losses["shuffled"] >= usual.losses["none"],
        "the gap closes if views do not overlap": (
            abs(disjoint.gap) <= 0.1 * usual.gap and abs(disjoint.gain) <= 0.1 * usual.gain
        ),
        "attention peaks are correct for at least 70 % of patches": min(usual.hits[layer], far.hits[layer]) >= 0.7,
        "the same holds for moved patches, which are the majority at the largest baselines": (
            far.moved_hits[layer] >= 0.7 and far.same_position <= MAX_SAME_POSITION
        ),
    }


def load_croco(run: Path, device: torch.device | str) -> CroCo:
    model, _ = load_model(find_model_folder(run), device)
    assert isinstance(model, CroCo)
    return model


def render_labelled(
    settings: SceneSettings, seed: int, first: int, count: int, device: torch.device
) -> Iterator[LabelledPairs]:
    for indices in (torch.arange(count, device=device) + first).split(BATCH):
        yield LabelledPairs.rendered(settings, seed, indices)


def crop_photos(photos: list[StereoPair], size: tuple[int, int], device: torch.device) -> Iterator[LabelledPairs]:
    """Crop both photographs at the same position; a batch contains each scene once."""
    height, width = size
    for vertical in (0.0, 1.0):
        for horizontal in (0.0, 0.5, 1.0):
            crops = []
            for photo in photos:
                photo_height, photo_width = photo.left.shape[-2:]
                top, left = round(vertical * (photo_height - height)), round(horizontal * (photo_width - width))
                crop = (slice(top, top + height), slice(left, left + width))
                crops.append(label_crop(photo, crop, photo.right[:, *crop]))
            yield stack(crops, device)


def crop_disjoint(photos: list[StereoPair], size: tuple[int, int], device: torch.device) -> Iterator[LabelledPairs]:
    """Crop the left end of the left photograph and the right end of the right one, which do not overlap."""
    height, width = size
    for photo in photos:
        assert photo.left.shape[-1] >= 2 * width, f"{photo.name} is too narrow for two crops side by side"
    for rows in (slice(0, height), slice(-height, None)):
        crops = [
            label_crop(photo, (rows, slice(0, width)), photo.right[:, rows, -width:], disjoint=True) for photo in photos
        ]
        yield stack(crops, device)


def label_crop(
    photo: StereoPair, crop: tuple[slice, slice], view2: Tensor, disjoint: bool = False
) -> tuple[Tensor, ...]:
    """Return the two views, the position of each pixel in the second view, and masks of covisible and unseen pixels."""
    disparity, known = photo.disparity[crop], photo.known[crop]
    height, width = disparity.shape
    x, y = torch.meshgrid(torch.arange(width) + 0.5, torch.arange(height) + 0.5, indexing="xy")
    positions = torch.stack((x - disparity, y), -1)
    inside = positions[..., 0] >= 0
    covisible = photo.covisible[crop] & inside & (not disjoint)
    unseen = torch.ones_like(known) if disjoint else known & ~covisible
    return photo.left[:, *crop], view2, positions, covisible, unseen


def stack(crops: list[tuple[Tensor, ...]], device: torch.device) -> LabelledPairs:
    return LabelledPairs(*(torch.stack(values).to(device) for values in zip(*crops, strict=True)))


def draw(out: Path, name: str, model: CroCo, pairs: LabelledPairs, mask_ratio: float, layer: str) -> None:
    """Draw reconstructions with the true, another and no second view, and matches of the cross-attention."""
    view1, views2 = pairs.view1[:8], second_views(pairs.view2[:8])
    random = SceneRandom(0, torch.arange(len(view1), device=view1.device))
    visible = choose_visible(model, view1, mask_ratio, random)
    draw_reconstructions(model, view1, visible, list(views2.values())).save(out / f"{name}-completed.png")
    peaks = find_peaks(model, view1, views2["true"], visible, [layer])[layer]
    for row in range(min(2, len(view1))):
        image = draw_matches(view1, views2["true"], peaks, model.config.patch, row)
        image.save(out / f"{name}-matches-{row}.png")


@torch.no_grad()
def draw_reconstructions(model: CroCo, view1: Tensor, visible: Tensor, second_views: list[Tensor]) -> Image.Image:
    """Draw masked first views and their reconstructions with several second views, one row per pair.

    Reconstructed patches are drawn with the mean and variance of the true patches, which the model does not predict.

    Args:
        model: With a pixel head.
        view1: Pixels between 0 and 1, (B, 3, H, W).
        visible: Indices of the visible patches of the first view, (B, K).
        second_views: Second views, each like `view1`.

    Returns:
        Columns: masked first view; each second view followed by the reconstruction; complete first view.
    """
    patches = patchify(view1, model.patch_embedding.patch).shape[1]
    is_visible = torch.zeros(len(view1), patches, dtype=torch.bool, device=view1.device).scatter(1, visible, True)
    columns = [_mix_patches(model, is_visible, view1, torch.full_like(view1, 0.85))]
    for view2 in second_views:
        reconstruction = model.unnormalise_patches(model(view1, view2, visible).float(), view1)
        columns += [view2, _mix_patches(model, is_visible, view1, reconstruction)]
    columns.append(view1)
    images = [[to_image(column[row], 2) for column in columns] for row in range(len(view1))]
    width, height = images[0][0].size
    sheet = Image.new("RGB", ((width + GAP) * len(columns) - GAP, (height + GAP) * len(view1) - GAP), "white")
    for y, row_images in enumerate(images):
        for x, image in enumerate(row_images):
            sheet.paste(image, (x * (width + GAP), y * (height + GAP)))
    return sheet


def _mix_patches(model: CroCo, is_visible: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """Combine the visible patches of one image with the other patches of another."""
    size = model.patch_embedding.patch
    mixed = torch.where(is_visible[..., None], patchify(inside, size), patchify(outside, size))
    return unpatchify(mixed, model.patch_embedding.grid(inside), size)
