"""Word alignments: read from a file, checked against their sentences, and carried over to tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from regard.data.text.pairs import Links, PairRecord
from regard.data.text.readers import read_lines
from regard.errors import UserError


def align(entries: Iterable[PairRecord], path: Path) -> Iterator[PairRecord]:
    """Give each pair its links, from a line in Pharaoh form such as "0-0 1-2". Words are parted by white space.

    Raises:
        UserError: If a link is malformed or points beyond the words of its sentence, or if there are more lines than
            pairs or fewer.
    """
    entries, lines = iter(entries), read_lines(path)
    for number, (entry, line) in enumerate(zip_longest(entries, lines), start=1):
        if entry is None or line is None:
            longer = number + sum(1 for _ in entries) + sum(1 for _ in lines)
            pairs, found = (number - 1, longer) if entry is None else (longer, number - 1)
            raise UserError(
                f"{path} has {found} lines but its corpus has {pairs} pairs: an alignment needs one line for each."
            )
        words = [len(text.split()) for text in entry.pair]
        yield entry._replace(links=[_parse(link, words, f"{path}, line {number}") for link in line.split()])


def link_tokens(links: Links, source: Sequence[int], target: Sequence[int]) -> list[int]:
    """Link every piece of a word to every piece of the words it is linked to, and END to END.

    Args:
        links: The linked words.
        source: The word of each source token, without END.
        target: The word of each target token, without BOS and END.

    Returns:
        Target place, source place, target place, … in rising order, without repetition.
    """
    source_places, target_places = _places(source), _places(target)
    tokens = {(t, s) for i, j in links for t in target_places.get(j, []) for s in source_places.get(i, [])}
    tokens.add((len(target), len(source)))
    return [place for link in sorted(tokens) for place in link]


def _parse(link: str, words: list[int], place: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})-(\d{1,9})", link, re.ASCII)
    if match is None:
        raise UserError(f'{place}: "{link}" is not a link; write the numbers of two words, such as 0-0.')
    numbers = int(match[1]), int(match[2])
    for number, count, side in zip(numbers, words, ("source", "target"), strict=True):
        if number >= count:
            raise UserError(
                f'{place}: the link "{link}" names {side} word {number}, but that sentence has {count} words, '
                f"counted from 0."
            )
    return numbers


def _places(words: Sequence[int]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    return places
