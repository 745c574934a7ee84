"""Generator of the built-in English-Chinese corpus: a synchronous grammar that derives both languages at once.

`python -m tools.corpus` writes the data file. The same English sentence always has the same translation, so that a
model can learn to translate every sentence exactly. Some combinations of words ("plant" with "tree", "red" with "cup")
occur in the test split only, which measures whether a model generalises to new combinations.
"""

from bisect import bisect
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, islice
from random import Random
from typing import NamedTuple, TextIO
from zlib import crc32

from regard.data.builtin.corpus import Split
from regard.data.text.readers import Pair

from .lexicon.people import NAMES, PRONOUNS
from .rules import RULES

SIZES: dict[Split, int] = {"train": 40_000, "valid": 1_000, "test": 1_000}


class Derivation(NamedTuple):
    """A sentence pair with its Chinese words, and the combinations of English words in it ("eat apple")."""

    pair: Pair
    words: tuple[str, ...]
    combinations: tuple[str, ...] = ()

    @property
    def novel(self) -> bool:
        """Whether the sentence contains a combination that does not occur in the training split."""
        return any(map(is_withheld, self.combinations))

    @property
    def key(self) -> str:
        """The English sentence in lower case without its final mark; two sentences with the same key are duplicates."""
        return self.pair.source.rstrip(".?").lower()


def _humans() -> Iterator[Derivation]:
    """Yield sentences with the word "human", which the grammar does not contain."""
    for person in (*PRONOUNS, *NAMES):
        subject, be = person.english[0].upper() + person.english[1:], person.be
        kind = "humans" if person.pronoun in ("we", "they") else "a human"
        for source, target in (
            (f"{subject} {be} human", f"{person.chinese} 是 人类"),
            (f"{subject} {be} {kind}.", f"{person.chinese} 是 人类 。"),
            (f"{subject} {be} not human.", f"{person.chinese} 不 是 人类 。"),
            (f"{be.capitalize()} {person.english} human?", f"{person.chinese} 是 人类 吗 ？"),
        ):
            yield Derivation(Pair(source, target.replace(" ", "")), tuple(target.split()))


APPLES = Derivation(Pair("I love apples", "我喜欢苹果"), ("我", "喜欢", "苹果"), ("love apple",))
HUMANS = tuple(_humans())
_CUMULATIVE_WEIGHTS = tuple(accumulate(rule.weight for rule in RULES))
_CHINESE_MARKS = {".": "。", "?": "？"}


@cache
def is_withheld(combination: str) -> bool:
    """Return whether a combination of two words, such as "eat apple", occurs in the test split only."""
    return crc32(combination.encode()) % 16 == 0 and combination not in APPLES.combinations


def sentence(rng: Random) -> Derivation:
    """Draw a sentence; a quarter of the sentences have no final mark in either language."""
    rule = RULES[bisect(_CUMULATIVE_WEIGHTS, rng.random() * _CUMULATIVE_WEIGHTS[-1])]
    phrase = rule.build(rng)
    marked = rng.random() < 0.75
    words = (*phrase.chinese.split(), *([_CHINESE_MARKS[rule.mark]] if marked else []))
    source = phrase.english[0].upper() + phrase.english[1:] + (rule.mark if marked else "")
    return Derivation(Pair(source, "".join(words)), words, phrase.combinations)


def _split_of(derivation: Derivation) -> Split:
    # The split depends on the sentence alone, so that splits drawn with different seeds never overlap.
    if derivation.novel:
        return "test"
    if derivation.key == APPLES.key:
        return "train"
    remainder = crc32(derivation.key.encode()) % 10
    return "valid" if remainder == 0 else "test" if remainder == 1 else "train"


def _draw(split: Split, seed: int) -> Iterator[Derivation]:
    rng = Random(f"{split} {seed}")
    seen: set[str] = set()
    if split == "train":
        seen.add(APPLES.key)
        yield APPLES
    while True:
        wants_novel = split == "test" and rng.random() < 0.3
        derivation = sentence(rng)
        while derivation.key in seen or _split_of(derivation) != split or derivation.novel != wants_novel:
            derivation = sentence(rng)
        seen.add(derivation.key)
        yield derivation


def derive(split: Split, size: int | None = None, seed: int = 2017) -> list[Derivation]:
    """Draw distinct sentences of a split; a smaller size gives a prefix of a larger one."""
    return list(islice(_draw(split, seed), SIZES[split] if size is None else size))


def list_corpus(split: Split) -> list[Derivation]:
    """Return a split of the built-in corpus; sentences shown in the documentation open the training split."""
    derivations = derive(split)
    return [APPLES, *HUMANS[:2], *derivations[1:], *HUMANS[2:]] if split == "train" else derivations


def write_corpus(file: TextIO) -> None:
    """Write all splits in the format of `regard.data.builtin.corpus`."""
    for split in SIZES:
        for pair, words, novel in ((d.pair, d.words, d.novel) for d in list_corpus(split)):
            file.write(f"{split}\t{novel:d}\t{pair.source}\t{' '.join(words)}\n")
