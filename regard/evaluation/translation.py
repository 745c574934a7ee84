"""Systems that are evaluated: a model, or a file of translations."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Self

import torch
from sacrebleu.metrics.bleu import BLEU

from regard.data.text.readers import read_lines
from regard.data.text.sentences import LengthWarnings
from regard.decoding.settings import DecodingSettings
from regard.errors import UserError
from regard.evaluation.metrics import Metrics, check_sizes
from regard.evaluation.report import Conditions, Data, Report, save_report
from regard.files import sha256_of
from regard.models.folder import WEIGHTS, check_input_type, find_model_folder
from regard.pipelines.translator import Translator

DIGITS = 12
"""Hexadecimal digits of a fingerprint: enough to avoid collisions, few enough to read."""


@dataclass(frozen=True)
class SystemOutput:
    """One translation per line, and if regard made them, the search settings and the fingerprint of the model.

    Attributes:
        split: Whether lines were split into sentences; None if unknown.
        warning: Warning about lines that are longer than those of the training data, if any.
    """

    translations: Sequence[str]
    search: DecodingSettings | None = None
    model: str | None = None
    split: bool | None = None
    warning: str | None = None


@dataclass(frozen=True)
class System:
    """A loaded model or a file of translations.

    Attributes:
        content: The translator, or the translations.
        folder: Model folder; None for a file.
        model: Fingerprint of the weights; None for a file.
    """

    path: Path
    content: Translator | list[str]
    folder: Path | None
    model: str | None

    @classmethod
    def open(
        cls, path: Path, device: str | torch.device = "cpu", languages: tuple[str | None, str | None] = (None, None)
    ) -> Self:
        """Load a model folder, the best model of a run, or a file with one translation per line.

        Args:
            path: The folder or file.
            device: Device of the model.
            languages: Source and target language of a model with several directions; see `Translator.select`.
        """
        if path.is_file():
            return cls(path, list(read_lines(path)), None, None)
        folder = find_model_folder(path)
        check_input_type(folder, "text")  # rejects exports for other engines, whose scores would not be reproducible
        translator = Translator.load(folder, device=device).select(*languages)
        return cls(path, translator, folder, fingerprint_model(folder))

    @property
    def language(self) -> str | None:
        """Code of the target language, if known."""
        if not isinstance(self.content, Translator) or self.content.languages[1] == "target":
            return None
        return self.content.languages[1]

    def resolve_settings(self, settings: DecodingSettings) -> DecodingSettings | None:
        """Return the settings with the defaults of the model; None for a file."""
        return self.content.resolve_settings(settings) if isinstance(self.content, Translator) else None

    def translate(self, sources: Sequence[str], settings: DecodingSettings, split: bool = False) -> SystemOutput:
        """Translate the sources, or return the translations of the file.

        By default a line is translated as one sequence, as for published scores, whose test sets have one segment per
        line. With `split`, its sentences are translated separately, as `regard translate` does.
        """
        if not isinstance(self.content, Translator):
            return SystemOutput(self.content)
        hypotheses = self.content.hypotheses(sources, settings, split=split)
        lengths = LengthWarnings("line")
        for number, n_best in enumerate(hypotheses, 1):
            lengths.add(number, n_best[0].warning)
        # Scorers read files with one translation per line.
        texts = [best[0].text.replace("\n", " ") for best in hypotheses]
        return SystemOutput(texts, self.resolve_settings(settings), self.model, split, lengths.message)

    def save_report(self, report: Report) -> None:
        """Save the report in the model folder, if there is one.

        Raises:
            UserError: Training has replaced the model in the meantime, or scores.json cannot be written.
        """
        if self.folder is None:
            return
        if fingerprint_model(self.folder) != self.model:
            raise UserError(f"{self.folder}: the model was replaced during the evaluation, so its scores are not saved")
        save_report(report, self.folder)

    def check_length(self, lines: int) -> None:
        """Check that a file of translations has `lines` lines."""
        if isinstance(self.content, list) and len(self.content) != lines:
            raise UserError(
                f"{self.path} has {len(self.content)} lines but the test set has {lines}; give one translation per line"
            )


def evaluate(output: SystemOutput, sources: Sequence[str], references: Sequence[str], metrics: Metrics) -> Report:
    """Score translations of the sources."""
    check_sizes(output.translations, references)
    if len(sources) != len(references):
        raise UserError(f"{len(sources)} sources do not match {len(references)} references; give one pair per line")
    scores, signatures, length = {}, {}, 0
    for metric in metrics.build():
        result = metric.corpus_score(list(output.translations), [list(references)])
        scores[result.name], signatures[result.name] = result.score, str(metric.get_signature())
        length = result.ref_len if isinstance(metric, BLEU) else length
    conditions = Conditions(
        tokenisation=metrics.tokenisation,
        lowercase=metrics.lowercase,
        signatures=signatures,
        search=output.search and output.search.resolved(),
        split=output.split,
        data=Data(lines=len(references), reference_length=length, sha256=_hash_lines(sources, references)),
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Report(scores=scores, conditions=conditions, model=output.model, regard=version("regard"), date=now)


def fingerprint_model(folder: Path) -> str:
    """Return the start of the SHA-256 of a model's weights, as printed by `sha256sum model.safetensors`."""
    return sha256_of(folder / WEIGHTS)[:DIGITS]


def tokenisation_warning(translations: Sequence[str], references: Sequence[str]) -> str | None:
    """Return a warning if one side looks tokenised and the other does not, which makes scores meaningless."""
    translated, referenced = _looks_tokenised(translations), _looks_tokenised(references)
    if translated is None or referenced is None or translated == referenced:
        return None
    tokenised, plain = ("translations", "references") if translated else ("references", "translations")
    return (
        f"the {tokenised} look tokenised (a space before the final full stop), the {plain} do not; "
        f"scores mean little unless both are alike"
    )


def _looks_tokenised(lines: Sequence[str]) -> bool | None:
    """Return whether most final full stops follow a space; None if few sentences end with one."""
    ended = [line.rstrip() for line in lines if line.rstrip().endswith((".", "?", "!"))]
    if len(ended) < max(1, len(lines) // 4):
        return None
    return 2 * sum(line[-2:-1] == " " for line in ended) > len(ended)


def _hash_lines(*sides: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for lines in sides:
        for line in lines:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:DIGITS]
