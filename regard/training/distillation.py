"""Sequence-level distillation (Kim and Rush, 2016): a teacher's translations of a corpus become a student's corpus.

The new corpus stands line by line beside the old one. A line that the teacher does not translate, because it is blank
or too long, has an empty translation, which training leaves out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from regard.config import Settings
from regard.data.text.pairs import Pair
from regard.data.text.readers import format_suffix
from regard.decoding.config import DecodingSettings, SearchSettings
from regard.errors import UserError
from regard.evaluation import choose_closest, tokenisation_for
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translate_files import translate_items, without_line_ends
from regard.pipelines.translator import WINDOW, Translator
from regard.training.checkpoint import replace_text


class Distillation(Settings):
    """How a corpus is distilled."""

    search: DecodingSettings = SearchSettings()
    closest: Literal["chrf", "bleu"] | None = Field(
        None, description="of the n best take the one nearest to the reference, not the likeliest"
    )
    keep_reference: bool = Field(False, description="every line gives two pairs: with its reference, and distilled")
    longest: int = Field(256, gt=1, description="lines of more tokens, END counted, are not translated")

    @property
    def pairs_a_line(self) -> int:
        return 2 if self.keep_reference else 1


@dataclass(frozen=True)
class Corpus:
    """What is distilled; it can be read again and again. Without references, targets are empty."""

    read: Callable[[], Iterable[Pair]]
    referenced: bool

    def measure(self) -> tuple[int, str]:
        """The number of lines, and a checksum of all of them; a line that cannot be read is refused here."""
        digest, lines = hashlib.sha256(), 0
        for lines, pair in enumerate(self.read(), 1):  # noqa: B007  the last number is the count
            digest.update(f"{pair.source}\n{pair.target}\n".encode())
        return lines, digest.hexdigest()


@dataclass
class Counts:
    """What became of the lines."""

    lines: int = 0
    blank: int = 0
    long: int = 0


class _Line(NamedTuple):
    """A pair, and what of it the teacher is given: nothing, where it is not to be translated."""

    pair: Pair
    text: str


def distil(
    teacher: Translator,
    corpus: Corpus,
    how: Distillation,
    take: Callable[[list[Pair]], object],
    *,
    done: int = 0,
    watch: Callable[[int], object] | None = None,
) -> Counts:
    """Gives the new pairs of every line to `take`, in order, with no more than two windows of lines in memory.

    Args:
        teacher: what translates.
        corpus: what is translated.
        how: the settings.
        take: gets one pair a line, or two where the reference is kept, the reference's first.
        done: how many lines have been taken before; they are passed over, but counted.
        watch: is told how many lines have come, window by window.

    Raises:
        UserError: references are needed and the corpus has none, or it has fewer lines than were taken before.
    """
    if not corpus.referenced and (how.closest or how.keep_reference):
        raise UserError("the corpus has no references to keep or to be close to; give its target side too")
    counts = Counts()
    tokenisation = tokenisation_for(teacher.languages[1])

    def choose(pair: Pair, found: Sequence[Hypothesis]) -> str:
        texts = [hypothesis.text for hypothesis in found]
        if how.closest is None or not pair.target.strip():
            return texts[0]
        return texts[choose_closest(texts, pair.target, how.closest, tokenisation)]

    def pass_on(number: int, line: _Line, found: Sequence[Hypothesis]) -> None:
        distilled = Pair(line.pair.source, choose(line.pair, found))
        take([line.pair, distilled] if how.keep_reference else [distilled])

    lines = _judge(corpus.read(), teacher, how.longest, counts)
    translate_items(teacher, lines, lambda line: line.text, pass_on, how.search, done=done, watch=watch)
    return counts


def _judge(pairs: Iterable[Pair], teacher: Translator, longest: int, counts: Counts) -> Iterator[_Line]:
    """Every line with what the teacher is to translate of it."""
    limits = [model.config.max_length for model in teacher.models if model.config.positions == "learned"]
    longest = min([longest, *limits])
    pairs = iter(pairs)
    while window := list(islice(pairs, WINDOW)):
        encoded = teacher.vocabularies.source.encode_batch([pair.source for pair in window])
        for pair, tokens in zip(window, encoded, strict=True):
            long = len(tokens) + 1 > longest
            blank = not pair.source.strip()
            counts.lines, counts.blank, counts.long = counts.lines + 1, counts.blank + blank, counts.long + long
            yield _Line(pair, "" if long or blank else pair.source)


def write_pairs(paths: Sequence[Path], pairs: Sequence[Pair]) -> list[str]:
    """The records of some pairs: for two line files one each, for a .tsv or .jsonl file one of both sides."""
    if len(paths) == 2:
        return ["".join(f"{without_line_ends(pair[side])}\n" for pair in pairs) for side in (0, 1)]
    if format_suffix(paths[0]) == ".jsonl":
        return ["".join(json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs)]
    return ["".join("\t".join(without_line_ends(text).replace("\t", " ") for text in pair) + "\n" for pair in pairs)]


class Note:
    """A small JSON file beside an output, which says what made it; `--resume` goes on only where that is the same."""

    def __init__(self, output: Path, teachers: Sequence[str], corpus: tuple[int, str], how: Distillation) -> None:
        """`teachers` are fingerprints of models, `corpus` is what `Corpus.measure` found."""
        self.path = output.with_name(f"{output.name}.json")
        self.origin: dict[str, Any] = {
            "teachers": list(teachers),
            "corpus": {"lines": corpus[0], "sha256": corpus[1]},
            "settings": how.model_dump(mode="json"),
        }

    def begin(self, going_on: bool) -> None:
        """Writes down what is begun, or checks that it is what was begun before.

        Raises:
            UserError: something differs from what the output was begun with; it is named with both values.
        """
        if not going_on:
            self._write({"complete": False})
            return
        try:
            before = _flatten({key: json.loads(self.path.read_text(encoding="utf-8"))[key] for key in self.origin})
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(f"{self.path}: missing or damaged, so --resume cannot know what began the output") from None
        now = _flatten(self.origin)
        for key in now:
            if before.get(key) != now[key]:
                raise UserError(
                    f"{self.path}: the output was begun with {key} {_show(before.get(key))}, not {_show(now[key])}; "
                    f"go on as it was begun, or choose another name"
                )

    def finish(self, paths: Sequence[Path], counts: Counts, pairs: int) -> None:
        """Writes down what came of it, with the checksum of every file."""
        files = {}
        for path in paths:
            with path.open("rb") as file:
                files[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        found = {"pairs": pairs, "blank": counts.blank, "too_long": counts.long, "files": files}
        self._write({"complete": True} | found)

    def _write(self, more: dict[str, Any]) -> None:
        content = {"regard": version("regard")} | self.origin | more
        try:
            replace_text(self.path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written ({error.strerror})") from None


def _flatten(values: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Every value by its full name, such as settings.search.beam."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flatten(value, f"{group}{key}.") if isinstance(value, dict) else {f"{group}{key}": value}
    return found


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
