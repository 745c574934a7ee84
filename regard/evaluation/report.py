"""What one system scored, and under which conditions: a `Report`, kept in scores.json of the model folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from sacrebleu.metrics.bleu import BLEU

from regard.config import Settings
from regard.data.text.readers import read_lines
from regard.decoding.config import DecodingSettings, NATSettings, SearchSettings
from regard.errors import UserError
from regard.evaluation.metrics import Metrics, Score, check_sizes
from regard.models.folder import WEIGHTS, check_input_type, find_model_folder
from regard.pipelines.translator import Translator

SCORES = "scores.json"
DIGITS = 12
"""Hexadecimal digits of a fingerprint: enough that two files never share one by accident, few enough to read out."""


class Data(Settings):
    """Which test set it was: its size, the reference's tokens as BLEU counts them, and a hash.

    The hash begins what `cat SOURCE REFERENCE | sha256sum` says of the two plain files.
    """

    lines: int
    reference_length: int
    sha256: str


class Conditions(Settings):
    """Everything besides the model that a score depends on.

    `search` is None for translations that came from elsewhere: how they were found is not known.
    """

    tokenisation: str
    lowercase: bool
    signatures: dict[str, str]
    search: dict[str, Any] | None
    data: Data

    def differences(self, other: Conditions) -> dict[str, tuple[Any, Any]]:
        """What differs, by name, with both values; a metric that only one of them has is no difference.

        Where the search of one of them is unknown, or one wrote token by token and the other all at once, searches are
        not compared.
        """
        mine, others = dict(self._facts()), dict(other._facts())
        if (
            self.search is not None
            and other.search is not None
            and ("iterations" in self.search) == ("iterations" in other.search)
        ):
            mine |= {f"search {key}": value for key, value in self.search_in_full().items()}
            others |= {f"search {key}": value for key, value in other.search_in_full().items()}
        pairs = {name: (mine.get(name), others.get(name)) for name in mine | others}
        found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        said = {part for part, name in (("tok", "tokenisation"), ("case", "lowercase")) if name in found}
        for metric in (name for name in self.signatures if name in other.signatures):
            one, two = _parts(self.signatures[metric]), _parts(other.signatures[metric])
            for part in one | two:
                if one.get(part) != two.get(part) and part not in said:
                    found[f"{metric} {part}"] = (one.get(part), two.get(part))
        return found

    def search_in_full(self) -> dict[str, Any]:
        """The search settings; those that were added to regard after the score was measured have their defaults."""
        return self._search_defaults() | (self.search or {})

    def describe_search(self) -> str:
        """What matters most of the search, and every other setting that is not the default."""
        search, defaults = self.search_in_full(), self._search_defaults()
        if "iterations" in search:
            return ", ".join(f"{key} {show(value)}" for key, value in search.items() if value != defaults[key])
        beam, penalty, alpha = (show(search.pop(key)) for key in ("beam", "length_penalty", "alpha"))
        others = "".join(f", {key} {show(value)}" for key, value in search.items() if value != defaults.get(key))
        return f"beam {beam}, length penalty {penalty} {alpha}{others}"

    def _search_defaults(self) -> dict[str, Any]:
        """Of the kind of settings that this search had: a model that writes all tokens at once has iterations."""
        kind = NATSettings if self.search and "iterations" in self.search else SearchSettings
        return kind().model_dump(mode="json")

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "tokenisation", self.tokenisation
        yield "lowercase", self.lowercase
        yield "data lines", self.data.lines
        yield "data hash", self.data.sha256
        yield "reference length", self.data.reference_length


class Report(Settings):
    """The scores of one system, and all that is needed to measure them again.

    `model` is the beginning of the SHA-256 of model.safetensors; None for translations that came from elsewhere.
    """

    scores: dict[str, float]
    conditions: Conditions
    model: str | None
    regard: str
    date: str

    def results(self) -> list[Score]:
        """The scores with their signatures, BLEU first."""
        return [Score(name, value, self.conditions.signatures[name]) for name, value in self.scores.items()]

    def facts(self) -> str:
        """One line about the test set, the search and the model."""
        data = self.conditions.data
        found = "search unknown" if self.conditions.search is None else self.conditions.describe_search()
        return (
            f"{data.lines} sentences, {found}, {data.reference_length} reference tokens, "
            f"data {data.sha256}, model {self.model or 'unknown'}"
        )

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, values: object, where: str = "report") -> Self:
        """The report that `as_dict` gave.

        Raises:
            UserError: a key is missing, unknown or of the wrong kind; `where` names the place.
        """
        report = cls.parse(values, where)
        for name in report.scores:
            if name not in report.conditions.signatures:
                raise UserError(f"{where}: scores.{name} has no signature in conditions.signatures; evaluate again")
        return report


@dataclass(frozen=True)
class System:
    """What is scored: one translation a sentence, and, where regard made them, with which search and model."""

    translations: Sequence[str]
    search: DecodingSettings | None = None
    model: str | None = None


class Recordable(Protocol):
    """Scores, of whatever, with the conditions under which they came about."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, among them `conditions`."""


