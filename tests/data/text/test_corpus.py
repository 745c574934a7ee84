"""Corpora of several shards, pairs held out for validation, and word alignments."""

from pathlib import Path

import pytest

from regard.data.text.corpus import Corpus, align
from regard.data.text.readers import Pair, PairRecord, Shard
from regard.errors import UserError

PAIRS = [Pair("a b c", "x y"), Pair("", ""), Pair("d\u3000e", "z")]
RECORDS = [PairRecord(pair, "a.tsv", line) for line, pair in enumerate(PAIRS, start=1)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_records_have_the_file_and_line_of_their_shard() -> None:
    corpus = Corpus([Shard("one", lambda: iter(PAIRS[:2])), Shard("two", lambda: iter(PAIRS[2:]))])
    assert [(record.file, record.line) for record in corpus.records()] == [("one", 1), ("one", 2), ("two", 1)]
    assert list(corpus.pairs()) == list(corpus.pairs()) == PAIRS
    assert corpus.name == "one and 1 more"


def test_held_out_pairs_are_omitted_with_their_alignments(tmp_path: Path) -> None:
    path = write(tmp_path / "links", "0-0", "", "1-0")
    corpus = Corpus([Shard("one", lambda: iter(PAIRS))], path, held_out=frozenset({0}))
    assert [record.links for record in corpus.records()] == [[], [(1, 0)]]
    assert list(corpus.pairs()) == PAIRS[1:]
    assert len(list(corpus.all_records())) == 3


def test_a_corpus_without_pairs_is_rejected() -> None:
    with pytest.raises(UserError, match="empty contains no pairs"):
        list(Corpus([Shard("empty", lambda: iter([]))]).records())


def test_every_pair_gets_its_links(tmp_path: Path) -> None:
    path = write(tmp_path / "links", "0-0 2-1\t1-0", "", "1-0")
    assert [record.links for record in align(RECORDS, path)] == [[(0, 0), (2, 1), (1, 0)], [], [(1, 0)]]
    assert [record.pair for record in align(RECORDS, path)] == PAIRS


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0-0 1:1", 'line 1: "1:1" is not a link'),
        ("0-0 -1-0", 'line 1: "-1-0" is not a link'),
        ("0-0-0", 'line 1: "0-0-0" is not a link'),
        ("²-0", "is not a link"),
        ("3-0", 'the link "3-0" refers to source word 3, but the sentence has 3 words'),
        ("0-2", 'the link "0-2" refers to target word 2, but the sentence has 2 words'),
    ],
)
def test_an_invalid_link_is_rejected_with_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "links", line, "", "0-0")
    with pytest.raises(UserError) as raised:
        list(align(RECORDS, path))
    assert f"{path}, line 1: " in str(raised.value)
    assert problem in str(raised.value)


@pytest.mark.parametrize("lines", [1, 2, 4, 6])
def test_a_different_number_of_alignments_is_rejected_with_both_counts(tmp_path: Path, lines: int) -> None:
    path = write(tmp_path / "links", *[""] * lines)
    with pytest.raises(UserError, match=f"{path} has {lines} lines but its corpus has 3 pairs"):
        list(align(RECORDS, path))
