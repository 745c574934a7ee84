"""How well a view is completed from another one, and what of that is owed to the other view.

Shapes: B pairs, N patches of a view, K patches of the first view that are seen, M masked ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.positions import grid_positions
from regard.data.two_view import SceneSettings, find_matches, render_pairs
from regard.data.two_view.random import SceneRandom
from regard.inspection.two_view import cross_attention_names, find_peaks
from regard.layers import gather_tokens, patchify
from regard.models.croco import CroCo

BLANK = 0.5
"""A second view that shows nothing is grey all over."""


def choose_visible(model: CroCo, view1: Tensor, masked: float, draws: SceneRandom) -> Tensor:
    """Which patches of the first view are seen, drawn for each pair, (B, K): at least one."""
    rows, columns = model.patch_embedding.grid(view1)
    N = rows * columns
    seen = max(1, N - round(masked * N))
    return draws.uniform(0, 1, N).argsort(dim=1, stable=True)[:, :seen]


def choose_masked(seen: Tensor, N: int) -> Tensor:
    """All other patches, in order, (B, M)."""
    hidden = torch.ones(len(seen), N, dtype=torch.uint8, device=seen.device).scatter(1, seen, 0)
    return hidden.argsort(dim=1, descending=True, stable=True)[:, : N - seen.shape[1]]


def masked_loss(model: CroCo, view1: Tensor, view2: Tensor, seen: Tensor) -> Tensor:
    """The mean squared error of each masked patch, in its own mean and deviation, (B, M)."""
    targets = model.patches(view1)
    hidden = choose_masked(seen, targets.shape[1])
    said = gather_tokens(model(view1, view2, seen), hidden).float()
    return (said - gather_tokens(targets, hidden)).square().mean(-1)


def second_views(view2: Tensor) -> dict[str, Tensor]:
    """What a pair's completion is tried with: its true second view, that of the next pair, and none."""
    return {"true": view2, "shuffled": view2.roll(1, 0), "none": torch.full_like(view2, BLANK)}


