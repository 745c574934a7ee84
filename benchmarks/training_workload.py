"""What benchmarks/training.py trains on: random sentences of usual lengths, and the built-in corpus.

A contender has its batches padded, packed end to end, or framed: packed and filled up to one size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import stubs  # noqa: F401
import torch

from regard.data.batching import plan_packed, plan_padded
from regard.data.builtin.corpus import load_pairs
from regard.data.text.encoding import tokenise_pairs
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokens import Ints, ParallelTokens, RaggedArray
from regard.training.tasks.translation.batches import PackedShape, TextBatch, collate

PAD, BOS, END = 0, 1, 2
MIDDLE, SPREAD, RATIO_SPREAD, LONGEST = 22, 0.6, 0.25, 200
"""Lengths are lognormal; those of a pair differ by a factor that is lognormal too."""
DRAWN = 16
"""Batches to choose one from."""
PIECES = 2400
"""The vocabulary of the built-in corpus, as `regard demo` has it."""
Layout = Literal["padded", "packed", "framed"]
Lengths = tuple[Ints, Ints]
"""Of every pair's source and target, each counted with its END."""


# Random sentences


def draw_lengths(tokens: float, rng: np.random.Generator) -> Lengths:
    """Of sentences that have somewhat more target tokens than so many."""
    sentences = int(1.3 * tokens / (MIDDLE * math.exp(SPREAD**2 / 2))) + 8
    targets = np.exp(math.log(MIDDLE) + SPREAD * rng.standard_normal(sentences))
    sources = targets * np.exp(RATIO_SPREAD * rng.standard_normal(sentences) - RATIO_SPREAD**2 / 2)
    source, target = (np.clip(np.rint(lengths), 2, LONGEST).astype(np.int64) for lengths in (sources, targets))
    return source, target


def draw_words(lengths: Lengths, vocab: int, rng: np.random.Generator) -> ParallelTokens:
    """Words that are as rare as words are; a target says those of its source in another code."""
    source, target = lengths
    odds = 1 / np.arange(10, vocab - 3 + 10)
    code = rng.permutation(np.arange(3, vocab))
    longer = np.maximum(source, target)
    words = rng.choice(vocab - 3, int(longer.sum()), p=odds / odds.sum())
    begins = np.cumsum(longer) - longer

    def cut(lengths: Ints, said: Ints) -> RaggedArray:
        """The first words of every sentence, and END."""
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        tokens = said[words[places]]
        tokens[offsets[1:] - 1] = END
        return RaggedArray(tokens.astype(np.int32), offsets)

    heard, told = cut(source, np.arange(3, vocab)), cut(target, code)
    begun = np.insert(told.tokens, told.offsets[:-1], BOS)
    return ParallelTokens(heard, RaggedArray(begun, told.offsets + np.arange(len(target) + 1)), None, (len(source),))


def plan(lengths: Lengths, tokens: int, packed: bool, rng: np.random.Generator, sentences: int | None) -> list[Ints]:
    """The rows of batches of about so many target tokens each."""
    source, target = lengths
    if packed:
        return plan_packed(source, target, tokens, rng, sentences)
    # Padding takes places, so that padded batches get more of them: about as many tokens of targets as the others.
    filled = np.mean([target[rows].sum() for rows in plan_padded(source, target, tokens, rng)]) / tokens
    return plan_padded(source, target, int(tokens / filled), rng)


@dataclass
class Workload:
    """Batches of one random corpus, of about so many target tokens each."""

    vocab: int
    tokens: int
    batches: int
    device: torch.device

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.lengths = draw_lengths(self.batches * self.tokens, rng)
        self.corpus = draw_words(self.lengths, self.vocab, rng)

    def make(self, layout: Layout) -> list[TextBatch]:
        """All batches, on the device."""
        frame = PackedShape.of(self.corpus, self.tokens) if layout == "framed" else None
        sentences = None if frame is None else frame.sentences
        planned = plan(self.lengths, self.tokens, layout != "padded", np.random.default_rng(0), sentences)
        made = (collate(self.corpus, rows, layout != "padded", PAD, frame) for rows in planned[: self.batches])
        return [batch.to(self.device) for batch in made]

    def pack(self, batch: TextBatch) -> TextBatch:
        """The same sentences without padding."""
        return collate(self.corpus, batch.rows, True, PAD).to(self.device)


def begin_with_unlike_sizes(batches: list[TextBatch]) -> list[TextBatch]:
    """In turn, from a batch on whose sides differ in length: a compiler takes sizes that are equal at first for one.

    It would have to compile everything once more for the first batch of which that is not true.
    """
    first = next((i for i, batch in enumerate(batches) if len({*batch.source.shape, *batch.inputs.shape}) == 3), 0)
    return batches[first:] + batches[:first]


def make_one(vocab: int, tokens: int, layout: Layout, device: torch.device) -> TextBatch:
    """A batch as many are: of those of a corpus the one whose number of target tokens is nearest to that asked for."""
    rng = np.random.default_rng(0)
    lengths = draw_lengths(DRAWN * tokens, rng)
    planned = plan(lengths, tokens, layout != "padded", rng, None)
    rows = min(planned, key=lambda rows: abs(int(lengths[1][rows].sum()) - tokens))
    corpus = draw_words((lengths[0][rows], lengths[1][rows]), vocab, rng)  # words for these alone
    frame = PackedShape.of(corpus, tokens) if layout == "framed" else None
    return collate(corpus, np.arange(len(rows)), layout != "padded", PAD, frame).to(device)


# The built-in corpus


@cache
def encode_builtin(sentences: int | None) -> ParallelTokens:
    """The pairs that `regard demo` learns from, all different."""
    pairs = load_pairs("train", sentences)
    tokenizer = Tokenizer.train((text for pair in pairs for text in pair), PIECES)
    return tokenise_pairs(pairs, tokenizer, tokenizer)


def make_lessons(
    tokens: int, batches: int, layout: Layout, device: torch.device, sentences: int | None = None
) -> list[TextBatch]:
    """Batches of the built-in corpus, pass after pass: the same sentences share a batch in every layout."""
    corpus = encode_builtin(sentences)
    source, target = corpus.source.lengths, corpus.target.lengths - 1
    rng, rows = np.random.default_rng(5), list[Ints]()
    while len(rows) < batches:
        rows += plan_padded(source, target, tokens, rng)
    longest = int(max(source.max(), target.max()))
    frame = PackedShape(max(tokens, longest), max(map(len, rows)), longest) if layout == "framed" else None
    made = (collate(corpus, chosen, layout != "padded", PAD, frame) for chosen in rows[:batches])
    return [batch.to(device) for batch in made]
