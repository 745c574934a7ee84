"""Which language a text is written in."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from threading import Lock
from typing import Any


@cache
def _read_tables() -> Any:
    """The identifier of all languages; a second of work, and a hundred megabytes."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


class Detector:
    """Guesses the language of a text among a few.

    Languages that the identifier does not know are guessed only where there is no other candidate.
    """

    def __init__(self) -> None:
        self._identifier: Any = None
        self._known: frozenset[str] = frozenset()
        self._among: list[str] = []
        self._loading = Lock()

    def load(self) -> None:
        """Reads the tables, if that has not been done; also while another thread is at it, once."""
        with self._loading:
            if self._identifier is None:
                self._identifier = copy(_read_tables())
                self._known = frozenset(self._identifier.labels)

    def rank(self, text: str, candidates: Sequence[str]) -> list[tuple[str, float]]:
        """The candidates and how likely each is, in per cent, the likeliest first."""
        if len(candidates) < 2:
            return [(code, 100.0) for code in candidates]
        self.load()
        known = sorted(code for code in candidates if code in self._known)
        if not known:
            return [(code, round(100 / len(candidates), 1)) for code in candidates]
        if known != self._among:
            self._identifier.set_languages(known)
            self._among = known
        ranked = [(code, round(100 * share, 1)) for code, share in self._identifier.rank(text)]
        return ranked + [(code, 0.0) for code in candidates if code not in known]
