from pathlib import Path

import numpy as np
import pytest

from regard.data.text import encoding
from regard.data.text.encoding import SkippedPairs, tokenise_corpus, tokenise_pairs
from regard.data.text.pairs import Pair, PairRecord
from regard.data.text.tokenizer import Tokenizer
from tests.data.text.test_tokens import rows_of


def entries(pairs: list[Pair]) -> list[PairRecord]:
    return [PairRecord(pair, "a.tsv", line) for line, pair in enumerate(pairs, start=1)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["one two three four five"] * 3, 300, "word")


def test_the_source_ends_with_end_and_the_target_stands_between_begin_and_end(tokenizer: Tokenizer) -> None:
    tokens = tokenise_pairs([Pair("one two", "three")], tokenizer, tokenizer)
    assert rows_of(tokens.source) == [[*tokenizer.encode("one two"), tokenizer.EOS]]
    assert rows_of(tokens.target) == [[tokenizer.BOS, *tokenizer.encode("three"), tokenizer.EOS]]


def test_pairs_with_an_empty_side_or_too_many_tokens_are_left_out_and_counted(tokenizer: Tokenizer) -> None:
    pairs = [
        Pair("one", "two"),
        Pair("", "two"),
        Pair("one", " \t"),
        Pair("", ""),
        Pair("one two three", "one"),
        Pair("one", "one two three"),
        Pair("three", "four five"),
    ]
    left_out = SkippedPairs()
    (tokens,) = tokenise_corpus(entries(pairs), tokenizer, tokenizer, 3, left_out)
    assert len(tokens) == 2
    assert left_out.counts == {"an empty side": 3, "over 3 tokens": 2}
    assert rows_of(tokens.source)[1] == [*tokenizer.encode("three"), tokenizer.EOS]


def test_what_is_left_out_is_listed_with_its_place(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "LISTED", 2)
    pairs = [Pair("one", "two"), Pair(" ", "two"), Pair("one\ttwo\nthree", "x" * 200), Pair("", "")]
    left_out = SkippedPairs()
    list(tokenise_corpus(entries(pairs), tokenizer, tokenizer, 9, left_out))
    left_out.write(tmp_path / "skipped.tsv")
    header, first, second, rest = (tmp_path / "skipped.tsv").read_text().splitlines()
    assert header.split("\t") == ["file", "line", "reason", "source_tokens", "target_tokens", "source", "target"]
    assert first.split("\t") == ["a.tsv", "2", "an empty side", str(len(tokenizer.encode(" "))), "1", "", "two"]
    assert second.split("\t")[:3] == ["a.tsv", "3", "over 9 tokens"]
    assert second.split("\t")[5:] == ["one two three", "x" * 80]
    assert rest == "# 1 more of 3 are not listed"


def test_links_between_words_become_links_between_their_pieces(tokenizer: Tokenizer) -> None:
    entry = PairRecord(Pair("one zzz", "yy two"), "a", 1, [(0, 1), (1, 0)])
    (tokens,) = tokenise_corpus(
        [entry, PairRecord(Pair("one", "two"), "a", 2)], tokenizer, tokenizer, None, SkippedPairs()
    )
    z, y = len(tokenizer.encode("zzz")), len(tokenizer.encode("yy"))
    assert (z, y) == (4, 3)  # spelled, with the space before
    expected = [(t, s) for t in range(y) for s in range(1, 1 + z)] + [(y, 0), (y + 1, 1 + z)]
    assert tokens.links is not None
    assert rows_of(tokens.links) == [[place for link in expected for place in link], []]


def test_no_pair_is_too_long_without_a_limit(tokenizer: Tokenizer) -> None:
    tokens = tokenise_pairs([Pair("one " * 999, "two")], tokenizer, tokenizer)
    assert len(tokens) == 1
    assert tokens.source.lengths[0] > 999


def test_no_pairs_at_all_are_an_empty_corpus(tokenizer: Tokenizer) -> None:
    assert len(tokenise_pairs([], tokenizer, tokenizer)) == 0


def test_more_pairs_than_a_chunk_stay_in_order(tokenizer: Tokenizer) -> None:
    words = ["one", "two", "three", "four", "five"]
    pairs = [Pair(words[i % 5], words[i % 3]) for i in range(10_007)]
    tokens = tokenise_pairs(pairs, tokenizer, tokenizer)
    assert len(tokens) == 10_007
    for i in (0, 9_999, 10_000, 10_006):
        assert rows_of(tokens.source.take(np.array([i])))[0][:-1] == tokenizer.encode(pairs[i].source)
        assert rows_of(tokens.target.take(np.array([i])))[0][1:-1] == tokenizer.encode(pairs[i].target)
