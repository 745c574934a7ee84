"""Learning of subword units: byte-pair merges, or frequent words.

The `tokenizers` library learns the merges. This module counts the words and chooses the alphabet, so that the same
lines always give the same units.
"""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import chain, groupby, repeat
from typing import Literal

import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from regard.errors import UserError

SPACE_MARK = "▁"
"""Displays a space. The vocabulary itself contains plain spaces, so this character needs no escaping in text."""
MIN_COUNT = 2
"""Rarer characters, merges and words are not added to the vocabulary."""

# Text is split into words, and no token crosses a word boundary. Letters and symbols are never in the same word, which
# also prevents "<eos>" in a text from being found in the vocabulary. Words have a maximum length because the training
# time is quadratic in it.
_COMMON_WORDS = (
    r" ?[\p{L}\p{M}&&[^\p{Han}]]{1,200}",  # letters and combining marks
    r" ?\p{N}",  # one digit
    r" ?[^\s\p{L}\p{M}\p{N}\p{Han}]{1,200}",  # symbols
    r" {1,200}(?= )",  # all but the last of several spaces: the last one belongs to the next word
    r" ",
    r"[^\S ]{1,200}",  # other white space
)
WORD_PATTERNS = {
    "bpe": "|".join((r" ?\p{Han}{1,200}", *_COMMON_WORDS)),
    # Han characters do not include a preceding space; otherwise each would be two words.
    "word": "|".join((r"\p{Han}", *_COMMON_WORDS)),
}


def learn_subwords(
    lines: Iterable[str], number: int, kind: Literal["bpe", "word"]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most `number` learned tokens and the merges that build them; words have no merges.

    Args:
        lines: Normalised training text, which is read once. Its distinct words are held in memory.
        kind: As in `Tokenizer.train`.
    """
    word_counts = _count_words(lines, split_words(kind))
    alphabet = _choose_alphabet(word_counts, number)
    if kind == "bpe":
        return _learn_merges(word_counts, alphabet, number)
    return _choose_words(word_counts, alphabet, number), []


def split_words(kind: Literal["bpe", "word"]) -> pre_tokenizers.PreTokenizer:
    """Return the part of a tokenizer that splits text into words."""
    return pre_tokenizers.Split(Regex(WORD_PATTERNS[kind]), "isolated")


def _count_words(lines: Iterable[str], splitter: pre_tokenizers.PreTokenizer) -> Counter[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(word for word, _ in splitter.pre_tokenize_str(line))
    if not any(word.strip() for word in counts):
        raise UserError("The training text of the tokenizer is empty; it needs at least one line with a word.")
    return counts


def _choose_alphabet(word_counts: Counter[str], number: int) -> set[str]:
    """Choose the most frequent characters, at most half of the tokens so that longer tokens can be learned as well.

    The space is always chosen, because the training text may be without spaces, but other text is not.
    """
    counts: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            counts[character] += count
    del counts[SPACE_MARK]  # encoded as bytes, so that the mark always stands for a space in `tokens`
    del counts[" "]
    return {" ", *_rank(counts)[: (number - 1) // 2]}


def _choose_words(word_counts: Counter[str], alphabet: set[str], number: int) -> list[str]:
    words = [word for word in _rank(word_counts) if word not in alphabet and SPACE_MARK not in word]
    return sorted(alphabet) + words[: number - len(alphabet)]


def _learn_merges(
    word_counts: Counter[str], alphabet: set[str], number: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn the tokens and merges of a BPE vocabulary.

    Words are split at characters outside the alphabet before training. The trainer itself would choose randomly between
    equally frequent characters, and would merge the neighbours of a character that it omits.
    """
    repeated_parts = (  # repeated, because the trainer counts words itself
        repeat("".join(run), count)
        for word, count in word_counts.items()
        for in_alphabet, run in groupby(word, key=alphabet.__contains__)
        if in_alphabet
    )
    learner = tokenizers.Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=number, min_frequency=MIN_COUNT, show_progress=False, initial_alphabet=[" "]
    )
    learner.train_from_iterator(chain.from_iterable(repeated_parts), trainer)
    vocabulary = learner.get_vocab()
    merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


def _rank(counts: Counter[str]) -> list[str]:
    """Sort by descending count and then by name, so that the order of the training text does not matter."""
    frequent = [name for name, count in counts.items() if count >= MIN_COUNT]
    return sorted(frequent, key=lambda name: (-counts[name], name))
