"""How to look for a translation: every option of search in one place, checked against each other."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings

DEFAULT_BEAM = 5


class SearchSettings(Settings):
    """How to look for the best hypothesis: a beam, greedy search (beam 1), or sampling (temperature, top_k, top_p)."""

    beam: int | None = Field(None, ge=1, le=1000, description="hypotheses kept a sentence, 5 unless given; 1: greedy")
    n_best: int = Field(1, ge=1, description="hypotheses returned a sentence")
    length_penalty: Literal["average", "wu", "none"] = Field(
        "average", description="score divided by length^alpha, by ((5 + length) / 6)^alpha, or not at all"
    )
    alpha: float = Field(1.0, ge=0)
    coverage: float = Field(0.0, ge=0, description="weight of Wu et al.'s penalty on source tokens never looked at")
    stop: Literal["exact", "first"] = Field(
        "exact", description="stop when nothing unfinished can still win, or as soon as `beam` hypotheses have ended"
    )
    min_length: int = Field(0, ge=0, description="tokens that a translation has at least, END not counted")
    max_length: int | None = Field(None, ge=1, description="tokens at the most, END counted, in place of the ratio")
    max_ratio: float = Field(2.0, ge=0, description="a translation has at most max_ratio · source + max_extra tokens")
    max_extra: int = Field(20, ge=0)
    no_repeat: int = Field(0, ge=0, description="no sequence of so many tokens comes twice; 0 allows it")
    groups: int = Field(1, ge=1, description="parts of the beam that are kept different from each other")
    diversity: float = Field(0.5, ge=0, description="what a token loses for each earlier group that chose it")
    temperature: float | None = Field(None, gt=0, description="sample; below 1 sharper, above 1 flatter")
    top_k: int | None = Field(None, ge=1, description="sample among the k likeliest tokens")
    top_p: float | None = Field(None, gt=0, le=1, description="sample among the likeliest tokens of this share")
    seed: int = Field(0, ge=0, description="for sampling: the same sentence and seed give the same samples")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_length is not None and self.min_length >= self.max_length:
            raise ValueError(f"min_length {self.min_length} leaves no room below max_length {self.max_length}")
        if self.samples:
            given = [name for name in ("temperature", "top_k", "top_p") if getattr(self, name) is not None]
            if self.beam not in (None, 1):
                raise ValueError(f"beam {self.beam} and {given[0]} contradict each other: search a beam, or sample")
            if self.groups > 1 or self.coverage:
                raise ValueError(f"groups and coverage belong to a beam, {given[0]} to sampling: choose one")
            return self
        if self.seed:
            raise ValueError("seed belongs to sampling; give temperature, top_k or top_p too, or leave it away")
        if self.diversity != 0.5 and self.groups == 1:
            raise ValueError("diversity needs groups, the parts of the beam that are kept different")
        if self.n_best > self.width:
            raise ValueError(f"n_best {self.n_best} is more than the {self.width} hypotheses of the beam")
        if self.width % self.groups:
            raise ValueError(f"beam {self.width} cannot be divided into {self.groups} groups")
        return self

    @property
    def samples(self) -> bool:
        return any(option is not None for option in (self.temperature, self.top_k, self.top_p))

    @property
    def width(self) -> int:
        """How many hypotheses of a sentence are pursued at once."""
        if self.samples:
            return self.n_best
        return DEFAULT_BEAM if self.beam is None else self.beam

    def limit(self, source_length: int) -> int:
        """The most tokens, END included, that a translation of so many source tokens may have."""
        if self.max_length is not None:
            return self.max_length
        return max(self.min_length + 1, int(self.max_ratio * source_length) + self.max_extra, 1)

    def normaliser(self, length: Tensor) -> Tensor:
        """What a sum of log-probabilities over so many tokens is divided by."""
        length = length.double()
        if self.length_penalty == "none":
            return torch.ones_like(length)
        return (length if self.length_penalty == "average" else (5 + length) / 6) ** self.alpha
