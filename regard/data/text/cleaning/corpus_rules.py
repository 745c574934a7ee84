"""The rules that compare a pair with what is usual in the corpus, learned from a sample of its pairs."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.characters import (
    DENSE_SCRIPTS,
    DENSE_WEIGHT,
    LANGUAGE_SCRIPTS,
    SCRIPTS,
    SIMPLIFIED,
    TRADITIONAL,
    tables,
    variants,
)
from regard.data.text.cleaning.fingerprints import Sample
from regard.data.text.cleaning.language import LanguageRule
from regard.data.text.cleaning.lexicon import MIN_PAIRS, Lexicon
from regard.data.text.cleaning.settings import CleaningSettings, ModelCleaningSettings
from regard.data.text.cleaning.texts import Mask, Pairs, Texts, Words, either
from regard.data.text.languages import LANGUAGE_NAMES, match_language
from regard.data.text.readers import Pair

RATIO_OFFSET = 10
"""Characters that are added to both lengths, so that the ratio of short texts may differ more."""
MIN_SCRIPT_SHARE = 0.2
"""Share of a script in the letters of a side from which it is a script of the language, if the language is unknown."""
MIN_VARIANT_SHARE, MIN_VARIANT_CHARACTERS = 0.2, 2
"""A text is mixed if at least this share and number of its distinguishing characters are of the rarer variant."""
SAMPLE_PART = 4096
CALIBRATION_PAIRS = 300
"""Pairs of the sample that a model scores, and as many random ones."""
Floats = npt.NDArray[np.float64]
PairScore = Callable[[Sequence[Pair]], Floats]
"""Returns a cross-entropy in nats per token for each pair, lower for better pairs; NaN for those it cannot read."""


class Violation(NamedTuple):
    """Which pairs break a rule, and the values that it compares with a threshold."""

    rule: str
    broken: Mask
    values: Floats | None = None


class Learned:
    """The rules that need no model.

    Args:
        sample: Pairs of the corpus that keep the other rules.
        settings: Thresholds.
        codes: Language codes of both sides; "" if a language is unknown.

    Attributes:
        notes: Which rules are not applied and why, and what was learned.
    """

    def __init__(self, sample: Sample, settings: CleaningSettings, codes: tuple[str, str]) -> None:
        parts = [Pairs(pairs) for pairs in sample.parts(SAMPLE_PART)]
        self.settings, self.notes = settings, list[str]()
        self.scripts = Scripts(parts, codes)
        self.usual_ratio = _usual_ratio(parts)
        self.variants = [self._variant(parts, side, codes[side]) for side in (0, 1)]
        self.language: LanguageRule | None = None
        self.lexicon: Lexicon | None = None
        if len(sample) < MIN_PAIRS:
            self.notes.append(
                f"The rules language and misaligned are not applied, because they need {MIN_PAIRS:,} different pairs; "
                f"there are {len(sample):,}."
            )
            return
        if settings.language is not None:
            self.language = LanguageRule([part.texts for part in parts], codes, settings.language)
            self._explain_detectors(codes)
        if settings.misaligned is not None:
            words = [Words.concatenate([part.texts[side].words for part in parts]) for side in (0, 1)]
            del parts
            lexicon = Lexicon(*words)
            if lexicon.separated:
                self.lexicon = lexicon
            else:
                self.notes.append(
                    "The rule misaligned is not applied, because the words of the pairs of this corpus do not "
                    "distinguish them from random pairs; the corpus may be too small or not parallel."
                )

    def _explain_detectors(self, codes: tuple[str, str]) -> None:
        assert self.language is not None
        missing = [code or "unknown" for code, one in zip(codes, self.language.detectors, strict=True) if one is None]
        if missing:
            self.notes.append(
                f"py3langid does not check texts in {' and '.join(dict.fromkeys(missing))}; it is installed with "
                "pip install 'regard[clean]', and needs the codes of the languages."
            )

    def _variant(self, parts: Sequence[Pairs], side: int, code: str) -> int:
        """Return the variant of Chinese of a side, 0 for other languages."""
        if not self.settings.variant or self.scripts.names[side] != ("Han",):
            return 0
        counts = [count_variants(part.texts[side]) for part in parts]
        simplified, traditional = (sum(int(one[index].sum()) for one in counts) for index in (0, 1))
        return expected_variant(code) or (SIMPLIFIED if simplified >= traditional else TRADITIONAL)

    def check(self, pairs: Pairs) -> Iterator[Violation]:
        """Apply the rules to pairs."""
        settings, sides = self.settings, (0, 1)
        if settings.script is not None:
            minimum = settings.script
            yield Violation("script", either([self.scripts.shares(pairs.texts[s], s) < minimum for s in sides]))
        if any(self.variants):
            wrong = [wrong_variant(pairs.texts[side], self.variants[side]) for side in sides if self.variants[side]]
            yield Violation("variant", either([wrong[0], wrong[-1]]))
        if self.language is not None:
            rule = self.language
            exchanged = either([rule.exchanged(pairs.texts[side], side) for side in sides])
            foreign = either([rule.foreign(pairs.texts[side], pairs.strings[side], side) for side in sides])
            yield Violation("language", exchanged | foreign)
        if settings.ratio is not None:
            source, target = pairs.texts[0].lengths * self.usual_ratio, pairs.texts[1].lengths
            quotients = (source + RATIO_OFFSET) / (target + RATIO_OFFSET)
            ratios = np.maximum(quotients, 1 / quotients)
            yield Violation("ratio", ratios > settings.ratio, ratios)
        if self.lexicon is not None and settings.misaligned is not None:
            scores = self.lexicon.calibrated(*(texts.words for texts in pairs.texts))
            yield Violation("misaligned", scores < settings.misaligned, scores)


def _usual_ratio(parts: Sequence[Pairs]) -> float:
    if not parts:
        return 1.0
    ratios = [part.texts[1].lengths / np.maximum(1, part.texts[0].lengths) for part in parts]
    return float(np.median(np.concatenate(ratios)))


# Scripts


class Scripts:
    """The scripts of both languages: those of the language codes or, of unknown languages, the frequent ones.

    Args:
        sample: Pairs of the corpus.
        codes: Language codes of both sides; "" if a language is unknown.
    """

    def __init__(self, sample: Sequence[Pairs], codes: tuple[str, str]) -> None:
        weights = [0] + [DENSE_WEIGHT if name in DENSE_SCRIPTS else 1 for name in SCRIPTS[1:]]
        self._weights = np.array(weights, np.uint8)
        self.names = [self._find([pairs.texts[side] for pairs in sample], codes[side]) for side in (0, 1)]
        self._expected = [np.isin(SCRIPTS, names) * self._weights for names in self.names]

    def _find(self, texts: Sequence[Texts], code: str) -> tuple[str, ...]:
        known = match_language(code, [*LANGUAGE_SCRIPTS, *LANGUAGE_NAMES]) if code else None
        if known:
            return LANGUAGE_SCRIPTS.get(known, ("Latin",))
        counts = sum((np.bincount(scripts_of(one), minlength=len(SCRIPTS)) for one in texts), np.zeros(len(SCRIPTS)))
        counts *= self._weights
        frequent = np.flatnonzero(counts >= MIN_SCRIPT_SHARE * max(1, counts.sum()))
        return tuple(SCRIPTS[index] for index in frequent)

    def shares(self, texts: Texts, side: int) -> Floats:
        """Return the share of the scripts of the language of a side in the letters of each text; 1 without letters."""
        scripts = scripts_of(texts)
        expected, total = texts.total(self._expected[side][scripts]), texts.total(self._weights[scripts])
        return np.where(total == 0, 1.0, expected / np.maximum(1, total))


def scripts_of(texts: Texts) -> npt.NDArray[np.uint8]:
    """Return the script of each character, as an index of `SCRIPTS`."""
    return tables().script[texts.codes]


# Simplified and traditional Chinese


def count_variants(texts: Texts) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the number of simplified-only and of traditional-only characters of each text."""
    found = variants()[texts.codes]
    return texts.count(found == SIMPLIFIED), texts.count(found == TRADITIONAL)


