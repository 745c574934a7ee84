"""Detection of the language of a text."""

from collections.abc import Sequence
from copy import copy
from functools import cache
from threading import Lock
from typing import Any

from regard.data.text.languages import match_language
from regard.errors import import_optional


@cache
def _load_identifier() -> Any:
    """Load the language identifier, which takes about a second and 100 MB."""
    langid = import_optional("py3langid.langid", "data")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


class LanguageDetector:
    """Detects the language of a text among some candidates.

    Candidates that the identifier does not know have the probability 0, unless it knows none of the candidates.
    """

    def __init__(self) -> None:
        self._identifier: Any = None
        self._known: frozenset[str] = frozenset()
        self._selected: list[str] = []
        self._loading = Lock()

    def load(self) -> None:
        """Load the identifier once; concurrent calls wait for the first one."""
        with self._loading:
            if self._identifier is None:
                self._identifier = copy(_load_identifier())
                self._known = frozenset(self._identifier.labels)

    def rank(self, text: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
        """Return the candidates and their probabilities in per cent, the most likely first."""
        if len(candidates) < 2:
            return [(code, 100.0) for code in candidates]
        self.load()
        known = sorted(code for code in candidates if code in self._known)
        if not known:
            return [(code, round(100 / len(candidates), 1)) for code in candidates]
        if known != self._selected:
            self._identifier.set_languages(known)
            self._selected = known
        ranked = [(code, round(100 * probability, 1)) for code, probability in self._identifier.rank(text)]
        return ranked + [(code, 0.0) for code in candidates if code not in known]


class ExpectedLanguage:
    """Compares texts with the language that they should have; `known` is False if the identifier does not know it.

    Simplified and traditional Chinese are one language here.

    Args:
        code: Language code, such as "de" or "zh-Hant".
    """

    def __init__(self, code: str) -> None:
        self._identifier = _load_identifier()
        labels = self._identifier.labels
        self.code = match_language(code, labels) or ("zh" if match_language(code, ["zt"]) else "")
        self.known = bool(self.code)

    def probability(self, text: str) -> tuple[float, str]:
        """Return the probability of the expected language among all known ones, and the most likely language."""
        ranked = self._identifier.rank(text)
        return dict(ranked)[self.code], ranked[0][0]

    def rank(self, text: str) -> list[tuple[str, float]]:
        """Return all known languages and their probabilities, the most likely first."""
        return [(str(code), float(probability)) for code, probability in self._identifier.rank(text)]
