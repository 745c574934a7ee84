from pathlib import Path

import pytest

from regard.data.text.alignment import align, link_tokens
from regard.data.text.pairs import Pair, PairRecord
from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError

PAIRS = [Pair("a b c", "x y"), Pair("", ""), Pair("d\u3000e", "z")]
ENTRIES = [PairRecord(pair, "a.tsv", line) for line, pair in enumerate(PAIRS, start=1)]


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_every_pair_gets_its_links(tmp_path: Path) -> None:
    path = write(tmp_path / "links", "0-0 2-1\t1-0", "", "1-0")
    assert [entry.links for entry in align(ENTRIES, path)] == [[(0, 0), (2, 1), (1, 0)], [], [(1, 0)]]
    assert [entry.pair for entry in align(ENTRIES, path)] == PAIRS


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("0-0 1:1", 'line 1: "1:1" is not a link'),
        ("0-0 -1-0", 'line 1: "-1-0" is not a link'),
        ("0-0-0", 'line 1: "0-0-0" is not a link'),
        ("²-0", "is not a link"),
        ("3-0", 'the link "3-0" names source word 3, but that sentence has 3 words'),
        ("0-2", 'the link "0-2" names target word 2, but that sentence has 2 words'),
    ],
)
def test_a_wrong_link_is_refused_with_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path / "links", line, "", "0-0")
    with pytest.raises(UserError) as refused:
        list(align(ENTRIES, path))
    assert f"{path}, line 1: " in str(refused.value)
    assert complaint in str(refused.value)


@pytest.mark.parametrize("lines", [1, 2, 4, 6])
def test_another_number_of_lines_is_refused_with_both_counts(tmp_path: Path, lines: int) -> None:
    path = write(tmp_path / "links", *[""] * lines)
    with pytest.raises(UserError, match=f"{path} has {lines} lines but its corpus has 3 pairs"):
        list(align(ENTRIES, path))


def test_pieces_are_linked_as_their_words_are() -> None:
    # the source words are of 2, 1 and 1 pieces, the target words of 1 and 2, with a piece of white space between
    flat = link_tokens([(0, 1), (2, 0), (0, 1)], [0, 0, 1, 2], [0, -1, 1, 1])
    links = list(zip(flat[::2], flat[1::2], strict=True))
    assert links == [(0, 3), (2, 0), (2, 1), (3, 0), (3, 1), (4, 4)]


def test_the_words_of_pieces_are_those_between_white_space() -> None:
    tokenizer = Tokenizer.train(["don't stop", "naïve 练习"] * 3, 330, "bpe")
    for text in ("don't stop", "  don't\u3000 stop!?  naïve\t练习 ", "Ünknown 🙂x", "x", "a\u0301 b"):
        ids = tokenizer.encode(text)
        spelled: dict[int, list[int]] = {}
        for index, word in zip(ids, tokenizer.word_ids(ids), strict=True):
            spelled.setdefault(word, []).append(index)
        between = spelled.pop(-1, [])
        assert not tokenizer.decode(between).strip()
        assert sorted(spelled) == list(range(len(spelled)))
        found = [tokenizer.decode(pieces).strip() for _, pieces in sorted(spelled.items())]
        assert found == tokenizer.decode(ids).split()
    assert tokenizer.word_ids([]) == []
