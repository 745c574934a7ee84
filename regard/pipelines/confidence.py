"""Confidence: calibrated probabilities that a token, and a sentence, of a translation agree with a reference.

A token agrees with the reference if it belongs to the longest common subsequence of both. A sentence agrees if twice
the number of these tokens is at least `AGREEMENT` times the number of tokens of both sides. `regard.evaluation`
fits the probabilities to validation data; they are stored in confidence.json of the model folder.

Shapes: T tokens, F features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from regard.config import Settings
from regard.errors import UserError
from regard.files import MissingFileError, read_json
from regard.models.card import CONFIDENCE
from regard.pipelines.hypothesis import Hypothesis

Doubles = npt.NDArray[np.float64]
FILE = CONFIDENCE
AGREEMENT = 0.5
"""Agreement with the reference, 0 to 1, from which a sentence is right."""
LOWEST = -12.0
"""Log-probabilities are clipped to this value, because values below do not differ in meaning."""
DIGITS = 4
"""Digits of confidences; those after them depend on the other sentences of the batch."""
MAX_LOG_ODDS = 9.0
"""Confidences are between 0.0001 and 0.9999."""
MAX_WORDS = 1000
TOKEN_FEATURES = ("log-odds", "log-probability", "previous", "next", "mean of the sentence", "lowest of the sentence")
SENTENCE_FEATURES = ("mean", "lowest", "mean probability", "length", "length ratio", "squared length ratio")


class LogisticModel(Settings):
    """Logistic regression on standardised features."""

    mean: tuple[float, ...] = Field(description="mean of each feature")
    scale: tuple[float, ...] = Field(description="standard deviation of each feature")
    weights: tuple[float, ...] = Field(description="weight of each standardised feature")
    bias: float = Field(description="log-odds of a sample with mean features")

    @model_validator(mode="after")
    def _check(self) -> LogisticModel:
        if not len(self.mean) == len(self.scale) == len(self.weights):
            raise ValueError("mean, scale and weights must have the same length")
        if not all(value > 0 for value in self.scale):
            raise ValueError("every scale must be above 0")
        return self

    @cached_property
    def _arrays(self) -> tuple[Doubles, Doubles, Doubles]:
        return np.array(self.mean), np.array(self.scale), np.array(self.weights)

    def __call__(self, features: Doubles) -> Doubles:
        """Return the probability of each row of features, (N, F) → (N,)."""
        mean, scale, weights = self._arrays
        log_odds: Doubles = ((features - mean) / scale) @ weights + self.bias
        probabilities: Doubles = 1 / (1 + np.exp(-log_odds.clip(-MAX_LOG_ODDS, MAX_LOG_ODDS)))
        return probabilities


class CopiedWords(Settings):
    """How the references of the validation data treat names: Latin words that a translation may have to copy.

    Words of a copied kind are expected in the translation, except `exceptions`; so are the words in `copied`.
    """

    kinds: tuple[str, ...] = Field((), description="kinds of words that references copy: capitalised, code, foreign")
    copied: tuple[str, ...] = Field((), max_length=MAX_WORDS, description="words that references always copy")
    exceptions: tuple[str, ...] = Field((), max_length=MAX_WORDS, description="words that references translate")


class CalibrationError(Settings):
    """Expected calibration errors on sentences that were not used for the fit."""

    sentences: int = Field(gt=0, description="sentences of the validation data")
    tokens: int = Field(ge=0, description="tokens of their translations")
    sentence_ece: float = Field(ge=0, le=1, description="expected calibration error of sentences")
    token_ece: float = Field(ge=0, le=1, description="expected calibration error of tokens")
    right_sentences: float = Field(ge=0, le=1, description="share of sentences that agree with the reference")
    right_tokens: float = Field(ge=0, le=1, description="share of tokens that agree with the reference")


class Calibration(Settings):
    """Converts log-probabilities to confidences.

    Examples:
        >>> translator = regard.Translator.load("runs/demo")
        >>> [[hypothesis]] = translator.hypotheses(["I love apples"], confidence=True)
        >>> hypothesis.confidence, hypothesis.token_confidences
    """

    format: Literal[1] = 1
    agreement: float = Field(AGREEMENT, ge=0, le=1, description="agreement from which a sentence is right")
    tokens: LogisticModel
    sentences: LogisticModel
    names: CopiedWords = CopiedWords()
    error: CalibrationError

    @model_validator(mode="after")
    def _check(self) -> Calibration:
        for name, model, features in (
            ("tokens", self.tokens, TOKEN_FEATURES),
            ("sentences", self.sentences, SENTENCE_FEATURES),
        ):
            if len(model.weights) != len(features):
                raise ValueError(f"{name} must have {len(features)} weights, not {len(model.weights)}")
        return self

    @classmethod
    def load(cls, folder: Path) -> Calibration:
        """Read confidence.json of a model folder.

        Raises:
            UserError: The file is missing or invalid.
        """
        path = folder / FILE
        try:
            return cls.parse(read_json(path), str(path))
        except MissingFileError:
            raise UserError(
                f"{folder}: contains no {FILE}, so its confidence is not calibrated; run regard calibrate with a "
                f"source file and its references"
            ) from None

    def apply(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return the hypothesis with its confidences; that of several sentences is the lowest of its sentences."""
        if hypothesis.parts:
            parts = tuple(map(self.apply, hypothesis.parts))
            return replace(hypothesis, parts=parts, confidence=min(part.confidence or 0.0 for part in parts))
        if not hypothesis.source.strip() or hypothesis.is_from_memory:
            return replace(hypothesis, confidence=1.0)
        log_probs, count = hypothesis.token_log_probs, len(hypothesis.tokens)
        if len(log_probs) < count:
            raise UserError("the engine returns no log-probabilities of tokens; use the engine regard for confidence")
        sentence = self.sentences(sentence_features(log_probs, count, len(hypothesis.source_subwords))[None])
        return replace(
            hypothesis,
            confidence=round(float(sentence[0]), DIGITS),
            token_confidences=[
                round(value, DIGITS) for value in self.tokens(token_features(log_probs, count)).tolist()
            ],
        )


def token_features(log_probs: Sequence[float], count: int) -> Doubles:
    """Return the features of the tokens of a translation, (T, F); the log-probability of END may follow theirs.

    Examples:
        >>> token_features([-0.1, -2.0, -0.2], 2).shape
        (2, 6)
    """
    if not count:
        return np.zeros((0, len(TOKEN_FEATURES)))
    values: Doubles = np.array([0.0, *log_probs, 0.0]).clip(LOWEST, -1e-6)
    own, sentence = values[1 : count + 1], values[1 : len(log_probs) + 1]
    log_odds = own - np.log(-np.expm1(own))
    means = np.full(count, sentence.mean())
    return np.stack((log_odds, own, values[:count], values[2 : count + 2], means, np.full(count, sentence.min())), 1)


def sentence_features(log_probs: Sequence[float], count: int, source_count: int) -> Doubles:
    """Return the features of a translation with `count` tokens, (F,)."""
    values: Doubles = np.array(log_probs or [LOWEST]).clip(LOWEST, 0.0)
    ratio = math.log((count + 1) / (source_count + 1))
    features: Any = (values.mean(), values.min(), np.exp(values).mean(), math.log(count + 1), ratio, ratio * ratio)
    return np.array(features)
