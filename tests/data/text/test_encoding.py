"""Tokenisation of parallel corpora: special tokens, skipped pairs and alignments."""

from pathlib import Path

import numpy as np
import pytest

from regard.data.text import encoding
from regard.data.text.encoding import SkippedPairs, link_tokens, tokenise_corpus, tokenise_pairs
from regard.data.text.readers import Pair, PairRecord
from regard.data.text.tokenizer import Tokenizer
from tests.data.text.test_tokens import rows_of


def records(pairs: list[Pair]) -> list[PairRecord]:
    return [PairRecord(pair, "a.tsv", line) for line, pair in enumerate(pairs, start=1)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one two three four five"] * 3, 300, "word")


def test_source_ends_with_eos_and_target_has_bos_and_eos(tokenizer: Tokenizer) -> None:
    tokens = tokenise_pairs([Pair("one two", "three")], tokenizer, tokenizer)
    assert rows_of(tokens.source) == [[*tokenizer.encode("one two"), tokenizer.EOS]]
    assert rows_of(tokens.target) == [[tokenizer.BOS, *tokenizer.encode("three"), tokenizer.EOS]]


def test_pairs_with_an_empty_side_or_too_many_tokens_are_skipped_and_counted(tokenizer: Tokenizer) -> None:
    pairs = [
        Pair("one", "two"),
        Pair("", "two"),
        Pair("one", " \t"),
        Pair("", ""),
        Pair("one two three", "one"),
        Pair("one", "one two three"),
        Pair("three", "four five"),
    ]
    skipped = SkippedPairs()
    (tokens,) = tokenise_corpus(records(pairs), tokenizer, tokenizer, 3, skipped)
    assert len(tokens) == 2
    assert skipped.counts == {"an empty side": 3, "over 3 tokens": 2}
    assert rows_of(tokens.source)[1] == [*tokenizer.encode("three"), tokenizer.EOS]


def test_skipped_pairs_are_listed_with_file_and_line(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "MAX_LISTED", 2)
    pairs = [Pair("one", "two"), Pair(" ", "two"), Pair("one\ttwo\nthree", "x" * 200), Pair("", "")]
    skipped = SkippedPairs()
    list(tokenise_corpus(records(pairs), tokenizer, tokenizer, 9, skipped))
    skipped.write(tmp_path / "skipped.tsv")
    header, first, second, rest = (tmp_path / "skipped.tsv").read_text().splitlines()
    assert header.split("\t") == ["file", "line", "reason", "source_tokens", "target_tokens", "source", "target"]
    assert first.split("\t") == ["a.tsv", "2", "an empty side", str(len(tokenizer.encode(" "))), "1", "", "two"]
    assert second.split("\t")[:3] == ["a.tsv", "3", "over 9 tokens"]
    assert second.split("\t")[5:] == ["one two three", "x" * 80]
    assert rest == "# 1 more of 3 are not listed"


def test_tokens_are_linked_as_their_words_are() -> None:
    # The source words have 2, 1 and 1 tokens, the target words 1 and 2 tokens with a token of white space in between.
    flat = link_tokens([(0, 1), (2, 0), (0, 1)], [0, 0, 1, 2], [0, -1, 1, 1])
    links = list(zip(flat[::2], flat[1::2], strict=True))
    assert links == [(0, 3), (2, 0), (2, 1), (3, 0), (3, 1), (4, 4)]


def test_alignments_of_words_are_stored_as_alignments_of_tokens(tokenizer: Tokenizer) -> None:
    aligned = PairRecord(Pair("one zzz", "yy two"), "a", 1, [(0, 1), (1, 0)])
    unaligned = PairRecord(Pair("one", "two"), "a", 2)
    (tokens,) = tokenise_corpus([aligned, unaligned], tokenizer, tokenizer, None, SkippedPairs())
    z, y = len(tokenizer.encode("zzz")), len(tokenizer.encode("yy"))
    assert (z, y) == (4, 3)  # one token per character, including the preceding space
    expected = [(t, s) for t in range(y) for s in range(1, 1 + z)] + [(y, 0), (y + 1, 1 + z)]
    assert tokens.links is not None
    assert rows_of(tokens.links) == [[position for link in expected for position in link], []]


def test_no_pair_is_too_long_without_a_limit(tokenizer: Tokenizer) -> None:
    tokens = tokenise_pairs([Pair("one " * 999, "two")], tokenizer, tokenizer)
    assert len(tokens) == 1
    assert tokens.source.lengths[0] > 999


def test_an_empty_list_of_pairs_is_an_empty_corpus(tokenizer: Tokenizer) -> None:
    assert len(tokenise_pairs([], tokenizer, tokenizer)) == 0


def test_pairs_of_several_chunks_stay_in_order(tokenizer: Tokenizer) -> None:
    words = ["one", "two", "three", "four", "five"]
    pairs = [Pair(words[i % 5], words[i % 3]) for i in range(10_007)]
    tokens = tokenise_pairs(pairs, tokenizer, tokenizer)
    assert len(tokens) == 10_007
    for i in (0, 9_999, 10_000, 10_006):
        assert rows_of(tokens.source.take(np.array([i])))[0][:-1] == tokenizer.encode(pairs[i].source)
        assert rows_of(tokens.target.take(np.array([i])))[0][1:-1] == tokenizer.encode(pairs[i].target)
