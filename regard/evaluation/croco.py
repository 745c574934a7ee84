"""Cross-view completion with CroCo: the visible patches, the loss of the masked ones, and the compared second views.

Shapes: B pairs, N patches of a view, K visible patches of the first view, M masked ones, H height, W width in pixels.
"""

import torch
from torch import Tensor

from regard.data.two_view.scene import SceneRandom
from regard.layers import gather_tokens
from regard.models.croco import CroCo

BLANK = 0.5
"""Grey level of a blank second view."""


def choose_visible(model: CroCo, view1: Tensor, masked: float, draws: SceneRandom) -> Tensor:
    """Draw the visible patches of the first view of each pair, at least one, (B, K)."""
    rows, columns = model.patch_embedding.grid(view1)
    N = rows * columns
    K = max(1, N - round(masked * N))
    return draws.uniform(0, 1, N).argsort(dim=1, stable=True)[:, :K]


def choose_masked(visible: Tensor, N: int) -> Tensor:
    """Return all other patches in ascending order, (B, M)."""
    masked = torch.ones(len(visible), N, dtype=torch.uint8, device=visible.device).scatter(1, visible, 0)
    return masked.argsort(dim=1, descending=True, stable=True)[:, : N - visible.shape[1]]


def masked_loss(model: CroCo, view1: Tensor, view2: Tensor, visible: Tensor) -> Tensor:
    """Return the mean squared error of each masked patch, normalised per patch, (B, M)."""
    targets = model.normalised_patches(view1)
    masked = choose_masked(visible, targets.shape[1])
    predicted = gather_tokens(model(view1, view2, visible), masked).float()
    return (predicted - gather_tokens(targets, masked)).square().mean(-1)


def second_views(view2: Tensor) -> dict[str, Tensor]:
    """Return the second views that are compared: the true one, that of the next pair, and a blank one."""
    return {"true": view2, "shuffled": view2.roll(1, 0), "none": torch.full_like(view2, BLANK)}