def expected_variant(code: str) -> int:
    """Return the variant that a language code names, such as zh-Hant; 0 for another language or plain "zh"."""
    if match_language(code, ["zt"]):
        return TRADITIONAL
    return SIMPLIFIED if "-" in code.replace("_", "-") and match_language(code, ["zh"]) else 0


def wrong_variant(texts: Texts, expected: int) -> Mask:
    """Return which texts mix the variants or are in the one that is not expected."""
    simplified, traditional = count_variants(texts)
    rarer, total = np.minimum(simplified, traditional), simplified + traditional
    mixed = (rarer >= MIN_VARIANT_CHARACTERS) & (rarer >= MIN_VARIANT_SHARE * total)
    own, other = (simplified, traditional) if expected == SIMPLIFIED else (traditional, simplified)
    result: Mask = mixed | ((other > own) & (other >= MIN_VARIANT_CHARACTERS))
    return result


# Models


class ModelRule:
    """Removes pairs that models consider improbable.

    Cross-entropies depend on the models and their vocabularies. They are calibrated like the scores of the lexicon: 0
    is the median of pairs with exchanged targets, 1 is the median of the sample. With `max_cross_entropy`, the values
    themselves are compared.

    Args:
        score: Cross-entropies of pairs.
        sample: Pairs of the corpus.
        settings: Thresholds.

    Attributes:
        note: What was learned, or why the rule is not applied.
    """

    def __init__(self, score: PairScore, sample: Sample, settings: ModelCleaningSettings) -> None:
        self._score, self._settings = score, settings
        pairs = next(sample.parts(CALIBRATION_PAIRS), [])
        self.random = self.usual = np.nan
        if len(pairs) > 1:
            targets = [pair.target for pair in [*pairs[1:], pairs[0]]]
            shuffled = [Pair(pair.source, target) for pair, target in zip(pairs, targets, strict=True)]
            self.random, self.usual = (float(np.nanmedian(score(texts))) for texts in (shuffled, pairs))
        self.note = (
            f"Cross-entropy of the model: {self.usual:.2f} nats per token for typical pairs, {self.random:.2f} for "
            "random ones."
        )
        self.applied = settings.max_cross_entropy is not None or self.random > self.usual
        if not self.applied:
            self.note += " The rule model is not applied, because the model does not distinguish them."

    def check(self, pairs: Sequence[Pair]) -> Violation:
        """Apply the rule to pairs."""
        values = self._score(pairs)
        if self._settings.max_cross_entropy is not None:
            return Violation("model", values > self._settings.max_cross_entropy, values)
        values = (self.random - values) / (self.random - self.usual)
        return Violation("model", values < self._settings.model, values)
