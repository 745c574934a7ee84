"""Calibration of confidence: agreement with references, logistic regression, expected calibration error.

Shapes: N samples, F features, B sentences, T tokens of a translation, R tokens of a reference.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from regard.data.text.readers import Pair
from regard.decoding.settings import DecodingSettings
from regard.errors import UserError
from regard.evaluation.report import save_details
from regard.files import replace_text_file
from regard.pipelines.confidence import (
    AGREEMENT,
    FILE,
    Calibration,
    CalibrationError,
    Doubles,
    LogisticModel,
    sentence_features,
    token_features,
)
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.quality_flags import learn_copied_words
from regard.pipelines.translator import Translator

Bools = npt.NDArray[np.bool_]
Tokens = Sequence[int]
BINS, FOLDS = 10, 5
MIN_SENTENCES = 20
"""Fewer sentences cannot be divided into a fit and an evaluation."""
CHUNK = 64
"""Number of sentences whose agreement is computed at once."""
PENALTY, ITERATIONS = 3.0, 50
TOKEN_PRIOR = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
SENTENCE_PRIOR = (3.0, 1.0, 12.0, 0.0, 0.0, -3.0)
"""Weights of the features, which those of a fit are drawn to.

Without them, confidence would not depend on the translation if all validation sentences are right.
"""


def calibrate(hypotheses: Sequence[Hypothesis], references: Sequence[Tokens], texts: Sequence[str]) -> Calibration:
    """Fit the confidence of translations to their agreement with references.

    The calibration errors are those of cross-validation: a prediction is from a fit without its sentence. The fit that
    is returned uses all sentences.

    Args:
        hypotheses: The best translation of each sentence, with log-probabilities.
        references: Tokens of each reference.
        texts: Text of each reference.

    Raises:
        UserError: There are too few sentences.
    """
    if len(hypotheses) < MIN_SENTENCES:
        raise UserError(
            f"{len(hypotheses)} sentences are too few to calibrate confidence; give {MIN_SENTENCES} or more"
        )
    right = find_agreement([hypothesis.tokens for hypothesis in hypotheses], references)
    labels = np.array(
        [agrees(int(one.sum()), len(one), len(tokens)) for one, tokens in zip(right, references, strict=True)]
    )
    sentences = np.stack(
        [sentence_features(one.token_log_probs, len(one.tokens), len(one.source_subwords)) for one in hypotheses]
    )
    tokens = np.concatenate([token_features(one.token_log_probs, len(one.tokens)) for one in hypotheses])
    right_tokens = np.concatenate(right)
    fold = np.arange(len(hypotheses)) % FOLDS
    token_fold = np.repeat(fold, [len(one) for one in right])
    return Calibration(
        tokens=fit_logistic(tokens, right_tokens, TOKEN_PRIOR),
        sentences=fit_logistic(sentences, labels, SENTENCE_PRIOR),
        names=learn_copied_words([one.source for one in hypotheses], texts),
        error=CalibrationError(
            sentences=len(hypotheses),
            tokens=len(right_tokens),
            sentence_ece=calibration_error(_cross_validate(sentences, labels, SENTENCE_PRIOR, fold), labels),
            token_ece=calibration_error(_cross_validate(tokens, right_tokens, TOKEN_PRIOR, token_fold), right_tokens),
            right_sentences=float(labels.mean()),
            right_tokens=float(right_tokens.mean()) if len(right_tokens) else 0.0,
        ),
    )


def calibrate_translator(
    translator: Translator, pairs: Sequence[Pair], settings: DecodingSettings | None = None
) -> Calibration:
    """Translate the sources of sentence pairs and calibrate the confidence on the references."""
    references = [pair.target for pair in pairs]
    tokens = translator.vocabularies.target.encode_batch(references)
    hypotheses = translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    return calibrate([best[0] for best in hypotheses], tokens, references)


def save_calibration(calibration: Calibration, folder: Path) -> None:
    """Write confidence.json of a model folder, and the calibration errors to its scores.json.

    Raises:
        UserError: Scores.json is damaged or cannot be written.
    """
    save_details({"confidence": calibration.error.model_dump(mode="json")}, folder)
    with replace_text_file(folder / FILE) as file:
        file.write(json.dumps(calibration.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")


def agrees(common: int, length: int, reference_length: int) -> bool:
    """Return whether a translation with `common` tokens of the reference agrees with it."""
    return 2 * common >= AGREEMENT * (length + reference_length)


def find_agreement(translations: Sequence[Tokens], references: Sequence[Tokens]) -> list[Bools]:
    """Mark the tokens of each translation that belong to the longest common subsequence with its reference.

    Examples:
        >>> find_agreement([[5, 6, 7]], [[5, 7, 8]])
        [array([ True, False,  True])]
    """
    found: list[Bools] = [np.zeros(len(tokens), bool) for tokens in translations]
    order = sorted(range(len(translations)), key=lambda i: len(translations[i]) + len(references[i]))
    for start in range(0, len(order), CHUNK):
        rows = order[start : start + CHUNK]
        marked = _common_tokens(_pad([translations[i] for i in rows], -1), _pad([references[i] for i in rows], -2))
        for row, i in zip(marked, rows, strict=True):
            found[i] = row[: len(translations[i])]
    return found


def _pad(rows: Sequence[Tokens], filler: int) -> npt.NDArray[np.int64]:
    padded = np.full((len(rows), max(map(len, rows))), filler)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _common_tokens(translations: npt.NDArray[np.int64], references: npt.NDArray[np.int64]) -> Bools:
    """Mark the tokens of translations (B, T) in the longest common subsequences with references (B, R)."""
    (count, length), reference_length = translations.shape, references.shape[1]
    table = np.zeros((length + 1, count, reference_length + 1), np.int16)  # of the first t and r tokens
    for t in range(length):
        matches = translations[:, t, None] == references
        extended = np.maximum(table[t, :, 1:], table[t, :, :-1] + matches)
        table[t + 1, :, 1:] = np.maximum.accumulate(extended, 1)
    marked = np.zeros(translations.shape, bool)
    rows, position = np.arange(count), np.full(count, reference_length)
    for t in range(length, 0, -1):
        # Skip reference tokens without loss; if the translation's token then matches with a gain, it is common.
        best = table[t, rows, position]
        position = (table[t] >= best[:, None]).argmax(1)
        gain = best > table[t - 1, rows, position]
        marked[:, t - 1] = gain
        position = position - gain
    return marked


def fit_logistic(features: Doubles, labels: Bools, prior: Sequence[float]) -> LogisticModel:
    """Fit logistic regression to features (N, F) and labels (N,), with Platt's prior counts.

    An L2 penalty draws the weights to those of `prior` (F,).
    """
    if not len(labels):
        width = len(prior)
        return LogisticModel(mean=(0.0,) * width, scale=(1.0,) * width, weights=tuple(prior), bias=0.0)
    mean, scale = features.mean(0), features.std(0)
    scale[scale < 1e-6] = 1.0
    inputs = np.concatenate(((features - mean) / scale, np.ones((len(features), 1))), 1)
    positive = int(labels.sum())
    targets = np.where(labels, (positive + 1) / (positive + 2), 1 / (len(labels) - positive + 2))
    penalty = np.diag([*[PENALTY] * len(prior), 1e-6])
    usual = np.append(np.array(prior) * scale, 0.0)
    weights = np.zeros(inputs.shape[1])
    for _ in range(ITERATIONS):
        predicted = 1 / (1 + np.exp(-(inputs @ weights).clip(-30, 30)))
        curvature = (inputs * (predicted * (1 - predicted) + 1e-9)[:, None]).T @ inputs + penalty
        step = np.linalg.solve(curvature, inputs.T @ (targets - predicted) - penalty @ (weights - usual))
        weights += step * min(1.0, 4 / max(1e-9, float(np.abs(step).max())))
        if np.abs(step).max() < 1e-8:
            break
    *coefficients, bias = weights.tolist()
    return LogisticModel(mean=tuple(mean.tolist()), scale=tuple(scale.tolist()), weights=tuple(coefficients), bias=bias)


def calibration_error(confidences: Doubles, labels: Bools, bins: int = BINS) -> float:
    """Return the expected calibration error: the mean distance of confidence and accuracy over bins of equal width.

    Examples:
        >>> calibration_error(np.array([0.9, 0.9]), np.array([True, False]))
        0.4
    """
    if not len(labels):
        return 0.0
    index = np.minimum((confidences * bins).astype(int), bins - 1)
    sums = (np.bincount(index, values, bins) for values in (confidences, labels.astype(float)))
    return float(abs(np.subtract(*sums)).sum() / len(labels))


def reliability(confidences: Doubles, labels: Bools, bins: int = BINS) -> Iterator[tuple[int, float, float]]:
    """Yield the number of samples, mean confidence and accuracy of each bin that is not empty."""
    index = np.minimum((confidences * bins).astype(int), bins - 1)
    for chosen in (index == number for number in range(bins)):
        if chosen.any():
            yield int(chosen.sum()), float(confidences[chosen].mean()), float(labels[chosen].mean())


def _cross_validate(features: Doubles, labels: Bools, prior: Sequence[float], fold: npt.NDArray[np.int64]) -> Doubles:
    """Return the prediction of each sample by a fit to the other folds, (N,)."""
    predicted = np.zeros(len(labels))
    for number in range(FOLDS):
        held_out = fold == number
        predicted[held_out] = fit_logistic(features[~held_out], labels[~held_out], prior)(features[held_out])
    return predicted
