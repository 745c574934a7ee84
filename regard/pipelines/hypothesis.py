"""Results of a translator."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from regard.data.text.sentences import SplitText, by_rank
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

    def __repr__(self) -> str:
        size = f"{len(self.parts)} sentences" if self.parts else f"{len(self.tokens)} tokens"
        return f"Hypothesis({self.text!r}, score={self.score:.3f}, {size})"

    @property
    def sentences(self) -> tuple[Hypothesis, ...]:
        """Hypotheses of the sentences; a hypothesis of one sentence contains itself."""
        return self.parts or (self,)

    @property
    def labels(self) -> list[str]:
        """Labels of the rows of `alignment`: the subwords, and END if the model predicts it."""
        return [*self.subwords, "END"] if len(self.token_log_probs) > len(self.tokens) else self.subwords


def join_sentences(text: str, split: SplitText, n_best_lists: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """Return the hypotheses of a text: the k-th one consists of the k-th hypothesis of each sentence.

    Args:
        text: The text.
        split: The sentences of the text; at least one.
        n_best_lists: Hypotheses of each sentence, best first.
    """
    joined = [(split.join([sentence.text for sentence in sentences]), sentences) for sentences in by_rank(n_best_lists)]
    if len(split.sentences) == 1:
        return [replace(hypothesis, text=result, source=text) for result, (hypothesis,) in joined]
    return [
        Hypothesis(
            text=result,
            score=sum(sentence.score for sentence in sentences),
            phrases={
                phrase: all(sentence.phrases[phrase] for sentence in sentences) for phrase in sentences[0].phrases
            },
            source=text,
            warning=next((sentence.warning for sentence in sentences if sentence.warning), None),
            parts=tuple(sentences),
        )
        for result, sentences in joined
    ]


class LengthWarnings:
    """Counts the texts with sentences that are longer than those of the training data.

    Args:
        noun: Name of a text in the message, such as "line".
    """

    def __init__(self, noun: str = "text") -> None:
        self._noun, self._texts, self._first = noun, 0, ""

    def add(self, number: int, hypotheses: Sequence[Hypothesis]) -> None:
        """Count a text by its number and hypotheses."""
        if hypotheses[0].warning is not None:
            self._texts += 1
            self._first = self._first or f"{self._noun} {number}: {hypotheses[0].warning}"

    def log(self) -> None:
        """Log the message, if any."""
        if self.message is not None:
            logging.getLogger("regard").warning(self.message)

    @property
    def message(self) -> str | None:
        """One sentence about the first of these texts and their number; None if there are none."""
        others = f" (and {self._texts - 1} more)" if self._texts > 1 else ""
        return f"{self._first}{others}" if self._texts else None
