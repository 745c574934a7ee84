"""Glossaries: terms with their translations, and where they occur in a text.

A text is a sequence of units: words in scripts with spaces, and single characters of all others and of punctuation.
A term occurs where its units do, so that "cat" does not occur in "concatenate", but 数据 does in 大数据库.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from regard.data.text.inflection import WORD, fold, is_form_of, is_word_character
from regard.data.text.readers import Pair, is_header, read_lines, read_objects, text_of
from regard.errors import UserError

MAX_TERMS = 1_000_000
MAX_CHARACTERS = 200
"""Maximum number of characters of a term or its translation."""
_UNIT = re.compile(rf"{WORD}+|\S")
_MARKUP = re.compile(r"`+[^`]*`+|\{[^{}]*\}|%\([^()]*\)[a-z]|</?[A-Za-z][^<>]*>")
"""Code, placeholders and tags, in which no term occurs."""


class Term(NamedTuple):
    """A term of the source language and its translation."""

    source: str
    target: str


@dataclass(frozen=True)
class TermMatch:
    """An occurrence of a term in a text: characters `start` to `end`."""

    term: Term
    start: int
    end: int


class _Unit(NamedTuple):
    text: str
    start: int
    end: int
    spaced: bool  # whether white space precedes it


class Glossary:
    """Terms with their translations, for `regard translate --glossary` and `Translator`.

    Examples:
        >>> glossary = Glossary([("file descriptor", "文件描述符"), ("file", "文件")])
        >>> [match.term.target for match in glossary.find("Files have file descriptors.", "en")]
        ['文件', '文件描述符']

    Args:
        terms: Pairs of a source term and its translation.
        name: Name of the glossary, for errors.

    Raises:
        UserError: A term is empty, too long, contains a line break, or has two translations.
    """

    def __init__(self, terms: Iterable[tuple[str, str]], name: str = "glossary") -> None:
        self.terms = tuple(_check_terms(((f"{name}, term {n}", *pair) for n, pair in enumerate(terms, 1))))

    @classmethod
    def read(cls, path: Path) -> Glossary:
        """Read a .tsv file: in each line a source term and its translation; further columns are ignored.

        Blank lines, lines that start with "# ", and a header such as "en" and "zh" are skipped.
        """
        glossary = cls(())
        glossary.terms = tuple(_check_terms(_read_rows(path)))
        if not glossary.terms:
            raise UserError(
                f"{path} contains no terms; a glossary has a source term, a tab and its translation per line"
            )
        return glossary

    @classmethod
    def parse(cls, value: object, name: str = "glossary") -> Glossary:
        """Return a JSON object of terms and translations, or a list of pairs, as a glossary; never reads a file."""
        if not isinstance(value, Mapping | list | tuple):
            raise UserError(f'{name}: expected terms such as {{"cat": "猫"}}, found {type(value).__name__}')
        pairs: list[tuple[str, str]] = []
        for row in value.items() if isinstance(value, Mapping) else value:
            if not isinstance(row, list | tuple) or len(row) != 2:
                raise UserError(f'{name}: each term must be a pair such as ["cat", "猫"], found {row!r:.80}')
            if not all(isinstance(text, str) for text in row):
                raise UserError(f"{name}: a term and its translation must be strings, found {row!r:.80}")
            pairs.append((row[0], row[1]))
        return cls(pairs, name)

    @classmethod
    def of(cls, terms: Glossary | Mapping[str, str] | Iterable[Sequence[str]] | str | Path) -> Glossary:
        """Return a glossary, a mapping or pairs of terms, or the path of a .tsv file as a glossary."""
        if isinstance(terms, Glossary):
            return terms
        if isinstance(terms, str | Path):
            return cls.read(Path(terms))
        return cls.parse(terms if isinstance(terms, Mapping) else list(terms))

    def __repr__(self) -> str:
        return f"Glossary({len(self.terms):,} terms)"

    def __len__(self) -> int:
        return len(self.terms)

    def find(self, text: str, language: str = "") -> list[TermMatch]:
        """Return where terms occur in a text, from left to right and without overlap.

        Of overlapping occurrences, the longest wins, then one in the form of the glossary over an inflected one, then
        the first. Terms in code between backticks, in placeholders and in tags do not count.

        Args:
            text: A text in the source language.
            language: Code of the source language, which selects the endings of inflected forms.
        """
        return self._find(text, language) if self.terms else []

    def _find(self, text: str, language: str) -> list[TermMatch]:
        units = list(_split_units(text))
        taken = bytearray(len(text))  # characters that are markup, or belong to a term already
        for markup in _MARKUP.finditer(text):
            taken[markup.start() : markup.end()] = b"\1" * len(markup[0])
        found: list[tuple[int, int, int, int, Term]] = []
        for first, unit in enumerate(units):
            for term, wanted in self._by_start.get(_key(unit.text), ()):
                rank = _match(wanted, units[first : first + len(wanted)], language)
                if rank is not None:
                    end = units[first + len(wanted) - 1].end
                    found.append((unit.start - end, rank, unit.start, end, term))
        matches: list[TermMatch] = []
        for _, _, start, end, term in sorted(found, key=lambda one: one[:3]):
            if not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                matches.append(TermMatch(term, start, end))
        return sorted(matches, key=lambda match: match.start)

    @cached_property
    def _by_start(self) -> Mapping[str, Sequence[tuple[Term, Sequence[_Unit]]]]:
        """The terms and their units by what `_key` returns for the first unit."""
        table: dict[str, list[tuple[Term, Sequence[_Unit]]]] = defaultdict(list)
        for term in self.terms:
            units = list(_split_units(term.source))
            table[_key(units[0].text)].append((term, units))
        return table


def find_target(text: str, target: str) -> list[int]:
    """Return where a translation of a term occurs in a text.

    In scripts with spaces, it occurs as whole words; its first letter may be a capital letter, as at the start of a
    sentence. Occurrences do not overlap.
    """
    return [match.start() for match in target_pattern(target).finditer(unicodedata.normalize("NFC", text))]


@lru_cache(maxsize=4096)
def target_pattern(target: str) -> re.Pattern[str]:
    """Return the regular expression of `find_target`."""
    target = unicodedata.normalize("NFC", target)
    before = rf"(?<!{WORD})" if is_word_character(target[0]) else ""
    after = rf"(?!{WORD})" if is_word_character(target[-1]) else ""
    return re.compile(f"{before}{_initial(target[0])}{re.escape(target[1:])}{after}")


def count_needed(matches: Sequence[TermMatch]) -> dict[str, int]:
    """Return how often each translation must occur; the longest come first.

    A translation that is part of another one, such as 字符串 of 字符串字面量, occurs in both.
    """
    targets = [match.term.target for match in matches]
    distinct = sorted(set(targets), key=lambda target: (-len(target), target))
    return {part: sum(len(find_target(whole, part)) for whole in targets) for part in distinct}


def find_kept(text: str, matches: Sequence[TermMatch]) -> list[bool]:
    """Return for each occurrence of a term in the source whether its translation occurs in the text.

    If a term occurs twice, its translation must occur twice; otherwise only the first one counts as kept.
    """
    available = {target: len(find_target(text, target)) for target in count_needed(matches)}
    kept = [False] * len(matches)
    for i in sorted(range(len(matches)), key=lambda i: -len(matches[i].term.target)):
        target = matches[i].term.target
        if available[target] > 0:
            kept[i] = True
            for part in available:
                available[part] -= len(find_target(target, part))
    return kept


def _initial(character: str) -> str:
    upper = character.upper()
    return re.escape(character) if len(upper) != 1 or upper == character else f"[{character}{upper}]"


def _split_units(text: str) -> Iterator[_Unit]:
    end = 0
    for match in _UNIT.finditer(text):
        yield _Unit(unicodedata.normalize("NFC", match[0]), match.start(), match.end(), match.start() > end)
        end = match.end()


def _key(unit: str) -> str:
    """Return what all forms of a word start with."""
    return fold(unit)[:2]


def _match(term: Sequence[_Unit], units: Sequence[_Unit], language: str) -> int | None:
    """Return 0 if units of a text are those of a term, 1 if their case differs, 2 if their form does, or None."""
    if len(units) < len(term):
        return None
    rank = 0
    for i, (unit, wanted) in enumerate(zip(units, term, strict=True)):
        if i and unit.spaced != wanted.spaced:
            return None
        if unit.text == wanted.text:
            continue
        if not is_word_character(wanted.text[0]) or not is_form_of(unit.text, wanted.text, language):
            return None
        rank = max(rank, 1 if unit.text.casefold() == wanted.text.casefold() else 2)
    return rank


# Reading


class LineWithGlossary(str):
    """A line of a .jsonl file with the value of its key `glossary`."""

    glossary: Glossary | None = None


def read_texts_with_glossaries(path: Path, key: str) -> Iterator[LineWithGlossary]:
    """Read the values of a key of a .jsonl file, and of the key "glossary", which not all lines need."""
    for where, row in read_objects(path, f'{{"{key}": "…"}}'):
        line = LineWithGlossary(text_of(row, key, where))
        if row.get("glossary") is not None:
            line.glossary = Glossary.parse(row["glossary"], f"{where}: glossary")
        yield line


def _read_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip() or line.startswith("# "):
            continue
        source, *columns = line.split("\t")
        if not columns:
            raise UserError(f"{path}, line {number}: has no tab; write a source term, a tab and its translation")
        if number > 1 or not is_header(Pair(source, columns[0])):
            yield f"{path}, line {number}", source, columns[0]


def _check_terms(rows: Iterable[tuple[str, str, str]]) -> Iterator[Term]:
    """Yield the terms of rows that start with their place, without duplicates."""
    places: dict[str, tuple[str, str]] = {}
    for number, (where, *texts) in enumerate(rows, 1):
        if number > MAX_TERMS:
            raise UserError(f"{where}: a glossary has at most {MAX_TERMS:,} terms; remove the others")
        source, target = (unicodedata.normalize("NFC", " ".join(_check_text(text, where).split())) for text in texts)
        for text, side in ((source, "source term"), (target, "translation")):
            if not text:
                raise UserError(f"{where}: the {side} is empty; give both, or remove the term")
        other, place = places.setdefault(source, (target, where))
        if other != target:
            raise UserError(f"{where}: {source!r} is {target!r}, but {other!r} in {place}; keep one of them")
        if place == where:
            yield Term(source, target)


def _check_text(text: str, where: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(
            f"{where}: contains a lone surrogate, which is half of a character; both halves must be present"
        )
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{where}: has {len(text):,} characters; a term has at most {MAX_CHARACTERS}")
    return text
