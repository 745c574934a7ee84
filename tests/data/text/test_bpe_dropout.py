"""BPE-dropout: sampled segmentations of words, and corpora that use them."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from regard.data.array_store import DamagedStoreError
from regard.data.batching import hash_integers
from regard.data.text.bpe_dropout import WordTypes, sample_segmentations
from regard.data.text.encoding import SkippedPairs, tokenise_corpus
from regard.data.text.readers import Pair, PairRecord
from regard.data.text.tokenizer import Tokenizer
from regard.data.text.tokens import (
    SAMPLES,
    SEGMENTATIONS,
    WORDS,
    DropoutTokens,
    ParallelTokens,
    open_token_store,
    write_token_store,
)
from tests.data.text.test_tokens import rows_of

TEXTS = ["banana bandana ban", "a cabana and a band", "ananas, banana ☃ 42", "  a\tbanana  "] * 3
Merges = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 290).with_tokens(["<tag>"])


def sample_one(symbols: list[int], merges: Merges, row: int, dropout: float) -> list[int]:
    """Reference implementation: segment one word; the random numbers depend on the row, the length and the position."""
    ranks = {(left, right): rank for rank, (left, right, _) in enumerate(merges)}
    while True:
        numbers = hash_integers(row, len(symbols), np.arange(len(symbols)))
        possible = [
            (ranks[pair], position)
            for position, pair in enumerate(pairwise(symbols))
            if pair in ranks and int(numbers[position]) >= int(dropout * 2**64)
        ]
        if not possible:
            return symbols
        rank, position = min(possible)
        symbols = [*symbols[:position], merges[rank][2], *symbols[position + 2 :]]


def probabilities(symbols: tuple[int, ...], merges: Merges, dropout: float) -> dict[tuple[int, ...], float]:
    """Compute the probability of each segmentation of a word by the definition of BPE-dropout."""
    ranks = {(left, right): rank for rank, (left, right, _) in enumerate(merges)}
    possible = sorted((ranks[pair], at) for at, pair in enumerate(pairwise(symbols)) if pair in ranks)
    found: Counter[tuple[int, ...]] = Counter({symbols: dropout ** len(possible)})
    for skipped, (rank, at) in enumerate(possible):
        merged = (*symbols[:at], merges[rank][2], *symbols[at + 2 :])
        for result, probability in probabilities(merged, merges, dropout).items():
            found[result] += dropout**skipped * (1 - dropout) * probability
    return found


def test_segmentations_equal_the_reference(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.text.bpe_dropout.CHUNK", 12)
    symbols = tokenizer.symbols()
    words = [
        [symbol for token in word for symbol in symbols[token]]
        for text in tokenizer.encode_words(["banana", "a bandana, ☃", "cabanabanana", "<tag> ananas"])
        for word in text
    ]
    sampled = rows_of(sample_segmentations(words, tokenizer.merges(), 0.3, samples=5))
    expected = [
        sample_one(word, tokenizer.merges(), 5 * number + sample, 0.3 if sample else 0.0)
        for number, word in enumerate(words)
        for sample in range(5)
    ]
    assert sampled == expected


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_segmentations_have_the_probabilities_of_bpe_dropout(dropout: float) -> None:
    a, b, ab, abb, aab, bb = range(6)  # the merges of overlapping pairs compete
    merges = [(a, b, ab), (ab, b, abb), (a, ab, aab), (b, b, bb)]
    count = 20_000
    sampled = rows_of(sample_segmentations([[a, a, b, b, b]], merges, dropout, samples=count))
    frequencies = Counter(map(tuple, sampled))
    expected = probabilities((a, a, b, b, b), merges, dropout)
    assert set(frequencies) <= set(expected)
    for segmentation, probability in expected.items():
        assert frequencies[segmentation] / count == pytest.approx(probability, abs=0.02)


def test_the_first_segmentation_is_that_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    types = WordTypes(tokenizer)
    words = rows_of(types.index([*TEXTS, "<tag> new\u00e9 w\u014drds <eos>"], [Tokenizer.BOS]))
    segmentations = rows_of(types.segmentations(0.9))
    for text, row in zip(TEXTS, words, strict=False):
        plain = [token for word in row for token in segmentations[word * SAMPLES]]
        assert plain == [tokenizer.BOS, *tokenizer.encode(text), tokenizer.EOS]


def test_dropout_keeps_the_text(tokenizer: Tokenizer) -> None:
    types = WordTypes(tokenizer)
    ((_, *words, _),) = rows_of(types.index(["a <tag> banana bandana 4\u2603\u00e9"], [Tokenizer.BOS]))
    segmentations = rows_of(types.segmentations(0.5))
    for sample in range(SAMPLES):
        ids = [token for word in words for token in segmentations[word * SAMPLES + sample]]
        assert tokenizer.decode(ids) == "a <tag> banana bandana 4\u2603\u00e9"


def test_dropout_of_almost_one_spells_words(tokenizer: Tokenizer) -> None:
    types = WordTypes(tokenizer)
    types.index(["banana"])
    *_, last = rows_of(types.segmentations(1 - 1e-9))
    assert tokenizer.tokens(last) == list("▁banana")


@pytest.fixture
def corpus(tokenizer: Tokenizer, tmp_path: Path) -> ParallelTokens:
    records = [PairRecord(Pair(text, text[::-1]), "", 1) for text in TEXTS]
    types = WordTypes(tokenizer), WordTypes(tokenizer)
    chunks = list(tokenise_corpus(records, tokenizer, tokenizer, None, SkippedPairs(), types))
    largest = {"source": 300, "target": 300} | dict.fromkeys(WORDS, 300)
    sampled = {name: side.segmentations(0.2) for name, side in zip(SEGMENTATIONS, types, strict=True)}
    write_token_store(tmp_path / "store", [chunks], largest, lambda: sampled)
    return open_token_store(tmp_path / "store", 7)


def test_each_epoch_has_other_segmentations_of_the_same_text(corpus: ParallelTokens, tokenizer: Tokenizer) -> None:
    rows = np.arange(len(TEXTS))
    for side, texts in ((corpus.source, TEXTS), (corpus.target, [text[::-1] for text in TEXTS])):
        epochs = [rows_of(side.take(rows + len(TEXTS) * epoch)) for epoch in range(3)]
        assert epochs[0] == rows_of(side.take(rows)) != epochs[1] != epochs[2]
        for epoch in epochs:
            assert list(map(tokenizer.decode, epoch)) == texts
            assert all(row[-1] == tokenizer.EOS for row in epoch)
    assert tokenizer.BOS not in corpus.source.take(rows).tokens
    for epoch in range(3):
        assert all(row[0] == tokenizer.BOS for row in rows_of(corpus.target.take(rows + len(TEXTS) * epoch)))


def test_a_segmentation_does_not_depend_on_the_other_rows(corpus: ParallelTokens) -> None:
    rows = np.arange(5 * len(TEXTS))
    together = rows_of(corpus.source.take(rows[::-1]))[::-1]
    assert together == [rows_of(corpus.source.take(rows[row : row + 1]))[0] for row in rows]
    assert corpus.source.lengths_at(rows).tolist() == list(map(len, together))


def test_no_sentence_becomes_longer_than_the_longest(corpus: ParallelTokens) -> None:
    rows = np.arange(200 * len(TEXTS))
    source, target = corpus.lengths_at(rows)
    plain = corpus.lengths_at(np.arange(len(TEXTS)))
    assert source.max() == target.max() - 1 == max(plain[0].max(), plain[1].max() - 1)
    assert source.mean() > plain[0].mean() + 1
    assert isinstance(corpus.source, DropoutTokens)
    unlimited = np.diff(corpus.source.segmentations.offsets)
    assert unlimited.max() > 1


def test_seeds_and_sides_have_different_segmentations(corpus: ParallelTokens, tmp_path: Path) -> None:
    rows = np.arange(len(TEXTS), 3 * len(TEXTS))
    again, other = (open_token_store(tmp_path / "store", seed).source.take(rows) for seed in (7, 8))
    assert rows_of(again) == rows_of(corpus.source.take(rows)) != rows_of(other)


def test_released_pages_of_words_are_read_again(corpus: ParallelTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.text.tokens.RELEASE_ABOVE", 0)
    rows = np.arange(3 * len(TEXTS))
    before = rows_of(corpus.target.take(rows))
    corpus.release_pages()
    assert rows_of(corpus.target.take(rows)) == before


def test_a_store_without_words_is_reported(corpus: ParallelTokens, tmp_path: Path) -> None:
    (tmp_path / "store" / "source.words.npy").unlink()
    with pytest.raises(DamagedStoreError, match=r"source\.words\.npy"):
        open_token_store(tmp_path / "store", 7)
