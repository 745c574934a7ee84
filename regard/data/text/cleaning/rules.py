"""The rules as functions of many pairs at once: those that need only the pair, and those that are learned from all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from regard.data.text.cleaning.analysis import Texts, Words
from regard.data.text.cleaning.characters import (
    DENSE_SCRIPTS,
    DENSE_WEIGHT,
    INVISIBLE,
    LANGUAGE_SCRIPTS,
    LETTER,
    SCRIPTS,
    SPACE,
    mix,
    tables,
)
from regard.data.text.cleaning.chinese import SIMPLIFIED, TRADITIONAL, count_variants, expected_variant, wrong_variant
from regard.data.text.cleaning.damage import damaged, has_markup
from regard.data.text.cleaning.fingerprints import Fingerprints
from regard.data.text.cleaning.language import LanguageRule
from regard.data.text.cleaning.lexicon import MIN_PAIRS, Lexicon
from regard.data.text.cleaning.sample import Sample
from regard.data.text.cleaning.settings import CleaningSettings
from regard.data.text.languages import LANGUAGE_NAMES, match_language

MIN_COPIED_WORDS = 4
"""Words of both sides from which a share of common words counts."""
RATIO_OFFSET = 10
"""Characters that are added to both lengths, so that the ratio of short texts may differ more."""
MIN_SCRIPT_SHARE = 0.2
"""Share of a script in the letters of a side from which it is a script of the language, if the language is unknown."""
SAMPLE_PART = 4096
Mask = npt.NDArray[np.bool_]
Violations = Iterator[tuple[str, Mask]]
"""Names of rules in their order, each with which pairs break it."""


@dataclass
class Chunk:
    """Some consecutive pairs."""

    strings: tuple[Sequence[str], Sequence[str]]
    texts: tuple[Texts, Texts] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = Texts(self.strings[0]), Texts(self.strings[1])

    def __len__(self) -> int:
        return len(self.strings[0])

    def raw_hashes(self) -> Fingerprints:
        """Fingerprints of the pairs as they are."""
        return combine(self.texts[0].raw_hashes, self.texts[1].raw_hashes)

    def folded_hashes(self) -> Fingerprints:
        """Fingerprints of the pairs without case, punctuation, spaces and the values of digits."""
        return combine(self.texts[0].folded_hashes, self.texts[1].folded_hashes)


def combine(first: Fingerprints, second: Fingerprints) -> Fingerprints:
    """Return a fingerprint of two fingerprints in this order."""
    return mix(first * np.uint64(3) ^ second)


def either(masks: Sequence[Mask]) -> Mask:
    """Return where one of two masks is true."""
    return masks[0] | masks[1]


# Rules that need only the pair


def check_pairs(chunk: Chunk, settings: CleaningSettings) -> Violations:
    """Apply the rules that need only the pair."""
    visible = [len_of(texts) - texts.count((texts.flags & (SPACE | INVISIBLE)) > 0) for texts in chunk.texts]
    yield "empty", either([numbers == 0 for numbers in visible])
    if settings.encoding:
        yield "encoding", either([damaged(*side) for side in zip(chunk.texts, chunk.strings, strict=True)])
    if settings.markup:
        yield "markup", either([has_markup(*side) for side in zip(chunk.texts, chunk.strings, strict=True)])
    if settings.letters is not None:
        letters = [texts.count((texts.flags & LETTER) > 0) for texts in chunk.texts]
        yield "letters", either([a < settings.letters * b for a, b in zip(letters, visible, strict=True)])
    yield "length", either([too_long(texts, settings) for texts in chunk.texts])
    if settings.copies is not None:
        yield "copy", copied(*chunk.texts, settings.copies)


def len_of(texts: Texts) -> npt.NDArray[np.int64]:
    """Return the number of analysed characters of each text."""
    return np.diff(texts.bounds)


def too_long(texts: Texts, settings: CleaningSettings) -> Mask:
    """Return which texts have too many characters or words."""
    result = texts.lengths > settings.max_characters
    return result if settings.max_words is None else result | (texts.words.counts > settings.max_words)


def copied(source: Texts, target: Texts, share: float) -> Mask:
    """Return which pairs have equal sides, or sides of which most words are common."""
    keys = [mix(words.hashes ^ mix(words.owners.astype(np.uint64))) for words in (source.words, target.words)]
    common = np.bincount(target.words.owners[np.isin(keys[1], keys[0])], minlength=len(target))
    longer = np.maximum(source.words.counts, target.words.counts)
    alike = (longer >= MIN_COPIED_WORDS) & (common >= share * longer)
    result: Mask = alike | (source.folded_hashes == target.folded_hashes)
    return result


# Rules that are learned from a sample of the pairs


@dataclass
class Scripts:
    """The scripts of both languages, from their codes or from the texts."""

    names: tuple[tuple[str, ...], tuple[str, ...]]
    _expected: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] = field(init=False)
    _weights: npt.NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        self._weights = np.array([0] + [DENSE_WEIGHT if name in DENSE_SCRIPTS else 1 for name in SCRIPTS[1:]], np.uint8)
        self._expected = self._select(self.names[0]), self._select(self.names[1])

    def _select(self, names: Sequence[str]) -> npt.NDArray[np.uint8]:
        return np.array([name in names for name in SCRIPTS], np.uint8) * self._weights

    @classmethod
    def learn(cls, sample: Sequence[Chunk], codes: tuple[str, str]) -> "Scripts":
        """Take the scripts of known languages, and those that are frequent in the texts of other languages."""
        names = []
        for side, code in enumerate(codes):
            known = match_language(code, [*LANGUAGE_SCRIPTS, *LANGUAGE_NAMES]) if code else None
            if known:
                names.append(LANGUAGE_SCRIPTS.get(known, ("Latin",)))
                continue
            numbers = np.zeros(len(SCRIPTS))
            for chunk in sample:
                numbers += np.bincount(scripts_of(chunk.texts[side]), minlength=len(SCRIPTS))
            numbers *= [0] + [DENSE_WEIGHT if name in DENSE_SCRIPTS else 1 for name in SCRIPTS[1:]]
            frequent = np.flatnonzero(numbers >= MIN_SCRIPT_SHARE * max(1, numbers.sum()))
            names.append(tuple(SCRIPTS[index] for index in frequent))
        return cls((names[0], names[1]))

    def shares(self, texts: Texts, side: int) -> npt.NDArray[np.float64]:
        """Return the share of the scripts of the language of a side in the letters of each text; 1 without letters."""
        scripts = scripts_of(texts)
        expected, total = texts.total(self._expected[side][scripts]), texts.total(self._weights[scripts])
        return np.where(total == 0, 1.0, expected / np.maximum(1, total))


def scripts_of(texts: Texts) -> npt.NDArray[np.uint8]:
    """Return the script of each character, as an index of `SCRIPTS`."""
    return tables().script[texts.codes]


class Learned:
    """The rules that compare a pair with what is usual in the corpus.

    Args:
        sample: Pairs of the corpus that keep the other rules.
        settings: Thresholds.
        codes: Language codes of both sides; "" if a language is unknown.

    Attributes:
        notes: Which rules are not applied and why, and what was learned.
    """

    def __init__(self, sample: Sample, settings: CleaningSettings, codes: tuple[str, str]) -> None:
        chunks = [make_chunk(pairs) for pairs in sample.parts(SAMPLE_PART)]
        self.settings, self.notes = settings, list[str]()
        self.scripts = Scripts.learn(chunks, codes)
        self.usual_ratio = _usual_ratio(chunks)
        self.variants = [self._variant(chunks, side, codes[side]) for side in (0, 1)]
        self.language: LanguageRule | None = None
        self.lexicon: Lexicon | None = None
        if len(sample) < MIN_PAIRS:
            self.notes.append(
                f"The rules language and misaligned are not applied, because they need {MIN_PAIRS:,} different pairs; "
                f"there are {len(sample):,}."
            )
            return
        if settings.language is not None:
            self.language = LanguageRule([chunk.texts for chunk in chunks], codes, settings.language)
            self._explain_detectors(codes)
        if settings.misaligned is not None:
            words = [Words.concatenate([chunk.texts[side].words for chunk in chunks]) for side in (0, 1)]
            del chunks
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

    def _variant(self, chunks: Sequence[Chunk], side: int, code: str) -> int:
        """Return the variant of Chinese of a side, 0 for other languages."""
        if not self.settings.variant or self.scripts.names[side] != ("Han",):
            return 0
        counts = [count_variants(chunk.texts[side]) for chunk in chunks]
        simplified, traditional = (sum(int(one[index].sum()) for one in counts) for index in (0, 1))
        return expected_variant(code) or (SIMPLIFIED if simplified >= traditional else TRADITIONAL)

    def check(self, chunk: Chunk) -> Violations:
        """Apply the rules to pairs."""
        settings, sides = self.settings, (0, 1)
        if settings.script is not None:
            minimum = settings.script
            yield "script", either([self.scripts.shares(chunk.texts[side], side) < minimum for side in sides])
        if any(self.variants):
            wrong = [wrong_variant(chunk.texts[side], self.variants[side]) for side in sides if self.variants[side]]
            yield "variant", either([wrong[0], wrong[-1]])
        if self.language is not None:
            rule = self.language
            exchanged = either([rule.exchanged(chunk.texts[side], side) for side in sides])
            foreign = either([rule.foreign(chunk.texts[side], chunk.strings[side], side) for side in sides])
            yield "language", exchanged | foreign
        if settings.ratio is not None:
            yield "ratio", self.ratios(chunk) > settings.ratio
        if self.lexicon is not None and settings.misaligned is not None:
            with np.errstate(invalid="ignore"):
                yield "misaligned", self.alignment_scores(chunk) < settings.misaligned

    def ratios(self, chunk: Chunk) -> npt.NDArray[np.float64]:
        """Return the ratio of the longer to the shorter side, relative to the usual ratio."""
        source, target = chunk.texts[0].lengths * self.usual_ratio + RATIO_OFFSET, chunk.texts[1].lengths + RATIO_OFFSET
        return np.maximum(source / target, target / source)

    def alignment_scores(self, chunk: Chunk) -> npt.NDArray[np.float64]:
        """Return the calibrated scores of the lexicon."""
        assert self.lexicon is not None
        return self.lexicon.calibrated(chunk.texts[0].words, chunk.texts[1].words)


def make_chunk(pairs: Sequence[tuple[str, str]]) -> Chunk:
    """Return pairs as a chunk."""
    return Chunk(([pair[0] for pair in pairs], [pair[1] for pair in pairs]))


def _usual_ratio(chunks: Sequence[Chunk]) -> float:
    if not chunks:
        return 1.0
    return float(np.median(np.concatenate([c.texts[1].lengths / np.maximum(1, c.texts[0].lengths) for c in chunks])))
