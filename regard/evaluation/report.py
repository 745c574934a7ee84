"""Reports: the scores of a system with their conditions, saved in scores.json of the model folder."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from regard.config import Settings
from regard.decoding.settings import NATSettings, SearchSettings
from regard.errors import UserError
from regard.evaluation.metrics import Score
from regard.files import MissingFileError, read_json, replace_text_file

SCORES = "scores.json"


class Data(Settings):
    """A test set: number of lines, number of reference tokens as counted by BLEU, and a hash.

    The hash is the start of the output of `cat SOURCE REFERENCE | sha256sum`.
    """

    lines: int
    reference_length: int
    sha256: str


class Conditions(Settings):
    """Everything besides the model that a score depends on.

    `search` is None for translations of unknown origin. `split` states whether lines were split into sentences; it is
    None if this is unknown. Evaluations without it did not split.
    """

    tokenisation: str
    lowercase: bool
    signatures: dict[str, str]
    search: dict[str, Any] | None
    split: bool | None = False
    data: Data

    def differences(self, other: "Conditions") -> dict[str, tuple[Any, Any]]:
        """Return the conditions that differ, with both values. A metric that only one has is not a difference.

        Search settings are compared only if both are known and of the same kind of model.
        """
        mine, others = dict(self._facts()), dict(other._facts())
        both_known = self.search is not None and other.search is not None
        if both_known and self._is_nat() == other._is_nat():
            mine |= {"split": self.split}
            others |= {"split": other.split}
            mine |= {f"search {key}": value for key, value in self.search_with_defaults().items()}
            others |= {f"search {key}": value for key, value in other.search_with_defaults().items()}
        pairs = {name: (mine.get(name), others.get(name)) for name in mine | others}
        found = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        reported = {part for part, name in (("tok", "tokenisation"), ("case", "lowercase")) if name in found}
        for metric in (name for name in self.signatures if name in other.signatures):
            one, two = _signature_parts(self.signatures[metric]), _signature_parts(other.signatures[metric])
            for part in one | two:
                if one.get(part) != two.get(part) and part not in reported:
                    found[f"{metric} {part}"] = (one.get(part), two.get(part))
        return found

    def search_with_defaults(self) -> dict[str, Any]:
        """Return the search settings; settings added to regard after the evaluation have their defaults."""
        return self._search_defaults() | (self.search or {})

    def describe_search(self) -> str:
        """Return the main search settings and all others that differ from their defaults."""
        search, defaults = self.search_with_defaults(), self._search_defaults()
        changed = [f"{key} {format_setting(value)}" for key, value in search.items() if value != defaults.get(key)]
        if self._is_nat():
            return ", ".join(changed)
        beam, penalty, alpha = (format_setting(search[key]) for key in ("beam", "length_penalty", "alpha"))
        others = [text for text in changed if not text.startswith(("beam ", "length_penalty ", "alpha "))]
        return ", ".join([f"beam {beam}", f"length penalty {penalty} {alpha}", *others])

    def _is_nat(self) -> bool:
        return self.search is not None and "iterations" in self.search

    def _search_defaults(self) -> dict[str, Any]:
        return (NATSettings if self._is_nat() else SearchSettings)().model_dump(mode="json")

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield "tokenisation", self.tokenisation
        yield "lowercase", self.lowercase
        yield "data lines", self.data.lines
        yield "data hash", self.data.sha256
        yield "reference length", self.data.reference_length


class Report(Settings):
    """The scores of a system, and everything needed to reproduce them.

    `model` is the start of the SHA-256 of model.safetensors; None for translations of unknown origin.
    """

    scores: dict[str, float]
    conditions: Conditions
    model: str | None
    regard: str
    date: str

    def results(self) -> list[Score]:
        """Return the scores with their signatures, BLEU first."""
        return [Score(name, value, self.conditions.signatures[name]) for name, value in self.scores.items()]

    def facts(self) -> str:
        """Return one line about the test set, the search and the model."""
        data = self.conditions.data
        search = "search unknown" if self.conditions.search is None else self.conditions.describe_search()
        search += ", split into sentences" if self.conditions.split else ""
        return (
            f"{data.lines} sentences, {search}, {data.reference_length} reference tokens, "
            f"data {data.sha256}, model {self.model or 'unknown'}"
        )

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, values: object, where: str = "report") -> Self:
        """Build a report from the values of `as_dict`. Error messages start with `where`."""
        report = cls.parse(values, where)
        for name in report.scores:
            if name not in report.conditions.signatures:
                raise UserError(f"{where}: scores.{name} has no signature in conditions.signatures; evaluate again")
        return report


class SavableReport(Protocol):
    """Scores of any kind of model."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, including `conditions`."""


def save_report(report: SavableReport, folder: Path) -> None:
    """Add a report to scores.json of a model folder, replacing an earlier one with the same conditions.

    Raises:
        UserError: Scores.json is damaged or cannot be written; it stays unchanged.
    """
    path = folder / SCORES
    content = _read_scores(path)
    new = report.as_dict()
    kept = [entry for entry in content.get("evaluations", []) if entry.get("conditions") != new["conditions"]]
    _write_scores(path, content | {"evaluations": [*kept, new]})


def save_details(details: Mapping[str, Any], folder: Path) -> None:
    """Set groups of scores.json of a model folder, such as `confidence`, to plain values.

    Raises:
        UserError: Scores.json is damaged or cannot be written; it stays unchanged.
    """
    path = folder / SCORES
    _write_scores(path, _read_scores(path) | dict(details))


def _write_scores(path: Path, content: Mapping[str, Any]) -> None:
    with replace_text_file(path) as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def check_scores_writable(folder: Path) -> None:
    """Raise a `UserError` if `save_report` cannot write to a folder."""
    _read_scores(folder / SCORES)
    if not os.access(folder, os.W_OK):
        raise UserError(f"{folder}: cannot be written to, so {SCORES} cannot be saved there; add --no-save")


def read_reports(path: Path) -> list[Report]:
    """Return the evaluations in a scores.json or in the output of `regard evaluate --json`, oldest first."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; give a {SCORES} written by regard evaluate")
    entries = _read_scores(path).get("evaluations", [])
    return [Report.from_dict(entry, f"{path}: evaluations.{i}") for i, entry in enumerate(entries)]


def format_setting(value: Any) -> str:
    """Return a setting as text."""
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _read_scores(path: Path) -> dict[str, Any]:
    """Return the content of a score file; empty if there is none."""
    try:
        content = read_json(path)
    except MissingFileError:
        return {}
    except UserError as error:
        raise UserError(f"{error}; repair or remove it") from None
    entries = content.get("evaluations", []) if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise UserError(f"{path}: not the scores of a model, an object with a list of evaluations; remove it")
    assert isinstance(content, dict)
    return content


def _signature_parts(signature: str) -> dict[str, str]:
    return dict(part.partition(":")[::2] for part in signature.split("|"))