@dataclass(frozen=True)
class LabelledPairs:
    """Pairs of views for which it is known what is where.

    Args:
        view1: pixels between 0 and 1, (B, 3, H, W).
        view2: the same of the other view.
        place: where in the second view each pixel of the first is, (x, y) in pixels, (B, H, W, 2).
        covisible: whether it can be seen there, (B, H, W).
        unseen: whether it surely cannot; of a photograph, some pixels are neither, (B, H, W).
    """

    view1: Tensor
    view2: Tensor
    place: Tensor
    covisible: Tensor
    unseen: Tensor

    @classmethod
    def rendered(cls, settings: SceneSettings, seed: int, numbers: Tensor) -> LabelledPairs:
        """Rendered scenes by number."""
        pairs = render_pairs(settings, seed, numbers)
        matches, _ = find_matches(pairs)
        return cls(pairs.views[0].image, pairs.views[1].image, matches.xy, matches.covisible, ~matches.covisible)

    def true_patches(self, patch: int) -> tuple[Tensor, Tensor]:
        """The row and column where the middle of each patch is found, (B, N, 2), and which patches are covisible.

        That is, at least half of a patch is, and its middle.
        """
        middle = slice(patch // 2, None, patch)
        place = (self.place[:, middle, middle] / patch).floor().flatten(1, 2).flip(-1)
        share = patchify(self.covisible[:, None].float(), (patch, patch)).mean(-1)
        return place, (share >= 0.5) & self.covisible[:, middle, middle].flatten(1)

    def unseen_patches(self, patch: int) -> Tensor:
        """Which patches have nothing in them that the second view shows, (B, N)."""
        return patchify(self.unseen[:, None].float(), (patch, patch)).amin(-1) > 0


@dataclass(frozen=True)
class CompletionScores:
    """How well first views are completed, and where the model looks.

    Args:
        pairs: how many there were.
        overlap: the share of the first view that can be seen in the second.
        losses: with the true second view, with that of another pair, and with none.
        covisible_losses: the same on the masked patches that are covisible; nothing where there are none.
        unseen_losses: the same on those of which the second view shows nothing.
        hits: for each cross-attention, the share of covisible patches whose peak is the true patch or next to it.
        same_place: the hits of always looking at one's own place, which needs no model.
        moved: the share of covisible patches for which that is no hit.
        moved_hits: the hits among these alone.
    """

    pairs: int
    overlap: float
    losses: dict[str, float]
    covisible_losses: dict[str, float]
    unseen_losses: dict[str, float]
    hits: dict[str, float]
    same_place: float
    moved: float
    moved_hits: dict[str, float]

    @property
    def gap(self) -> float:
        """By how much the true second view is better than another pair's."""
        return self.losses["shuffled"] - self.losses["true"]

    @property
    def gain(self) -> float:
        """By how much the true second view is better than none."""
        return self.losses["none"] - self.losses["true"]


@torch.no_grad()
def score_completion(model: CroCo, batches: Iterable[LabelledPairs], masked: float, seed: int = 0) -> CompletionScores:
    """Scores a model in evaluation mode; what is masked follows from the seed and a pair's place among all."""
    sums: defaultdict[str, float] = defaultdict(float)
    for pairs in batches:
        B, device = len(pairs.view1), pairs.view1.device
        numbers = torch.arange(B, device=device) + int(sums["pairs"])
        seen = choose_visible(model, pairs.view1, masked, SceneRandom(seed, numbers))
        truth, covisible = pairs.true_patches(model.config.patch)
        own = grid_positions(*model.patch_embedding.grid(pairs.view1), device)[None]
        moved = covisible & ~_near(own, truth)
        hidden = choose_masked(seen, truth.shape[1])
        kinds = {
            "all": torch.ones_like(hidden, dtype=torch.bool),
            "covisible": covisible.gather(1, hidden),
            "unseen": pairs.unseen_patches(model.config.patch).gather(1, hidden),
        }
        sums["pairs"] += B
        sums["covisible"] += int(covisible.sum())
        sums["moved"] += int(moved.sum())
        sums["overlap"] += float(pairs.covisible.float().mean()) * B
        for name, view2 in second_views(pairs.view2).items():
            loss = masked_loss(model, pairs.view1, view2, seen)
            for kind, which in kinds.items():
                sums[f"{kind} loss {name}"] += float(loss[which].sum())
        for kind, which in kinds.items():
            sums[f"{kind} hidden"] += int(which.sum())
        for name, attended in find_peaks(model, pairs.view1, pairs.view2, seen).items():
            near = _near(attended.patch, truth)
            sums[f"hits {name}"] += int((near & covisible).sum())
            sums[f"moved hits {name}"] += int((near & moved).sum())

    def losses(kind: str) -> dict[str, float]:
        count = sums[f"{kind} hidden"]
        return {name: sums[f"{kind} loss {name}"] / count for name in ("true", "shuffled", "none")} if count else {}

    def hits(kind: str, of: str) -> dict[str, float]:
        return {name: sums[f"{kind} {name}"] / max(1, sums[of]) for name in cross_attention_names(model)}

    visible = max(1, sums["covisible"])
    return CompletionScores(
        pairs=int(sums["pairs"]),
        overlap=sums["overlap"] / sums["pairs"],
        losses=losses("all"),
        covisible_losses=losses("covisible"),
        unseen_losses=losses("unseen"),
        hits=hits("hits", "covisible"),
        same_place=(sums["covisible"] - sums["moved"]) / visible,
        moved=sums["moved"] / visible,
        moved_hits=hits("moved hits", "moved"),
    )


def _near(patch: Tensor, truth: Tensor) -> Tensor:
    """Where a patch is the true one or one of its eight neighbours; never where the truth is no number."""
    return (patch - truth).abs().amax(-1) <= 1
