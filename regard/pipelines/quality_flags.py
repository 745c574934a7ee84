"""Flags: suspected faults of a translation that can be seen without a reference.

`repetition`, `truncation`, `missing-number`, `missing-name` and `source-language`, each with a detail.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from regard.pipelines.confidence import MAX_WORDS, CopiedWords
from regard.pipelines.numbers import missing_numbers

REPETITION, TRUNCATION, NUMBER, NAME, LANGUAGE = FLAGS = (
    "repetition",
    "truncation",
    "missing-number",
    "missing-name",
    "source-language",
)
MAX_DETAIL = 60
"""Characters of a detail."""
LONGEST_REPEATED = 20
"""Words, or Chinese and Japanese characters, of the longest repeated phrase that is found."""
MIN_REPEATS = {1: 4, 2: 3}
"""Number of times that a phrase of so few units occurs in a row before it counts; longer ones count from twice."""
MIN_COPIED = 0.8
"""Share of the distinct words of a kind that references copy, from which all words of the kind are expected."""
MIN_WORDS = 5
"""Number of distinct words of a kind from which that share is computed."""

_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNITS = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s,，、'’\"“”`*-]+")
"""Words, Chinese and Japanese characters, and punctuation other than commas, quotes and hyphens."""
_LATIN = "A-Za-zÀ-ÖØ-öø-ɏ"
_WORDS = re.compile(rf"[{_LATIN}][{_LATIN}0-9]*(?:-[{_LATIN}0-9]+)*")
_OTHER_LETTERS = re.compile(rf"[^\W\d_{_LATIN}]")
_SENTENCE_START = re.compile(r"(?:^|[.!?…:]['\"”’»)]*\s+)[^\w]*$")
CAPITALISED, CODE, FOREIGN = KINDS = ("capitalised", "code", "foreign")


def find_flags(
    source: str, translation: str, names: CopiedWords | None = None, truncated: bool = False
) -> dict[str, str]:
    """Return the flags of a translated sentence that depend on its text, except `source-language`.

    Args:
        source: The sentence.
        translation: Its translation.
        names: The words that a translation copies; by default, names are not checked.
        truncated: Whether the search stopped at the maximum length.

    Examples:
        >>> find_flags("I have 42 apples.", "Ich habe Äpfel.")
        {'missing-number': '42'}
    """
    flags: dict[str, str] = {}
    if repeated := find_repetition(source, translation):
        flags[REPETITION] = repeated
    if truncated:
        flags[TRUNCATION] = "the maximum length was reached"
    if numbers := missing_numbers(source, translation):
        flags[NUMBER] = _join(numbers)
    if names is not None and (missing := missing_names(source, translation, names)):
        flags[NAME] = _join(missing)
    return flags


def _join(items: Sequence[str]) -> str:
    text = ", ".join(items)
    return text if len(text) <= MAX_DETAIL else f"{text[: MAX_DETAIL - 1]}…"


# Repetition


def find_repetition(source: str, translation: str) -> str:
    """Return the phrase that the translation repeats in a row more often than the source; "" if there is none."""
    units = list(_UNITS.finditer(translation))
    folded = [unit[0].casefold() for unit in units]
    source_units: list[str] | None = None
    for length in range(1, min(LONGEST_REPEATED, len(units) // 2) + 1):
        times, start = _longest_run(folded, length)
        if times < MIN_REPEATS.get(length, 2):
            continue
        if source_units is None:
            source_units = [unit.casefold() for unit in _UNITS.findall(source)]
        if times > max(_longest_run(source_units, one)[0] for one in range(1, LONGEST_REPEATED + 1)):
            return _join([translation[units[start].start() : units[start + length - 1].end()]])
    return ""


def _longest_run(units: Sequence[str], length: int) -> tuple[int, int]:
    """Return how often a phrase of this length occurs in a row at most, and where the first such run starts."""
    best, best_start, equal = 1, 0, 0
    for i in range(length, len(units)):
        equal = equal + 1 if units[i] == units[i - length] else 0
        if 1 + equal // length > best:
            best, best_start = 1 + equal // length, i - equal - length + 1
    return best, best_start


# Names


def name_candidates(source: str) -> Iterator[tuple[str, str]]:
    """Yield Latin words that may be names, each with its kind.

    Kinds are "foreign" in text of another script, "code" for words with capital letters after the first letter or with
    digits, such as USB and HTML5, and "capitalised" for others with a capital letter that do not start a sentence.
    """
    words = list(_WORDS.finditer(source))
    if _OTHER_LETTERS.search(source):
        yield from ((FOREIGN, match[0]) for match in words if len(match[0]) > 1)
        return
    cased = [match for match in words if match[0][0].isupper()]
    has_case = 2 * len(cased) <= len(words) + 1 and not source.isupper()  # in a title, most words have capital letters
    for match in words:
        word = match[0]
        if len(word) < 2 or not has_case:
            continue
        if any(character.isupper() or character.isdecimal() for character in word[1:]):
            yield CODE, word
        elif word[0].isupper() and not _SENTENCE_START.search(source[max(0, match.start() - 8) : match.start()]):
            yield CAPITALISED, word


def missing_names(source: str, translation: str, names: CopiedWords) -> list[str]:
    """Return the names of the source that the translation should contain, but does not."""
    folded = translation.casefold()
    missing = []
    for kind, word in name_candidates(source):
        key = word.casefold()
        expected = key in names.copied or (kind in names.kinds and key not in names.exceptions)
        if expected and key not in folded and word not in missing:
            missing.append(word)
    return missing


def learn_copied_words(sources: Sequence[str], references: Sequence[str]) -> CopiedWords:
    """Learn from sentence pairs which names are copied.

    A kind is copied if most of its distinct words were copied where they first occurred, as an estimate for new words.
    """
    first: dict[str, dict[str, bool]] = {kind: {} for kind in KINDS}
    seen, copied = Counter[str](), Counter[str]()
    for source, reference in zip(sources, references, strict=True):
        for kind, word in name_candidates(source):
            key = word.casefold()
            seen[key] += 1
            copied[key] += word in reference
            first[kind].setdefault(key, word in reference)
    kinds = [
        kind
        for kind, words in first.items()
        if len(words) >= MIN_WORDS and sum(words.values()) >= MIN_COPIED * len(words)
    ]
    always = (word for word, number in seen.most_common() if number > 1 and copied[word] == number)
    never = (word for word, number in seen.most_common() if copied[word] < MIN_COPIED * number)
    return CopiedWords(
        kinds=tuple(kinds),
        copied=tuple(word for word, _ in zip(always, range(MAX_WORDS), strict=False)),
        exceptions=tuple(word for word, _ in zip(never, range(MAX_WORDS), strict=False)),
    )
