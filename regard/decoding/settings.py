"""Settings of search, and of decoding with non-autoregressive models."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator
from torch import Tensor

from regard.config import Settings
from regard.errors import UserError
from regard.layers import Model
from regard.models.nat import NATransformer, TargetLength

Length = TypeVar("Length", float, Tensor)

DEFAULT_BEAM = 5
DEFAULT_ITERATIONS = 4
DEFAULT_SAMPLES = 32
DEFAULT_EPSILON = 0.02
SAMPLING = ("temperature", "top_k", "top_p", "epsilon")
"""Settings that select sampling."""
MAX_TOKENS = 100_000
"""Upper bound of all length settings: search allocates memory for the longest translation in advance."""


class SearchSettings(Settings):
    """Settings of beam search, greedy search (beam 1), sampling (temperature, top_k, top_p, epsilon) and MBR."""

    beam: int | None = Field(
        None, ge=1, le=1000, description=f"beam width, {DEFAULT_BEAM} by default; 1 is greedy search"
    )
    n_best: int = Field(1, ge=1, description="number of hypotheses returned per sentence")
    length_penalty: Literal["average", "wu", "none"] = Field(
        "average", description="divide the score by length^alpha, by ((5 + length) / 6)^alpha, or not at all"
    )
    alpha: float = Field(1.0, ge=0, description="exponent of the length penalty")
    coverage: float = Field(0.0, ge=0, description="weight of the coverage penalty of Wu et al. (2016)")
    stop: Literal["exact", "first"] = Field(
        "exact",
        description="exact: stop when no unfinished hypothesis can still win; first: stop when `beam` hypotheses ended",
    )
    min_length: int = Field(0, ge=0, lt=MAX_TOKENS, description="minimum number of target tokens, END not counted")
    max_length: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="maximum number of target tokens, END counted; replaces max_ratio"
    )
    max_ratio: float = Field(
        2.0, ge=0, le=100, description="a translation has at most max_ratio · source length + max_extra tokens"
    )
    max_extra: int = Field(20, ge=0, le=MAX_TOKENS)
    no_repeat: int = Field(0, ge=0, description="no n-gram of this size occurs twice; 0 disables the constraint")
    groups: int = Field(1, ge=1, description="number of groups in diverse beam search")
    diversity: float = Field(0.5, ge=0, description="penalty of a token for each earlier group that chose it")
    temperature: float | None = Field(None, gt=0, description="sample; below 1 sharper, above 1 flatter")
    top_k: int | None = Field(None, ge=1, description="sample among the k most probable tokens")
    top_p: float | None = Field(None, gt=0, le=1, description="sample from the nucleus of this probability mass")
    epsilon: float | None = Field(None, gt=0, lt=1, description="sample among tokens with at least this probability")
    seed: int = Field(0, ge=0, description="seed of sampling; the same sentence and seed give the same samples")
    mbr: Literal["chrf", "bleu"] | None = Field(
        None, description="minimum Bayes risk decoding: return the candidate that is most similar to all samples"
    )
    samples: int = Field(
        DEFAULT_SAMPLES,
        ge=2,
        le=10_000,
        description="number of samples for mbr, by default with epsilon 0.02; with beam, the beam adds candidates",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_length is not None and self.min_length >= self.max_length:
            raise ValueError(f"min_length {self.min_length} must be less than max_length {self.max_length}")
        if self.length_penalty == "none" and self.alpha != 1:
            raise ValueError(f"alpha {self.alpha:g} has no effect with length_penalty none; omit it")
        if self.mbr is not None:
            self._check_mbr()
            return self
        if self.samples != DEFAULT_SAMPLES:
            raise ValueError("samples requires mbr; n_best is the number of samples that are returned")
        if self.sampling:
            option = next(name for name in SAMPLING if getattr(self, name) is not None)
            if self.beam not in (None, 1):
                raise ValueError(f"beam {self.beam} and {option} exclude each other: use beam search or sampling")
            if self.groups > 1 or self.coverage:
                raise ValueError(f"groups and coverage require beam search, but {option} selects sampling")
            return self
        if self.seed:
            raise ValueError("seed requires sampling: set temperature, top_k, top_p or epsilon, or omit seed")
        if self.diversity != 0.5 and self.groups == 1:
            raise ValueError("diversity requires groups > 1")
        if self.n_best > self.beam_width:
            raise ValueError(f"n_best {self.n_best} exceeds the beam width {self.beam_width}")
        if self.beam_width % self.groups:
            raise ValueError(f"beam {self.beam_width} is not divisible by {self.groups} groups")
        return self

    def _check_mbr(self) -> None:
        if self.groups > 1 or self.coverage:
            raise ValueError("groups and coverage require beam search; omit them or mbr")
        if self.n_best > self.samples + (self.beam or 0):
            raise ValueError(f"n_best {self.n_best} exceeds the number of candidates of mbr; set samples")

    @property
    def sampling(self) -> bool:
        return any(getattr(self, option) is not None for option in SAMPLING)

    @property
    def beam_width(self) -> int:
        """Number of hypotheses that are extended in parallel per sentence."""
        if self.mbr is not None:
            return max(self.samples, self.beam or 0)
        if self.sampling:
            return self.n_best
        return DEFAULT_BEAM if self.beam is None else self.beam

    @property
    def candidates(self) -> int:
        """Number of hypotheses per sentence that are available by default."""
        return DEFAULT_BEAM if self.sampling or self.mbr is not None else self.beam_width

    @property
    def stops_when_full(self) -> bool:
        """Whether a sentence is decided once K hypotheses have finished, even if others could score higher."""
        return self.stop == "first" or self.beam_width == 1

    def resolved(self) -> dict[str, Any]:
        """Return all settings as plain values, with defaults filled in."""
        return self.model_dump(mode="json") | {"beam": self.beam_width if self.mbr is None else self.beam}

    def for_samples(self) -> Self:
        """Return the settings of the samples of MBR decoding."""
        defaults = {} if self.sampling else {"epsilon": DEFAULT_EPSILON}
        return self.changed(mbr=None, samples=DEFAULT_SAMPLES, n_best=self.samples, beam=None, **defaults)

    def for_beam(self) -> Self:
        """Return the settings of the beam search that adds candidates to MBR decoding."""
        off = dict.fromkeys((*SAMPLING, "mbr"))
        return self.changed(**off, samples=DEFAULT_SAMPLES, n_best=self.beam or 1, beam=self.beam, seed=0)

    def max_target_length(self, source_length: int) -> int:
        """Return the maximum number of target tokens, END included, for a source of this length."""
        if self.max_length is not None:
            return self.max_length
        in_ratio = int(round(self.max_ratio * source_length, 6))  # 1.15 · 20 is 22.999999999999996 in floating point
        return max(self.min_length + 1, in_ratio + self.max_extra, 1)

    def length_normaliser(self, length: Length) -> Length:
        """Return the divisor of the cumulative log-probability of `length` tokens; elementwise for a tensor."""
        if self.length_penalty == "none":
            return length**0
        divisor: Length = (length if self.length_penalty == "average" else (5 + length) / 6) ** self.alpha
        return divisor


class NATSettings(Settings):
    """Settings of decoding with a non-autoregressive model."""

    iterations: int | None = Field(
        None,
        ge=1,
        le=100,
        description="number of mask-predict iterations; by default "
        f"{DEFAULT_ITERATIONS} for models with length: classifier and 1 for others",
    )
    lengths: int = Field(1, ge=1, le=100, description="number of target lengths that are tried; the best result wins")
    beam: int = Field(
        1, ge=1, le=1000, description="beam width of CTC prefix search, or of search in a graph; 1 takes the best path"
    )
    path: Literal["greedy", "lookahead", "viterbi"] = Field(
        "lookahead",
        description="path through a graph: the best transitions, the best transitions with the tokens they lead to, or "
        "the best path as a whole",
    )
    alpha: float = Field(1.0, ge=0, description="scores of paths through a graph are divided by length^alpha")
    n_best: int = Field(1, ge=1, description="number of hypotheses returned per sentence")
    rerank: Path | None = Field(None, description="autoregressive model that reranks the results")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.n_best > self.candidates:
            raise ValueError(f"n_best {self.n_best} exceeds the {self.candidates} results that lengths and beam give")
        if self.rerank is not None and self.candidates == 1:
            raise ValueError("rerank requires several results: set lengths, or beam for a model with CTC or a graph")
        if self.beam > 1 and self.path != "lookahead":
            raise ValueError(f"path {self.path} and beam {self.beam} exclude each other; omit one of them")
        return self

    @property
    def candidates(self) -> int:
        """Maximum number of hypotheses per sentence."""
        return self.lengths * self.beam

    def resolve(self, length: TargetLength) -> Self:
        """Fill in the defaults of a model with this kind of length prediction."""
        iterative, is_graph = length == "classifier", length == "dag"
        for name, changed, supported, needed in (
            ("iterations", (self.iterations or 1) > 1, iterative, "classifier"),
            ("lengths", self.lengths > 1, iterative, "classifier"),
            ("beam", self.beam > 1, is_graph or length == "ctc", "ctc or dag"),
            ("path", self.path != "lookahead", is_graph, "dag"),
            ("alpha", self.alpha != 1, is_graph, "dag"),
        ):
            if changed and not supported:
                value = getattr(self, name)
                raise UserError(f"{name} {value} needs a model with length: {needed}; this one has length: {length}")
        return self if self.iterations else self.changed(iterations=DEFAULT_ITERATIONS if iterative else 1)

    def graph_search(self, n_best: int) -> SearchSettings:
        """Return the settings of beam search in a graph."""
        return SearchSettings(beam=self.beam, n_best=n_best, alpha=self.alpha)

    def resolved(self) -> dict[str, Any]:
        """Return all settings as plain values."""
        return self.model_dump(mode="json")


DecodingSettings = SearchSettings | NATSettings
_MODEL_KINDS: dict[type[DecodingSettings], str] = {SearchSettings: "autoregressive", NATSettings: "non-autoregressive"}


def settings_for_model(model_type: type[Model]) -> type[DecodingSettings]:
    """Return the settings class of a class of models."""
    return NATSettings if issubclass(model_type, NATransformer) else SearchSettings


def check_settings_type(settings: DecodingSettings, expected: type[DecodingSettings]) -> None:
    """Check that `settings` are of the class that the model accepts."""
    if not isinstance(settings, expected):
        kind = _MODEL_KINDS[expected]
        raise UserError(f"this model is {kind}: pass {expected.__name__}, not {type(settings).__name__}")


def check_setting_keys(expected: type[DecodingSettings], keys: Iterable[str], where: str) -> None:
    """Check that no key belongs only to the settings of the other kind of model."""
    (other,) = set(_MODEL_KINDS) - {expected}
    for key in keys:
        if key not in expected.model_fields and key in other.model_fields:
            raise UserError(
                f"{where}: {key} is a setting of {_MODEL_KINDS[other]} models; this model is {_MODEL_KINDS[expected]} "
                f"and accepts {', '.join(expected.model_fields)}"
            )


def parse_settings(expected: type[DecodingSettings], values: Mapping[str, Any], where: str) -> DecodingSettings:
    """Build the settings of a model from plain values."""
    check_setting_keys(expected, values, where)
    return expected.parse(values, where)
