"""What the process that speaks HTTP and those that own a model say to each other. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.text.tokenizer import Tokenizer
from regard.errors import ErrorKind, UserError

Options = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class LoadRequest:
    """What a worker is to load, and how it is to work."""

    name: str
    run: Path
    device: str = "auto"
    threads: int | None = None
    search: dict[str, Any] = field(default_factory=dict)
    engine: str | None = None
    precision: str | None = None


@dataclass(frozen=True)
class ModelInfo:
    """What a worker says of the model that it has loaded and warmed up.

    Attributes:
        operations: what it can be asked for, as `Job.operation` names it.
        languages: from which into which, where it translates.
        tokenizer: of the source, where it reads text.
        longest: the most source tokens that it can read, where there is a limit.
        search: its settings of the search, where it translates.
        sections: which of the page's sections it can fill.
        lacks: what its folder is missing, without which it cannot do what such models do.
        engine: what computes: regard, or ctranslate2, which does not show its attention and gives no vectors.
    """

    name: str
    kind: str
    operations: tuple[str, ...]
    parameters: int
    device: str
    languages: tuple[str, str] | None = None
    tokenizer: Tokenizer | None = None
    longest: int | None = None
    search: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    lacks: str | None = None
    engine: str = "regard"


@dataclass(frozen=True)
class Job:
    """One item and what is to be done with it; jobs of one operation and the same options can share a batch."""

    operation: str
    item: Any
    options: Options = ()
    size: int = 1

    @property
    def company(self) -> tuple[str, Options, int]:
        """What jobs of one batch have in common: also, roughly, their size, or the short would wait for the long."""
        return self.operation, self.options, max(0, self.size.bit_length() - 6) // 2


@dataclass(frozen=True)
class Batch:
    """Items that go through the model together."""

    operation: str
    options: Options
    items: Sequence[Any]


@dataclass(frozen=True)
class BatchResult:
    """The answer to a batch: a result for each item."""

    results: list[Any]


@dataclass(frozen=True)
class Rejected:
    """A batch, or an order, with something in it that the user can put right; `kind` as `UserError` has it."""

    sentence: str
    kind: ErrorKind = UserError.kind


@dataclass(frozen=True)
class Failed:
    """A batch that went wrong within the model."""

    sentence: str


@dataclass(frozen=True)
class Alignment:
    """How much each target token looked at each source token, and where in the two texts the tokens stand.

    Attributes:
        weights: a row for each target token, END last if there is one; in a row, source tokens, END last.
        source: the pieces of the source; `source_spans` says which characters each covers.
        target: the pieces of the translation; `target_spans` says which characters each covers.
    """

    weights: list[list[float]]
    source: list[str]
    target: list[str]
    source_spans: list[tuple[int, int]]
    target_spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence."""

    text: str
    score: float
    tokens: int
    alignment: Alignment | None = None
