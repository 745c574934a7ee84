"""Two views of a scene as a picture: where patches of the first are found in the second."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from PIL import Image

from regard.errors import UserError
from regard.inspection.patches import Grid, check_patch
from regard.inspection.two_view import AttentionPeaks, cross_attention_names, draw_matches, find_peaks
from regard.models.croco import CroCo
from regard.models.folder import CONFIG, load_model
from regard.pipelines.views import open_view, view_size


def draw_views(
    folder: Path,
    paths: tuple[Path, Path],
    device: torch.device,
    names: Collection[str] | None = None,
    patch: Grid | None = None,
) -> tuple[Image.Image, str]:
    """Lines from patches of one view to what they attend to most in the other, and whose attention that is.

    Args:
        folder: a model folder of two views.
        paths: the images.
        device: where it works.
        names: one attention to the other view, such as "decoder.3.cross"; the one with the clearest peaks unless given.
        patch: row and column of the only patch to be followed; those with the clearest peaks unless given.

    Raises:
        UserError: an image is bad, there is no such patch, or the model has no such attention.
    """
    model, about = load_model(folder, device)
    assert isinstance(model, CroCo)
    size = view_size(about, model.config.patch, str(folder / CONFIG))
    rows, columns = (side // model.config.patch for side in size)
    check_patch(patch, (rows, columns))
    wanted = _choose(model, names)
    view1, view2 = (open_view(path, size).to(device) for path in paths)
    found = find_peaks(model, view1, view2, names=wanted)
    name = max(found, key=lambda name: float(found[name].weight.mean()))
    attended = found[name]
    if patch is not None:
        only = torch.full_like(attended.weight, -1.0)
        only[0, patch[0] * columns + patch[1]] = 1.0
        attended = AttentionPeaks(attended.patch, only)
    picture = draw_matches(view1, view2, attended, model.config.patch, most=16 if patch is None else 1)
    return picture, name


def _choose(model: CroCo, names: Collection[str] | None) -> list[str]:
    """The attentions to be looked at.

    Raises:
        UserError: there is no such one.
    """
    known = cross_attention_names(model)
    for name in names or ():
        if name not in known:
            raise UserError(f"--only {name}: attentions to the other view are {', '.join(known)}")
    return list(names or known)