@dataclass(frozen=True)
class Entrant:
    """A model or a file of translations, opened: what is wrong with it is refused before anything is translated."""

    path: Path
    content: Translator | list[str]
    folder: Path | None
    model: str | None

    @classmethod
    def open(cls, path: Path, device: str | torch.device = "cpu") -> Self:
        """Loads a model folder, the best model of a run, or a file with one translation a line.

        Raises:
            UserError: it is none of them, or damaged.
        """
        if path.is_file():
            return cls(path, list(read_lines(path)), None, None)
        folder = find_model_folder(path)
        check_input_type(folder, "text")  # files for another engine have no weights here that scores could be true of
        return cls(path, Translator.load(folder, device=device), folder, fingerprint_model(folder))

    @property
    def language(self) -> str | None:
        """The code of the target language, where it is known."""
        if not isinstance(self.content, Translator) or self.content.languages[1] == "target":
            return None
        return self.content.languages[1]

    def fit(self, search: DecodingSettings) -> DecodingSettings | None:
        """The settings as its model takes them; None for translations that came from elsewhere.

        Raises:
            UserError: the model cannot do what they ask for.
        """
        return self.content.fit(search) if isinstance(self.content, Translator) else None

    def translate(self, sources: Sequence[str], search: DecodingSettings) -> System:
        """The system with its best translation of every source; those of a file are taken as they are."""
        if not isinstance(self.content, Translator):
            return System(self.content)
        found = self.content.hypotheses(sources, search)
        # A translation is a line of a file for whoever scores it elsewhere, so it is one here.
        texts = [best[0].text.replace("\n", " ") for best in found]
        return System(texts, self.fit(search), self.model)

    def keep(self, report: Report) -> None:
        """Records the report in the model folder, if there is one.

        Raises:
            UserError: training has put another model there in the meantime, or `record` refuses.
        """
        if self.folder is None:
            return
        if fingerprint_model(self.folder) != self.model:
            raise UserError(f"{self.folder}: another model has taken its place meanwhile, so its scores are not kept")
        record(report, self.folder)

    def check_length(self, lines: int) -> None:
        """Refuses a file of translations that has not `lines` of them."""
        if isinstance(self.content, list) and len(self.content) != lines:
            raise UserError(
                f"{self.path} has {len(self.content)} lines but the test set has {lines}; give one translation a line"
            )


