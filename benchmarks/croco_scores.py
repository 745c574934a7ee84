"""Scores of cross-view completion: how well CroCo completes a view, and how much the second view contributes.

Shapes: B pairs, N patches of a view, H height, W width in pixels.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.multi_head import grid_positions
from regard.data.two_view.pairs import find_matches, render_pairs
from regard.data.two_view.scene import SceneRandom, SceneSettings
from regard.evaluation.croco import choose_masked, choose_visible, masked_loss, second_views
from regard.inspection.two_view import cross_attention_names, find_peaks
from regard.layers import patchify
from regard.models.croco import CroCo


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of views with known correspondences.

    Attributes:
        view1, view2: Pixels in [0, 1], (B, 3, H, W).
        positions: Position in the second view of each pixel of the first, (x, y) in pixels, (B, H, W, 2).
        covisible: Whether the pixel is visible in the second view, (B, H, W).
        unseen: Whether it is certainly not visible; in photographs, some pixels are neither, (B, H, W).
    """

    view1: Tensor
    view2: Tensor
    positions: Tensor
    covisible: Tensor
    unseen: Tensor

    @classmethod
    def rendered(cls, settings: SceneSettings, seed: int, numbers: Tensor) -> "LabelledPairs":
        """Render scenes by number."""
        pairs = render_pairs(settings, seed, numbers)
        matches, _ = find_matches(pairs)
        return cls(pairs.views[0].image, pairs.views[1].image, matches.xy, matches.covisible, ~matches.covisible)

    def true_patches(self, patch: int) -> tuple[Tensor, Tensor]:
        """Return the row and column of the match of each patch centre, (B, N, 2), and whether the patch is covisible.

        A patch is covisible if its centre and at least half of its pixels are.
        """
        centres = slice(patch // 2, None, patch)
        matches = (self.positions[:, centres, centres] / patch).floor().flatten(1, 2).flip(-1)
        share = patchify(self.covisible[:, None].float(), (patch, patch)).mean(-1)
        return matches, (share >= 0.5) & self.covisible[:, centres, centres].flatten(1)

    def unseen_patches(self, patch: int) -> Tensor:
        """Return whether no pixel of a patch is visible in the second view, (B, N)."""
        return patchify(self.unseen[:, None].float(), (patch, patch)).amin(-1) > 0


@dataclass(frozen=True)
class CompletionScores:
    """Losses of completed first views, and hits of cross-attention.

    Attributes:
        overlap: Share of the first view that is visible in the second.
        losses: Loss with the true second view, with that of another pair, and with a blank one.
        covisible_losses, unseen_losses: Losses of these masked patches; empty if there are none.
        hits: For each cross-attention, the share of covisible patches whose peak is the true patch or a neighbour.
        same_position: The share of hits of a peak at the same position, as a baseline.
        moved: The share of covisible patches that the baseline misses.
        moved_hits: The hits among these.
    """

    pairs: int
    overlap: float
    losses: dict[str, float]
    covisible_losses: dict[str, float]
    unseen_losses: dict[str, float]
    hits: dict[str, float]
    same_position: float
    moved: float
    moved_hits: dict[str, float]

    @property
    def gap(self) -> float:
        """Advantage of the true second view over that of another pair."""
        return self.losses["shuffled"] - self.losses["true"]

    @property
    def gain(self) -> float:
        """Advantage of the true second view over a blank one."""
        return self.losses["none"] - self.losses["true"]


@torch.no_grad()
def score_completion(model: CroCo, batches: Iterable[LabelledPairs], masked: float, seed: int = 0) -> CompletionScores:
    """Score a model in evaluation mode. The masks depend on the seed and on the index of a pair."""
    sums: defaultdict[str, float] = defaultdict(float)
    for pairs in batches:
        _add_batch(sums, model, pairs, masked, seed)

    def losses(group: str) -> dict[str, float]:
        count = sums[f"{group} masked"]
        return {name: sums[f"{group} loss {name}"] / count for name in ("true", "shuffled", "none")} if count else {}

    def hits(group: str, total: str) -> dict[str, float]:
        return {name: sums[f"{group} {name}"] / max(1, sums[total]) for name in cross_attention_names(model)}

    covisible = max(1, sums["covisible"])
    return CompletionScores(
        pairs=int(sums["pairs"]),
        overlap=sums["overlap"] / sums["pairs"],
        losses=losses("all"),
        covisible_losses=losses("covisible"),
        unseen_losses=losses("unseen"),
        hits=hits("hits", "covisible"),
        same_position=(sums["covisible"] - sums["moved"]) / covisible,
        moved=sums["moved"] / covisible,
        moved_hits=hits("moved hits", "moved"),
    )


def _add_batch(sums: defaultdict[str, float], model: CroCo, pairs: LabelledPairs, share: float, seed: int) -> None:
    B, device = len(pairs.view1), pairs.view1.device
    numbers = torch.arange(B, device=device) + int(sums["pairs"])
    visible = choose_visible(model, pairs.view1, share, SceneRandom(seed, numbers))
    truth, covisible = pairs.true_patches(model.config.patch)
    same_position = grid_positions(*model.patch_embedding.grid(pairs.view1), device)[None]
    moved = covisible & ~_is_near(same_position, truth)
    masked = choose_masked(visible, truth.shape[1])
    groups = {
        "all": torch.ones_like(masked, dtype=torch.bool),
        "covisible": covisible.gather(1, masked),
        "unseen": pairs.unseen_patches(model.config.patch).gather(1, masked),
    }
    sums["pairs"] += B
    sums["covisible"] += int(covisible.sum())
    sums["moved"] += int(moved.sum())
    sums["overlap"] += float(pairs.covisible.float().mean()) * B
    for name, view2 in second_views(pairs.view2).items():
        loss = masked_loss(model, pairs.view1, view2, visible)
        for group, members in groups.items():
            sums[f"{group} loss {name}"] += float(loss[members].sum())
    for group, members in groups.items():
        sums[f"{group} masked"] += int(members.sum())
    for name, peaks in find_peaks(model, pairs.view1, pairs.view2, visible).items():
        near = _is_near(peaks.patch, truth)
        sums[f"hits {name}"] += int((near & covisible).sum())
        sums[f"moved hits {name}"] += int((near & moved).sum())


def _is_near(patch: Tensor, truth: Tensor) -> Tensor:
    """Return whether a patch is the true one or one of its eight neighbours; False if the truth is NaN."""
    return (patch - truth).abs().amax(-1) <= 1
