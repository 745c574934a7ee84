"""Messages between the server process and its worker processes. This module does not import torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from regard.data.text.languages import convertible_languages
from regard.data.text.tokenizer import Tokenizer

UNFINISHED = "run"
"""Kind of a training run that has not saved a model yet."""
Terms = tuple[tuple[str, str], ...]
"""A glossary: pairs of a source term and its translation."""
Options = tuple[tuple[str, Any], ...]
"""Keyword arguments of an operation, as pairs so that they can be hashed."""
Alignments = bool | Literal["json"]
"""Whether translations contain alignments; `"json"` if they are only needed for a response."""
LONG_TOKENS = 64
"""Size of a long job. Such jobs have other batch keys than shorter ones."""
PIXELS_PER_TOKEN = 100_000
"""Pixels whose decoding takes about as long as the translation of a token."""


@dataclass(frozen=True)
class LoadRequest:
    """The model that a worker should load, and how to run it.

    Attributes:
        run: model folder or training run.
        search: changed search settings.
        engine: `"regard"` or `"ctranslate2"`; None selects the engine by the format of the folder.
        precision: precision of the weights, such as `"int8"`.
        languages: source and target language of a model with several directions.
    """

    name: str
    run: Path
    device: str = "auto"
    threads: int | None = None
    search: dict[str, Any] = field(default_factory=dict)
    engine: str | None = None
    precision: str | None = None
    languages: tuple[str, str] | None = None


@dataclass(frozen=True)
class ModelInfo:
    """Description of a loaded model, sent by its worker.

    Attributes:
        operations: operations of the API that the model supports; see `Job.operation`.
        languages: source and target language of a translation model.
        tokenizer: source tokenizer of a translation model.
        max_source_tokens: longest source that the model can encode, if it has a limit.
        longest_source: tokens of the longest source in the training data, if known.
        search: search settings of a translation model.
        sections: sections of the page that the model supports.
        lacks: missing part of the model folder, such as `"tokenizer"`.
        engine: `"regard"`, or `"ctranslate2"`, which provides neither attention weights nor embeddings.
    """

    name: str
    kind: str
    operations: tuple[str, ...]
    parameters: int
    device: str
    languages: tuple[str, str] | None = None
    tokenizer: Tokenizer | None = None
    max_source_tokens: int | None = None
    longest_source: int | None = None
    search: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    lacks: str | None = None
    engine: str = "regard"

    @property
    def source(self) -> str | None:
        return self.languages and self.languages[0]

    @property
    def target(self) -> str | None:
        return self.languages and self.languages[1]

    @property
    def sources(self) -> tuple[str, ...]:
        """The source language, and the other script of Chinese if text can be converted."""
        return convertible_languages(self.languages[0]) if self.languages else ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The target language, and the other script of Chinese if text can be converted."""
        return convertible_languages(self.languages[1]) if self.languages else ()


@dataclass(frozen=True)
class Job:
    """One item and the operation to run on it.

    Attributes:
        size: number of source tokens, for limiting the size of a batch. An image has one for every
            `PIXELS_PER_TOKEN` pixels.
    """

    operation: str
    item: Any
    options: Options = ()
    size: int = 1

    @property
    def batch_key(self) -> tuple[str, Options, int]:
        """Jobs with equal keys can share a batch.

        The key contains the order of magnitude of the size, so that short sentences do not wait for long ones.
        """
        return self.operation, self.options, max(0, self.size.bit_length() - 5) // 2

    @property
    def is_long(self) -> bool:
        """Whether the job may take seconds."""
        return self.size >= LONG_TOKENS


@dataclass(frozen=True)
class Batch:
    """Items that the model processes together."""

    operation: str
    options: Options
    items: Sequence[Any]


class BatchFailedError(Exception):
    """A batch raised an unexpected exception; the worker process is still running."""


@dataclass(frozen=True)
class Alignment:
    """Cross-attention weights between a translation and its source.

    Attributes:
        weights: rows are target tokens and END, columns are source tokens and END.
        source, target: tokens as text.
        source_spans, target_spans: character range of each token.
    """

    weights: list[list[float]]
    source: list[str]
    target: list[str]
    source_spans: list[tuple[int, int]]
    target_spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Quality:
    """Confidence and flags of a translation.

    Attributes:
        confidence: calibrated probability that the translation agrees with a reference; None if not calibrated.
        tokens: start and end in the text, and confidence, of each token; empty if not calibrated.
        flags: suspected faults by name, each with a detail.
    """

    confidence: float | None
    tokens: list[tuple[int, int, float]]
    flags: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of an `ApiTranslation`."""
        tokens = [{"start": start, "end": end, "confidence": confidence} for start, end, confidence in self.tokens]
        return {"confidence": self.confidence, "flags": self.flags, "tokens": tokens}


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence. If the alignment is only needed for a response, it is encoded as JSON."""

    text: str
    score: float
    alignment: Alignment | None = None
    alignment_json: str | None = None
    terms: list[dict[str, Any]] | None = None
    quality: Quality | None = None

    def to_json(self) -> str:
        """Return an `ApiTranslation`."""
        details = {} if self.quality is None else self.quality.as_dict()
        details |= {} if self.terms is None else {"terms": self.terms}
        fields = json.dumps({"text": self.text, "score": self.score} | details, ensure_ascii=False)
        if self.alignment_json is None:
            return fields
        return f'{fields[:-1]}, "alignment": {self.alignment_json}}}'
