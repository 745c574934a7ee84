"""What comes out of a translator, as objects."""

from __future__ import annotations

from dataclasses import dataclass, field

from regard.decoding.search import BeamNode


@dataclass(frozen=True)
class Node:
    """An expansion of the beam, with its token as it reads."""

    expansion: BeamNode
    piece: str


@dataclass(frozen=True)
class Round:
    """The whole canvas after one pass of a model that writes all tokens at once, as it reads.

    Attributes:
        pieces: at every place; "·" is CTC's blank, "END" what cuts the canvas.
        log_probabilities: of each, when it was written.
        written: whether this pass wrote it, or one before.
    """

    pieces: list[str]
    log_probabilities: list[float]
    written: list[bool]


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a text.

    Attributes:
        text: the translation.
        score: the sum of log-probabilities after penalties; comparable among hypotheses of one search.
        tokens: ids, without END.
        pieces: the tokens as they read, spaces as "▁".
        log_probabilities: of each token, and of END last, if the model says one: those with a length classifier or
            CTC do not.
        source_pieces: the tokens of the source.
        alignment: where asked for: how much each target token, END last if there is one, looked at each source token,
            END last.
        phrases: whether each required phrase stands in the text, and each forbidden one does not.
        tree: where asked for: every expansion of the beam that led here; the same for all hypotheses of a text.
        rounds: where asked for, of a model that writes all tokens at once: the canvas after each of its passes.
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
    rounds: list[Round] | None = None

    @property
    def labels(self) -> list[str]:
        """The pieces as the rows of `alignment` have them, with END where the model says one."""
        return [*self.pieces, "END"] if len(self.log_probabilities) > len(self.tokens) else self.pieces
