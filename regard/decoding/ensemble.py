"""Several models as one step function: their probabilities are averaged at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decoding.stepper import TransformerState, TransformerStepper


@dataclass
class EnsembleState:
    """Each member's state; all have the same rows."""

    members: list[TransformerState]

    def select(self, rows: Tensor) -> EnsembleState:
        return EnsembleState([member.select(rows) for member in self.members])

    def uncovered(self) -> Tensor:
        return torch.stack([member.uncovered() for member in self.members]).mean(0)


class EnsembleStepper:
    """Drives models with the same vocabularies side by side."""

    def __init__(self, steppers: Sequence[TransformerStepper]) -> None:
        self.steppers = steppers
        self.bos, self.eos = steppers[0].bos, steppers[0].eos
        self.longest = min((s.longest for s in steppers if s.longest is not None), default=None)

    @property
    def device(self) -> torch.device:
        return self.steppers[0].device

    def start(self, sources: Sequence[Sequence[int]], copies: int) -> EnsembleState:
        return EnsembleState([stepper.start(sources, copies) for stepper in self.steppers])

    def step(self, tokens: Tensor, state: EnsembleState) -> tuple[Tensor, EnsembleState]:
        if len(self.steppers) == 1:  # the usual case, at no cost
            logp, member = self.steppers[0].step(tokens, state.members[0])
            return logp, EnsembleState([member])
        steps = [stepper.step(tokens, member) for stepper, member in zip(self.steppers, state.members, strict=True)]
        logp = torch.stack([logp for logp, _ in steps]).logsumexp(0) - math.log(len(steps))
        return logp, EnsembleState([member for _, member in steps])
