"""Cross-view completion as a task: most of the first view is hidden, and filled in from the second."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.data.two_view.random import SceneRandom
from regard.evaluation.croco import BLANK, choose_visible, masked_loss, second_views
from regard.models.croco import CroCo
from regard.models.folder import save_model
from regard.pipelines.preprocessing import VIEWS
from regard.training.state import DataShard, Position, Positioned
from regard.training.task import LossSum, Step, Validation
from regard.training.tasks.croco.pairs import HELD_OUT, PairSource, in_parts
from regard.training.tasks.croco.recipe import CroCoRecipe


class Sliced(Protocol):
    """A batch of pairs."""

    def __len__(self) -> int: ...

    def part(self, which: slice) -> Self: ...


P = TypeVar("P", bound=Sliced)


@dataclass(frozen=True)
class MaskedPairs:
    """Pairs of which the model sees few patches of the first view."""

    view1: Tensor
    view2: Tensor
    seen: Tensor  # (B, K)

    def __len__(self) -> int:
        return len(self.view1)

    def part(self, which: slice) -> MaskedPairs:
        return replace(self, view1=self.view1[which], view2=self.view2[which], seen=self.seen[which])


class CroCoTask(ABC, Generic[P]):
    """What tasks of two views have in common: batch n holds the pairs from n times its size on."""

    def __init__(self, model: CroCo, recipe: CroCoRecipe, device: torch.device) -> None:
        self.model, self.recipe, self.device = model, recipe, device
        if recipe.training.compile:
            model.compile()
        self.width = model.config.width

    @abstractmethod
    def make(self, numbers: Tensor, batch: int) -> P:
        """The pairs with these numbers, as training batch number `batch`."""

    def batches(self, position: Position, share: DataShard) -> Iterator[Positioned[P]]:
        planned = (Positioned(number, Position(batch=number + 1)) for number in count(position.batch))
        return (Positioned(self._batch(item.batch), item.after) for item in share.pick(planned))

    def largest(self) -> P:
        """The first: no other one has more patches to read."""
        return self._batch(0)

    def count(self, batch: P) -> int:
        return len(batch)

    def size(self, batch: P) -> int:
        return len(batch)

    def split(self, batch: P) -> tuple[P, P] | None:
        half = len(batch) // 2
        return (batch.part(slice(0, half)), batch.part(slice(half, None))) if half else None

    def describe(self, batch: P) -> str:
        height, width = self.recipe.data.scenes.size
        return (
            f"{len(batch)} pairs of {height}×{width} pixels" if len(batch) > 1 else f"a pair of {height}×{width} pixels"
        )

    def advise(self, batch: P) -> str:
        return f"batch.pairs={len(batch) // 2}" if len(batch) > 1 else "a smaller data.scenes.size, or a smaller model"

    def save(self, folder: Path, model: nn.Module, scores: dict[str, Any]) -> None:
        assert isinstance(model, CroCo)
        save_model(folder, model, {VIEWS: list(self.recipe.data.scenes.size)})
        (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")

    def held_out(self) -> list[Tensor]:
        """The numbers of the validation's pairs, as many at a time as a batch has."""
        numbers = torch.arange(self.recipe.data.hold_out, device=self.device) + HELD_OUT
        return [part for part in in_parts(numbers, max(2, self.recipe.batch.pairs)) if len(part) > 1]

    def _batch(self, number: int) -> P:
        size = self.recipe.batch.pairs
        return self.make(torch.arange(size, device=self.device) + number * size, number)


class CompletionTask(CroCoTask[MaskedPairs]):
    """The pixels of hidden patches, each in its patch's mean and deviation, from the rest and from the other view."""

    def __init__(self, model: CroCo, source: PairSource, recipe: CroCoRecipe, device: torch.device) -> None:
        super().__init__(model, recipe, device)
        self.source = source

    def make(self, numbers: Tensor, batch: int) -> MaskedPairs:
        view1, view2 = self.source.take(numbers)
        draws = SceneRandom(self.recipe.training.seed + 1, numbers)  # numbers of their own, not those of the scenes
        seen = choose_visible(self.model, view1, self.recipe.completion.mask_ratio_at(batch), draws)
        alone = draws.bernoulli(self.recipe.completion.drop_second_view)
        return MaskedPairs(view1, torch.where(alone[:, None, None, None], BLANK, view2), seen)

    def loss(self, batch: MaskedPairs, step: Step) -> LossSum:
        loss = masked_loss(self.model, batch.view1, batch.view2, batch.seen)
        return LossSum(loss.mean(1).sum(), len(batch))

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Validation:
        """The loss on pairs never trained on, and beside it that with another pair's second view, and with none."""
        assert isinstance(model, CroCo)
        model.eval()
        sums: dict[str, Tensor] = {}
        for numbers in self.held_out():
            view1, true = self.source.take(numbers)
            seen = choose_visible(model, view1, self.recipe.completion.mask_ratio, SceneRandom(0, numbers))
            for name, view2 in second_views(true).items():
                sums[name] = sums.get(name, 0) + masked_loss(model, view1, view2, seen).mean(1).sum()
        count = sum(map(len, self.held_out()))
        loss, shuffled, none = (float(sums[name]) / count for name in ("true", "shuffled", "none"))
        return Validation({"loss": loss, "shuffled": shuffled, "none": none, "score": -loss})
