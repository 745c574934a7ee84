"""Quality of translations without references: confidences and flags of hypotheses."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

from regard.data.text.languages import SourceLanguageCheck
from regard.errors import UserError
from regard.pipelines.confidence import FILE, Calibration
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.quality_flags import LANGUAGE, find_flags

CACHED = 4096
"""Number of sentences whose language is remembered, as hypotheses of one n-best list have the same source."""


class QualityEstimator:
    """Adds confidences and flags to hypotheses.

    Args:
        folder: Folder of the model with its calibration; None if the model was not loaded from a folder.
        language: Code of the source language.
    """

    def __init__(self, folder: Path | None, language: str) -> None:
        self._folder = folder
        self._check = SourceLanguageCheck(language)
        self._find_other = lru_cache(CACHED)(self._check.find_other)

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration of the model.

        Raises:
            UserError: There is none.
        """
        if self._folder is None:
            raise UserError("the confidence of this model is not calibrated; load a calibrated model folder")
        return Calibration.load(self._folder)

    @property
    def is_calibrated(self) -> bool:
        """Whether the folder of the model has a calibration."""
        return self._folder is not None and (self._folder / FILE).is_file()

    def check_calibrated(self) -> None:
        """Raise the error of `calibration` if the model is not calibrated or its calibration is damaged."""
        self.select(confidence=True, flags=False)

    def select(self, confidence: bool, flags: bool) -> Callable[[Hypothesis], Hypothesis]:
        """Return a function that adds confidences, flags, or both to a hypothesis.

        Raises:
            UserError: Confidences are requested of a model that is not calibrated.
        """
        calibration = self.calibration if confidence else None

        def estimate(hypothesis: Hypothesis) -> Hypothesis:
            if calibration is not None:
                hypothesis = calibration.apply(hypothesis)
            return self.add_flags(hypothesis) if flags else hypothesis

        return estimate

    def add_flags(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return the hypothesis with its flags; those of several sentences are united."""
        if hypothesis.parts:
            parts = tuple(map(self.add_flags, hypothesis.parts))
            flags: dict[str, str] = {}
            for part in parts:
                flags = (part.flags or {}) | flags
            return replace(hypothesis, parts=parts, flags=flags)
        names = self.calibration.names if self.is_calibrated else None
        flags = find_flags(hypothesis.source, hypothesis.text, names, hypothesis.truncated)
        if other := self._find_other(hypothesis.source):
            flags[LANGUAGE] = other
        return replace(hypothesis, flags=flags)
