"""Results of a translator."""

from __future__ import annotations

from dataclasses import dataclass, field

from regard.decoding.stepper import BeamNode


@dataclass(frozen=True)
class TreeNode:
    """A node of the beam search tree with the text of its token."""

    node: BeamNode
    subword: str


@dataclass(frozen=True)
class Iteration:
    """The target of a non-autoregressive model after one iteration.

    Attributes:
        subwords: Text of the token at every position; "·" is the CTC blank, and "END" ends the target.
        token_log_probs: Log-probability of each token when it was predicted.
        updated: Whether each token was predicted in this iteration, rather than in an earlier one.
    """

    subwords: list[str]
    token_log_probs: list[float]
    updated: list[bool]


@dataclass(frozen=True)
class MemoryMatch:
    """An entry of a translation memory, and the similarity of its source to a sentence, 0 to 1."""

    source: str
    target: str
    similarity: float

    def as_dict(self) -> dict[str, str | float]:
        """Return the attributes as they are written in JSON."""
        return {"source": self.source, "target": self.target, "similarity": self.similarity}


@dataclass(frozen=True)
class TermUse:
    """An occurrence of a glossary term in a source sentence.

    Attributes:
        source: The term as it is written in the sentence.
        target: Its translation in the glossary.
        kept: Whether the hypothesis contains the translation, as often as the sentence has terms with it.
        start: Position of its first character in the sentence.
    """

    source: str
    target: str
    kept: bool
    start: int = 0

    def as_dict(self) -> dict[str, str | int | bool]:
        """Return the attributes as they are written in JSON."""
        return {"source": self.source, "start": self.start, "target": self.target, "kept": self.kept}


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a text.

    A text of several sentences has a hypothesis with a text and a score only; the hypotheses of its sentences, with
    tokens and alignments, are in `sentences`.

    Attributes:
        text: The translation.
        score: Cumulative log-probability after penalties; comparable among the hypotheses of one search. For several
            sentences, the sum of their scores.
        tokens: Token ids, without END.
        subwords: Text of each token, with "▁" for spaces.
        token_log_probs: Log-probability of each token, followed by that of END if the model predicts it. Models with a
            length classifier and CTC models do not.
        source_subwords: Text of each source token.
        alignment: Cross-attention weights from each target token to each source token, averaged over layers and heads,
            including END on both sides; None unless requested.
        phrases: For each required or forbidden phrase, whether the text satisfies the constraint.
        tree: All nodes of the beam search, shared by the hypotheses of a text; None unless requested.
        iterations: The target after each iteration of a non-autoregressive model; None unless requested.
        source: The text that was translated; empty if only its tokens are known.
        warning: States that the source is longer than all sources of the training data; None if it is not.
        parts: Hypotheses of the sentences if there are several.
        memory: Entries of the translation memory for the sentence; one of similarity 1 is the translation itself.
        terms: Glossary terms that occur in the source, in order; those of all sentences if there are several.
        confidence: Calibrated probability that the translation agrees with a reference, 0 to 1; None unless requested.
        token_confidences: Calibrated probability of each token; empty unless requested.
        flags: Suspected faults by name, such as "repetition", each with a detail; None unless requested.
        truncated: Whether the search stopped at the maximum length.
    """

    text: str
    score: float
    tokens: list[int] = field(default_factory=list)
    subwords: list[str] = field(default_factory=list)
    token_log_probs: list[float] = field(default_factory=list)
    source_subwords: list[str] = field(default_factory=list)
    alignment: list[list[float]] | None = None
    phrases: dict[str, bool] = field(default_factory=dict)
    tree: list[TreeNode] | None = None
    iterations: list[Iteration] | None = None
    source: str = ""
    warning: str | None = None
    parts: tuple[Hypothesis, ...] = ()
    memory: tuple[MemoryMatch, ...] = ()
    terms: tuple[TermUse, ...] = ()
    confidence: float | None = None
    token_confidences: list[float] = field(default_factory=list)
    flags: dict[str, str] | None = None
    truncated: bool = False

    def __repr__(self) -> str:
        size = f"{len(self.parts)} sentences" if self.parts else f"{len(self.tokens)} tokens"
        kept = f", {sum(use.kept for use in self.terms)} of {len(self.terms)} terms kept" if self.terms else ""
        return f"Hypothesis({self.text!r}, score={self.score:.3f}, {size}{kept})"

    def _repr_html_(self) -> str:
        """Return the hypothesis for a notebook."""
        from regard.pipelines.hypothesis_html import hypothesis_to_html

        return hypothesis_to_html(self)

    @property
    def is_from_memory(self) -> bool:
        """Whether the translation is that of an entry of the translation memory with the same source."""
        return bool(self.memory) and self.memory[0].similarity == 1

    @property
    def sentences(self) -> tuple[Hypothesis, ...]:
        """Hypotheses of the sentences; a hypothesis of one sentence contains itself."""
        return self.parts or (self,)

    @property
    def labels(self) -> list[str]:
        """Labels of the rows of `alignment`: the subwords, and END if the model predicts it."""
        return [*self.subwords, "END"] if len(self.token_log_probs) > len(self.tokens) else self.subwords
