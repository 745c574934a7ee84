"""Rules by which pairs are removed, and the thresholds of the rules."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from regard.config import Settings

MAX_CHARACTERS = 10_000
"""Characters of a text that are analysed. Longer texts are always removed."""
RULES = {
    "empty": "A side has no text.",
    "encoding": "A side has control characters, replacement characters, or text decoded with a wrong encoding.",
    "markup": "A side has tags or character references of HTML or XML.",
    "letters": "A side consists mostly of digits, punctuation and symbols.",
    "length": "A side is too long.",
    "copy": "Both sides are the same text, or nearly.",
    "overlap": "A side is also a text of the excluded files.",
    "duplicate": "The same pair occurred before.",
    "near-duplicate": "The same pair occurred before with other case, punctuation, spaces or digits.",
    "script": "A side is not written in the script of its language.",
    "variant": "A Chinese side mixes simplified and traditional characters, or is in the other of the two.",
    "language": "A side is in another language.",
    "ratio": "The lengths of the sides differ too much.",
    "misaligned": "The sides are no translations of each other, by the words that occur together in the corpus.",
    "model": "A model considers the sides improbable as translations of each other.",
}
"""Names of the rules, in the order in which they are applied: a pair counts for the first rule that removes it."""


class CleaningSettings(Settings):
    """Thresholds of the rules of `regard clean`; `null` or `false` turns a rule off."""

    encoding: bool = Field(True, description="remove control and replacement characters, and wrongly decoded text")
    markup: bool = Field(True, description="remove tags and character references of HTML and XML")
    letters: float | None = Field(0.3, ge=0, le=1, description="minimum share of letters among visible characters")
    max_words: int | None = Field(200, gt=0, description="maximum number of words of a side")
    max_characters: int = Field(2000, gt=0, le=MAX_CHARACTERS, description="maximum number of characters of a side")
    copies: float | None = Field(
        0.75, gt=0, le=1, description="share of common words from which a pair counts as a copy"
    )
    exclude: tuple[Path, ...] = Field((), description="files whose texts, such as those of test sets, are removed")
    duplicates: Literal["near", "exact"] | None = Field(
        "near", description="near: also pairs that differ only in case, punctuation, spaces and digits"
    )
    script: float | None = Field(0.25, ge=0, le=1, description="minimum share of letters in the script of the language")
    variant: bool = Field(True, description="remove Chinese text that mixes or exchanges simplified and traditional")
    language: float | None = Field(
        4.0, gt=0, description="standard deviations by which the character trigrams of a foreign text are less frequent"
    )
    ratio: float | None = Field(2.5, gt=1, description="maximum ratio of the lengths, relative to the usual one")
    misaligned: float | None = Field(
        0.5, ge=-1, le=1, description="minimum score: about 0 for random pairs, about 1 for typical translations"
    )


class ModelCleaningSettings(CleaningSettings):
    """Thresholds of the rules of `regard clean` with a model."""

    model: float = Field(
        0.5, description="minimum score by the model: about 0 for random pairs, about 1 for typical ones"
    )
    max_cross_entropy: float | None = Field(
        None, gt=0, description="instead of model: maximum cross-entropy in nats per token, dual with two models"
    )
