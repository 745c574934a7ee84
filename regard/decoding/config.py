"""How to look for a translation: every option of search in one place, checked against each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings
from regard.errors import UserError

Length = TypeVar("Length", float, Tensor)

DEFAULT_BEAM = 5
DEFAULT_ROUNDS = 4
MOST_TOKENS = 100_000
"""Memory for the longest translation is set aside at once, so that there is a limit to what may be asked for."""


class SearchSettings(Settings):
    """How to look for the best hypothesis: a beam, greedy search (beam 1), or sampling (temperature, top_k, top_p)."""

    beam: int | None = Field(None, ge=1, le=1000, description="hypotheses kept a sentence, 5 unless given; 1: greedy")
    n_best: int = Field(1, ge=1, description="hypotheses returned a sentence")
    length_penalty: Literal["average", "wu", "none"] = Field(
        "average", description="score divided by length^alpha, by ((5 + length) / 6)^alpha, or not at all"
    )
    alpha: float = Field(1.0, ge=0, description="the exponent of the length penalty")
    coverage: float = Field(0.0, ge=0, description="weight of Wu et al.'s penalty on source tokens never looked at")
    stop: Literal["exact", "first"] = Field(
        "exact", description="stop when nothing unfinished can still win, or as soon as `beam` hypotheses have ended"
    )
    min_length: int = Field(
        0, ge=0, lt=MOST_TOKENS, description="tokens that a translation has at least, END not counted"
    )
    max_length: int | None = Field(
        None, ge=1, le=MOST_TOKENS, description="tokens at the most, END counted, in place of the ratio"
    )
    max_ratio: float = Field(
        2.0, ge=0, le=100, description="a translation has at most max_ratio · source + max_extra tokens"
    )
    max_extra: int = Field(20, ge=0, le=MOST_TOKENS)
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
        if self.length_penalty == "none" and self.alpha != 1:
            raise ValueError(f"alpha {self.alpha:g} has no effect with length_penalty none; leave it away")
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

    def in_force(self) -> dict[str, Any]:
        """Every setting as it is, also where it was left to the default."""
        return self.model_dump(mode="json") | {"beam": self.width}

    @property
    def candidates(self) -> int:
        """How many hypotheses of a sentence there are to choose from, unless it is said."""
        return DEFAULT_BEAM if self.samples else self.width

    def limit(self, source_length: int) -> int:
        """The most tokens, END included, that a translation of so many source tokens may have."""
        if self.max_length is not None:
            return self.max_length
        return max(self.min_length + 1, int(self.max_ratio * source_length) + self.max_extra, 1)

    def normaliser(self, length: Length) -> Length:
        """What a sum of log-probabilities over so many tokens is divided by; of a tensor, for each of its lengths."""
        if self.length_penalty == "none":
            return length**0
        divisor: Length = (length if self.length_penalty == "average" else (5 + length) / 6) ** self.alpha
        return divisor


class NATSettings(Settings):
    """How a model that writes all tokens at once fills its canvas."""

    rounds: int | None = Field(
        None,
        ge=1,
        le=100,
        description="passes over the canvas, between which the least certain tokens are masked again; "
        f"{DEFAULT_ROUNDS} unless given, where the model can",
    )
    lengths: int = Field(1, ge=1, le=100, description="likeliest lengths that are tried at once; the best result wins")
    beam: int = Field(1, ge=1, le=1000, description="of a CTC model's prefix search; 1 takes its best path")
    n_best: int = Field(1, ge=1, description="hypotheses returned a sentence")
    rerank: Path | None = Field(None, description="a model that writes token by token, which chooses among the results")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_best > self.candidates:
            raise ValueError(f"n_best {self.n_best} is more than the {self.candidates} results of lengths or beam")
        if self.rerank is not None and self.candidates == 1:
            raise ValueError("rerank chooses among several results; give lengths, or beam with a CTC model")
        return self

    @property
    def candidates(self) -> int:
        """How many hypotheses of a sentence can be returned at the most."""
        return self.lengths * self.beam

    def fit(self, length: Literal["classifier", "end", "ctc"]) -> Self:
        """The settings as a model takes them that knows its length so.

        Raises:
            UserError: it cannot do what they ask for.
        """
        refines = length == "classifier"
        asked = {"rounds": (self.rounds or 1, refines), "lengths": (self.lengths, refines)}
        for name, (value, possible) in (asked | {"beam": (self.beam, length == "ctc")}).items():
            if value > 1 and not possible:
                needed = "length: ctc" if name == "beam" else "length: classifier"
                raise UserError(f"{name} {value} needs a model with {needed}; this one has length: {length}")
        return self if self.rounds else self.changed(rounds=DEFAULT_ROUNDS if refines else 1)

    def in_force(self) -> dict[str, Any]:
        """Every setting as it is."""
        return self.model_dump(mode="json")


DecodingSettings = SearchSettings | NATSettings
_WAYS: dict[type[DecodingSettings], str] = {
    SearchSettings: "writes one token after another",
    NATSettings: "writes all tokens at once",
}


def settings_for_kind(kind: str) -> type[DecodingSettings]:
    """The settings of a kind of model, as config.json names it."""
    return NATSettings if kind == "nat" else SearchSettings


def check_settings_type(settings: DecodingSettings, wanted: type[DecodingSettings]) -> None:
    """Does nothing where these settings are for a model that takes `wanted`.

    Raises:
        UserError: they are for the other way of writing.
    """
    if not isinstance(settings, wanted):
        raise UserError(f"this model {_WAYS[wanted]}: give {wanted.__name__}, not {type(settings).__name__}")


def check_setting_keys(wanted: type[DecodingSettings], keys: Iterable[str], where: str) -> None:
    """Does nothing where no key is for models that write the other way alone.

    Raises:
        UserError: one is.
    """
    (other,) = set(_WAYS) - {wanted}
    for key in keys:
        if key not in wanted.model_fields and key in other.model_fields:
            raise UserError(
                f"{where}: {key} is for a model that {_WAYS[other]}; this one {_WAYS[wanted]} and takes "
                f"{', '.join(wanted.model_fields)}"
            )


def parse_settings(wanted: type[DecodingSettings], values: Mapping[str, Any], where: str) -> DecodingSettings:
    """The settings that a model takes, from plain values.

    Raises:
        UserError: a value is wrong, or a key is unknown or for models that write the other way.
    """
    check_setting_keys(wanted, values, where)
    return wanted.parse(values, where)
