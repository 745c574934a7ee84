"""Attribute a word of a translation to the words of the source and of the prefix: why this word, not that one.

Shapes: N tokens of source and prefix, W width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.inspection.explain.integrated_gradients import MAX_POINTS, evaluate, integrate_gradients
from regard.inspection.explain.scoring import Baseline, WordScore, evaluation_mode, score_word
from regard.inspection.explain.target_word import TargetWord, Tokens
from regard.inspection.html import render_text
from regard.inspection.words import WordGroups, group_words

Floats = npt.NDArray[np.floating]
DIGITS = 4


@dataclass(frozen=True)
class Attribution:
    """The contribution of every word of the source and of the prefix to the score of a word of the translation.

    Attributes:
        word: The word whose score is attributed.
        contrast: The word it is compared with; None if the score is its log-probability.
        start: Index of its first token in the translation.
        source: Words of the source.
        prefix: Words of the translation before the word.
        source_scores, prefix_scores: Integrated gradients of each word.
        source_occlusion, prefix_occlusion: Decrease of the score if the word is replaced by the baseline; empty without
            occlusion.
        score: Log-probability of the word, or its difference from that of the contrast.
        baseline: The same without the words of source and prefix.
        completeness_error: |Σ scores − (score − baseline)| / |score − baseline|.
        points: Number of gradients that the integral took.
    """

    word: str
    contrast: str | None
    start: int
    source: list[str]
    prefix: list[str]
    source_scores: Floats
    prefix_scores: Floats
    source_occlusion: Floats
    prefix_occlusion: Floats
    score: float
    baseline: float
    completeness_error: float
    points: int

    def _repr_html_(self) -> str:
        """Return the text in a fixed-width font, for a notebook."""
        return render_text(self)

    def ranked_source(self) -> list[tuple[str, float]]:
        """Return the words of the source with their scores, largest first."""
        pairs = zip(self.source, self.source_scores.tolist(), strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])

    @property
    def question(self) -> str:
        """The question that is answered."""
        return f"why {self.word}" if self.contrast is None else f"why {self.word}, not {self.contrast}"

    def to_json(self) -> dict[str, Any]:
        """Return the attribution for the pages."""
        return {
            "word": self.word,
            "contrast": self.contrast,
            "start": self.start,
            "source": _words(self.source, self.source_scores, self.source_occlusion),
            "prefix": _words(self.prefix, self.prefix_scores, self.prefix_occlusion),
            "score": round(self.score, DIGITS),
            "baseline": round(self.baseline, DIGITS),
            "error": round(self.completeness_error, DIGITS),
            "points": self.points,
        }

    def __str__(self) -> str:
        """Return a table: every word with its score, a bar, and its occlusion."""
        name = f"log p({self.word})" + ("" if self.contrast is None else f" − log p({self.contrast})")
        lines = [
            f"{self.question}: {name} = {self.score:.3f}, without source and prefix {self.baseline:.3f}, "
            f"completeness error {self.completeness_error:.1%}"
        ]
        largest = max(map(abs, (*self.source_scores, *self.prefix_scores)), default=1) or 1
        for title, words, scores, occlusion in (
            ("source", self.source, self.source_scores, self.source_occlusion),
            ("prefix", self.prefix, self.prefix_scores, self.prefix_occlusion),
        ):
            for i, (label, score) in enumerate(zip(words, scores, strict=True)):
                bar = ("█" if score > 0 else "░") * round(20 * abs(score) / largest)
                checked = f"  occlusion {occlusion[i]:+7.3f}" if len(occlusion) else ""
                lines.append(f"  {title if i == 0 else '':6}  {score:+7.3f}{checked}  {label}  {bar}".rstrip())
        return "\n".join(lines)


@torch.no_grad()
def attribute_word(
    translator: Any,
    sentence: str,
    word: str | int,
    contrast: str | None = None,
    target: Tokens | None = None,
    occlusion: bool = True,
    baseline: Baseline = "pad",
    tolerance: float = 0.005,
    max_points: int = MAX_POINTS,
) -> Attribution:
    """Attribute a word of a translation to source and prefix by integrated gradients over their embeddings.

    Every attribution is computed by itself, so it is the same alone and among others.

    Examples:
        ```python
        print(attribute_word(translator, "I love apples", "喜欢", contrast="爱"))
        ```

    Args:
        translator: A `Translator` with one autoregressive model.
        sentence: The sentence that is translated.
        word: Text that occurs in the translation, END, or the position of a token, counted from 1.
        contrast: A word to compare with: why `word`, not `contrast`? The score is the difference of the
            log-probabilities, which equals the difference of the logits if both words are single tokens.
        target: Token ids of the translation, without END. Defaults to the best translation of the model.
        occlusion: Whether to measure the effect of every word by replacing it as well.
        baseline: What replaces the vector of a word: that of the padding token ("pad"), the "mean" of all vectors, or
            "zero". On the built-in corpus, "pad" finds the aligned word most often (benchmarks/attribution.py).
        tolerance: Largest error of the integral relative to the change of the score.
        max_points: Largest number of gradients; with fewer than the tolerance needs, the error is larger.

    Raises:
        UserError: The word does not occur in the translation, or the model cannot be explained.
    """
    score, contrast_label = score_word(translator, sentence, word, contrast, target)
    source, prefix = _word_groups(translator, score.word)
    groups = [*source.tokens, *([len(score.word.source) + index for index in group] for group in prefix.tokens)]
    with evaluation_mode(score.model):
        x, neutral = score.embed(), score.baseline(baseline)
        path = integrate_gradients(score, x, neutral, tolerance, max_points)
        occluded = _occlude(score, x, neutral, groups, path.value) if occlusion else np.zeros(0)
    scores = np.array([float(path.attributions[group].sum()) for group in groups])
    S = len(source.labels)
    return Attribution(
        score.word.label,
        contrast_label,
        score.word.start,
        source.labels,
        prefix.labels,
        source_scores=scores[:S],
        prefix_scores=scores[S:],
        source_occlusion=occluded[:S],
        prefix_occlusion=occluded[S:],
        score=path.value,
        baseline=path.baseline,
        completeness_error=path.completeness_error,
        points=path.points,
    )


def _words(labels: list[str], scores: Floats, occlusion: Floats) -> dict[str, Any]:
    return {"labels": labels, "scores": scores.round(DIGITS).tolist(), "occlusion": occlusion.round(DIGITS).tolist()}


def _word_groups(translator: Any, word: TargetWord) -> tuple[WordGroups, WordGroups]:
    """Return the words of the source and of the prefix, without BOS and END, which the baseline keeps."""
    source = group_words(translator.vocabularies.source, word.source[:-1])
    prefix = group_words(translator.vocabularies.target, word.prefix[1:])
    return source, WordGroups(prefix.labels, [[index + 1 for index in group] for group in prefix.tokens])


def _occlude(score: WordScore, x: Tensor, baseline: Tensor, groups: list[list[int]], value: float) -> Floats:
    """Return how much the score decreases if the tokens of each group are replaced by the baseline."""
    if not groups:
        return np.zeros(0)
    rows_BNW = x.repeat(len(groups), 1, 1)
    for row, group in zip(rows_BNW, groups, strict=True):
        row[group] = baseline[group]
    decreases: Floats = value - np.array(evaluate(score, rows_BNW))
    return decreases
