"""Batches of training.py: random sentences with realistic lengths, and the built-in corpus.

Batches are padded, packed, or packed to a fixed shape.
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
from regard.training.text_batches import PackedShape, TextBatch, collate

PAD, BOS, END = 0, 1, 2
MEDIAN, SPREAD, RATIO_SPREAD, LONGEST = 22, 0.6, 0.25, 200
"""Lengths are lognormal; so is the ratio of the lengths of a pair."""
CANDIDATES = 16
"""Number of batches from which `make_one` selects."""
VOCAB = 2400
"""Vocabulary of the built-in corpus, as in `regard demo`."""
Layout = Literal["padded", "packed", "fixed"]
Lengths = tuple[Ints, Ints]
"""Source and target lengths of each pair, END included."""


# Random sentences


def draw_lengths(tokens: float, rng: np.random.Generator) -> Lengths:
    """Draw lengths of sentences with at least the given number of target tokens."""
    sentences = int(1.3 * tokens / (MEDIAN * math.exp(SPREAD**2 / 2))) + 8
    targets = np.exp(math.log(MEDIAN) + SPREAD * rng.standard_normal(sentences))
    sources = targets * np.exp(RATIO_SPREAD * rng.standard_normal(sentences) - RATIO_SPREAD**2 / 2)
    source, target = (np.clip(np.rint(lengths), 2, LONGEST).astype(np.int64) for lengths in (sources, targets))
    return source, target


def draw_tokens(lengths: Lengths, vocab: int, rng: np.random.Generator) -> ParallelTokens:
    """Draw tokens with Zipf's frequencies; a target is its source under a permutation of the vocabulary."""
    source_lengths, target_lengths = lengths
    frequencies = 1 / np.arange(10, vocab - 3 + 10)
    longer = np.maximum(source_lengths, target_lengths)
    words = rng.choice(vocab - 3, int(longer.sum()), p=frequencies / frequencies.sum())
    starts = np.cumsum(longer) - longer

    def take(lengths: Ints, token_of_word: Ints) -> RaggedArray:
        """Return the first tokens of every sentence, followed by END."""
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        indices = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        tokens = token_of_word[words[indices]]
        tokens[offsets[1:] - 1] = END
        return RaggedArray(tokens.astype(np.int32), offsets)

    permutation = rng.permutation(np.arange(3, vocab))
    source, target = take(source_lengths, np.arange(3, vocab)), take(target_lengths, permutation)
    with_bos = np.insert(target.tokens, target.offsets[:-1], BOS)
    target = RaggedArray(with_bos, target.offsets + np.arange(len(target_lengths) + 1))
    return ParallelTokens(source, target, None, (len(source_lengths),))


def plan(lengths: Lengths, tokens: int, packed: bool, rng: np.random.Generator, sentences: int | None) -> list[Ints]:
    """Return the rows of batches of about the given number of target tokens."""
    source, target = lengths
    if packed:
        return plan_packed(source, target, tokens, rng, sentences)
    # More positions compensate for padding, so that padded batches have about as many target tokens as packed ones.
    filled = np.mean([target[rows].sum() for rows in plan_padded(source, target, tokens, rng)]) / tokens
    return plan_padded(source, target, int(tokens / filled), rng)


@dataclass
class Workload:
    """Batches of a random corpus, with about `tokens` target tokens each."""

    vocab: int
    tokens: int
    batches: int
    device: torch.device

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.lengths = draw_lengths(self.batches * self.tokens, rng)
        self.corpus = draw_tokens(self.lengths, self.vocab, rng)

    def make(self, layout: Layout) -> list[TextBatch]:
        """Return all batches, on the device."""
        shape = PackedShape.of(self.corpus, self.tokens) if layout == "fixed" else None
        sentences = None if shape is None else shape.sentences
        planned = plan(self.lengths, self.tokens, layout != "padded", np.random.default_rng(0), sentences)
        batches = (collate(self.corpus, rows, layout != "padded", PAD, shape) for rows in planned[: self.batches])
        return [batch.to(self.device) for batch in batches]

    def pack(self, batch: TextBatch) -> TextBatch:
        """Return a packed batch of the same sentences."""
        return collate(self.corpus, batch.rows, True, PAD).to(self.device)


def rotate_to_distinct_sizes(batches: list[TextBatch]) -> list[TextBatch]:
    """Rotate the batches so that all sizes of the first one differ.

    torch.compile treats sizes that are equal in the first batch as one, and would have to compile again later.
    """
    first = next((i for i, batch in enumerate(batches) if len({*batch.source.shape, *batch.inputs.shape}) == 3), 0)
    return batches[first:] + batches[:first]


def make_one(vocab: int, tokens: int, layout: Layout, device: torch.device) -> TextBatch:
    """Return a batch whose number of target tokens is close to `tokens`."""
    rng = np.random.default_rng(0)
    lengths = draw_lengths(CANDIDATES * tokens, rng)
    planned = plan(lengths, tokens, layout != "padded", rng, None)
    rows = min(planned, key=lambda rows: abs(int(lengths[1][rows].sum()) - tokens))
    corpus = draw_tokens((lengths[0][rows], lengths[1][rows]), vocab, rng)
    shape = PackedShape.of(corpus, tokens) if layout == "fixed" else None
    return collate(corpus, np.arange(len(rows)), layout != "padded", PAD, shape).to(device)


# The built-in corpus


@cache
def tokenise_builtin() -> ParallelTokens:
    """Return the training pairs of `regard demo`."""
    pairs = load_pairs("train", None)
    tokenizer = Tokenizer.train((text for pair in pairs for text in pair), VOCAB)
    return tokenise_pairs(pairs, tokenizer, tokenizer)


def make_builtin_batches(tokens: int, batches: int, layout: Layout, device: torch.device) -> list[TextBatch]:
    """Return batches of the built-in corpus; a batch contains the same sentences in every layout."""
    corpus = tokenise_builtin()
    source, target = corpus.source.lengths, corpus.target.lengths - 1
    rng, planned = np.random.default_rng(5), list[Ints]()
    while len(planned) < batches:
        planned += plan_padded(source, target, tokens, rng)
    longest = int(max(source.max(), target.max()))
    shape = PackedShape(max(tokens, longest), max(map(len, planned)), longest) if layout == "fixed" else None
    made = (collate(corpus, rows, layout != "padded", PAD, shape) for rows in planned[:batches])
    return [batch.to(device) for batch in made]