def evaluate(system: System, sources: Sequence[str], references: Sequence[str], metrics: Metrics) -> Report:
    """Scores a system's translations of the sources.

    Raises:
        UserError: their numbers differ or are zero, or sacreBLEU cannot tokenise as `metrics` asks.
    """
    check_sizes(system.translations, references)
    if len(sources) != len(references):
        raise UserError(f"{len(sources)} sources do not belong to {len(references)} references; give a pair a line")
    scores, signatures, length = {}, {}, 0
    for metric in metrics.build():
        result = metric.corpus_score(list(system.translations), [list(references)])
        scores[result.name], signatures[result.name] = result.score, str(metric.get_signature())
        length = result.ref_len if isinstance(metric, BLEU) else length
    conditions = Conditions(
        tokenisation=metrics.tokenisation,
        lowercase=metrics.lowercase,
        signatures=signatures,
        search=system.search and system.search.resolved(),
        data=Data(lines=len(references), reference_length=length, sha256=_hash_lines(sources, references)),
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(scores=scores, conditions=conditions, model=system.model, regard=version("regard"), date=now)


def fingerprint_model(folder: Path) -> str:
    """The beginning of the SHA-256 of the model's weights, as `sha256sum model.safetensors` prints it.

    Raises:
        UserError: the file cannot be read.
    """
    path = folder / WEIGHTS
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); a model folder holds its weights there") from None


def tokenisation_warning(translations: Sequence[str], references: Sequence[str]) -> str | None:
    """A sentence if one side looks tokenised and the other does not, which no score survives; else None."""
    translated, referred = _looks_tokenised(translations), _looks_tokenised(references)
    if translated is None or referred is None or translated == referred:
        return None
    tokenised, plain = ("translations", "references") if translated else ("references", "translations")
    return (
        f"the {tokenised} look tokenised (a space before the last full stop), the {plain} do not; "
        f"scores mean little unless both are of one kind"
    )


def record(report: Recordable, folder: Path) -> None:
    """Adds the report to the model folder's scores.json, in place of an earlier one under the same conditions.

    Raises:
        UserError: scores.json is damaged, or cannot be written; it is then as it was.
    """
    path = folder / SCORES
    content = _read_scores(path)
    new = report.as_dict()
    kept = [entry for entry in content.get("evaluations", []) if entry.get("conditions") != new["conditions"]]
    text = json.dumps(content | {"evaluations": [*kept, new]}, indent=2, ensure_ascii=False) + "\n"
    fresh = folder / f".{SCORES}.{os.getpid()}"
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); leave it alone with --no-save") from None
    finally:
        fresh.unlink(missing_ok=True)


def check_scores_writable(folder: Path) -> None:
    """Does nothing where `record` will be able to do its work.

    Raises:
        UserError: scores.json is damaged, or the folder cannot be written to.
    """
    _read_scores(folder / SCORES)
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written to, so {SCORES} cannot be kept there; add --no-save")


def read_reports(path: Path) -> list[Report]:
    """The evaluations in a scores.json, or in what `regard evaluate --json` wrote, oldest first.

    Raises:
        UserError: the file is missing or damaged.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a {SCORES} that regard evaluate has written")
    entries = _read_scores(path).get("evaluations", [])
    return [Report.from_dict(entry, f"{path}: evaluations.{i}") for i, entry in enumerate(entries)]


def _read_scores(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: damaged or not JSON ({error}); repair or remove it") from None
    entries = content.get("evaluations", []) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UserError(f"{path}: not the scores of a model, which are an object with a list of evaluations; remove it")
    assert isinstance(content, dict)
    return content


def _hash_lines(*sides: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for lines in sides:
        for line in lines:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:DIGITS]


def _looks_tokenised(lines: Sequence[str]) -> bool | None:
    """Whether most sentences that end in a full stop have a space before it; None where hardly any ends in one."""
    ended = [line.rstrip() for line in lines if line.rstrip().endswith((".", "?", "!"))]
    if len(ended) < max(1, len(lines) // 4):
        return None
    return 2 * sum(line[-2:-1] == " " for line in ended) > len(ended)


def _parts(signature: str) -> dict[str, str]:
    return dict(part.partition(":")[::2] for part in signature.split("|"))


def show(value: Any) -> str:
    """A setting as people write it."""
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
