"""Sequence-level distillation (Kim and Rush, 2016): train a student on a teacher's translations.

The output has one line per line of the input corpus. Blank and overlong lines have an empty translation, which training
skips. Back-translation (Sennrich et al., 2016) is the same with a model of the opposite direction: the translations are
the sources, and the lines of the corpus the targets.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from regard.config import Settings
from regard.data.text.languages import tokenisation_for
from regard.data.text.readers import Pair
from regard.data.text.sentences import LengthWarnings
from regard.data.text.writers import format_pairs as format_pairs
from regard.decoding.settings import DecodingSettings, SearchSettings
from regard.errors import UserError
from regard.evaluation.metrics import choose_closest
from regard.files import read_json, report_unwritable, sha256_of
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator, windows
from regard.training.checkpoint import replace_text
from regard.training.run_folder import show_value


class Distillation(Settings):
    """Settings of distillation."""

    search: DecodingSettings = SearchSettings()
    closest: Literal["chrf", "bleu"] | None = Field(
        None, description="choose the hypothesis closest to the reference instead of the most probable one"
    )
    keep_reference: bool = Field(False, description="write two pairs per line: the reference and the translation")
    back_translate: bool = Field(False, description="write the translations as sources and the text as targets")
    longest: int = Field(256, gt=1, description="lines with more tokens, including END, are not translated")

    @property
    def pairs_per_line(self) -> int:
        return 2 if self.keep_reference else 1


@dataclass(frozen=True)
class Corpus:
    """The corpus to distil; `read` can be called repeatedly. Without references, targets are empty."""

    read: Callable[[], Iterable[Pair]]
    has_references: bool

    def measure(self) -> tuple[int, str]:
        """Return the number of lines and their SHA-256 checksum. Raises UserError for unreadable lines."""
        digest, lines = hashlib.sha256(), 0
        for lines, pair in enumerate(self.read(), 1):  # noqa: B007  the last value is the count
            digest.update(f"{pair.source}\n{pair.target}\n".encode())
        return lines, digest.hexdigest()


@dataclass
class Counts:
    """Numbers of lines: all, blank, and too long; and lines longer than those of the teacher's training data."""

    lines: int = 0
    blank: int = 0
    long: int = 0
    unusual: LengthWarnings = field(default_factory=lambda: LengthWarnings("line"))


def distill(
    teacher: Translator,
    corpus: Corpus,
    settings: Distillation,
    write: Callable[[list[Pair]], object],
    *,
    done: int = 0,
    progress: Callable[[int], object] | None = None,
) -> Counts:
    """Translate a corpus and pass the new pairs of every line to `write`, in order, in bounded memory.

    Args:
        write: Receives one pair per line, or two if the reference is kept (the reference first).
        done: Number of lines written by an earlier call; they are counted but not translated again.
        progress: Receives the number of lines read, window by window.
    """
    if not corpus.has_references and (settings.closest or settings.keep_reference):
        raise UserError("--closest and --keep-reference need references; give the target side of the corpus")
    counts = Counts()
    tokenisation = tokenisation_for(teacher.languages[1])

    def choose(pair: Pair, found: Sequence[Hypothesis]) -> str:
        texts = [hypothesis.text for hypothesis in found]
        if settings.closest is None or not pair.target.strip():
            return texts[0]
        return texts[choose_closest(texts, pair.target, settings.closest, tokenisation)]

    lines = _select_lines(corpus.read(), teacher, settings.longest, counts)
    # The student learns to translate lines, so that lines are not split into sentences.
    translated = teacher.stream_items(lines, settings.search, split=False, done=done, on_progress=progress)
    for number, pair, found in translated:
        counts.unusual.add(number, found[0].warning)
        pairs = [Pair(pair.source, choose(pair, found))]
        if settings.keep_reference:
            pairs.insert(0, pair)
        write([Pair(target, source) for source, target in pairs] if settings.back_translate else pairs)
    return counts


def _select_lines(
    pairs: Iterable[Pair], teacher: Translator, longest: int, counts: Counts
) -> Iterator[tuple[Pair, str]]:
    """Yield every line with the text to translate, which is empty for blank and overlong lines, and count these."""
    limit = teacher.max_source_tokens
    longest = longest if limit is None else min(longest, limit + 1)
    for _, window in windows(pairs):
        encoded = teacher.vocabularies.source.encode_batch([pair.source for pair in window])
        for pair, tokens in zip(window, encoded, strict=True):
            long = len(tokens) + 1 > longest
            blank = not pair.source.strip()
            counts.lines, counts.blank, counts.long = counts.lines + 1, counts.blank + blank, counts.long + long
            yield pair, "" if long or blank else pair.source


class Provenance:
    """A JSON file next to the output that records its inputs; `--resume` continues only if they are unchanged."""

    def __init__(self, output: Path, teachers: Sequence[str], corpus: tuple[int, str], settings: Distillation) -> None:
        """`teachers` are fingerprints of models, `corpus` is the result of `Corpus.measure`."""
        self.path = output.with_name(f"{output.name}.json")
        self.origin: dict[str, Any] = {
            "teachers": list(teachers),
            "corpus": {"lines": corpus[0], "sha256": corpus[1]},
            "settings": settings.model_dump(mode="json"),
        }

    def begin(self, resumed: bool) -> None:
        """Record the inputs, or check that they equal the recorded ones."""
        if not resumed:
            self._write({"complete": False})
            return
        try:
            recorded = read_json(self.path)
            before = _flatten({key: recorded[key] for key in self.origin})
        except (UserError, KeyError, TypeError):
            raise UserError(f"{self.path}: missing or damaged, so --resume cannot check the inputs") from None
        now = _flatten(self.origin)
        for key in now:
            if before.get(key) != now[key]:
                recorded, current = show_value(before.get(key)), show_value(now[key])
                raise UserError(
                    f"{self.path}: the output was started with {key} {recorded}, not {current}; resume with the same "
                    f"inputs, or choose another output"
                )

    def finish(self, paths: Sequence[Path], counts: Counts, pairs: int) -> None:
        """Record the result with a checksum of every file."""
        files = {path.name: sha256_of(path) for path in paths}
        result = {"pairs": pairs, "blank": counts.blank, "too_long": counts.long, "files": files}
        self._write({"complete": True} | result)

    def _write(self, more: dict[str, Any]) -> None:
        content = {"regard": version("regard")} | self.origin | more
        with report_unwritable(self.path):
            replace_text(self.path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _flatten(values: dict[str, Any], group: str = "") -> dict[str, Any]:
    """Flatten nested values to full names such as settings.search.beam."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flatten(value, f"{group}{key}.") if isinstance(value, dict) else {f"{group}{key}": value}
    return found
