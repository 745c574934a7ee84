"""What comes out of a translator, as objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from regard.decoding.search import Expansion


@dataclass(frozen=True)
class Node:
    """An expansion of the beam, with its token as it reads."""

    expansion: Expansion
    piece: str


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a text.

    Attributes:
        text: the translation.
        score: the sum of log-probabilities after penalties; comparable among hypotheses of one search.
        tokens: ids, without END.
        pieces: the tokens as they read, spaces as "▁".
        log_probabilities: of each token, and of END last.
        source_pieces: the tokens of the source.
        alignment: where asked for: how much each target token, END last, looked at each source token, END last.
        phrases: whether each required phrase stands in the text, and each forbidden one does not.
        tree: where asked for: every expansion of the beam that led here; the same for all hypotheses of a text.
    """

    text: str
    score: float
    tokens: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    source_pieces: list[str] = field(default_factory=list)
    alignment: list[list[float]] | None = None
    phrases: dict[str, bool] = field(default_factory=dict)
    tree: list[Node] | None = None
