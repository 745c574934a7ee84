"""How fast models are, and what that costs in quality: contenders that translate, results, a table."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from regard.decoding.config import DecodingSettings, parse_settings
from regard.errors import UserError
from regard.evaluation.bench.timing import Timing, measure_speed
from regard.evaluation.metrics import Score, bleu
from regard.pipelines.translator import Translator


@dataclass(frozen=True)
class Contender:
    """A model and how it is to search."""

    name: str
    translator: Translator
    settings: DecodingSettings

    @classmethod
    def open(cls, text: str, device: str | torch.device = "cpu") -> Self:
        """Reads "RUN", or "RUN:beam=5" and "RUN:iterations=4,lengths=3" for other settings than the model's own.

        "engine" and "precision" are among them: "RUN:engine=ctranslate2,precision=int8".

        Raises:
            UserError: there is no such model, or it cannot search like that.
        """
        path, values = split_options(text)
        loading = {key: values.pop(key, None) for key in ("engine", "precision")}
        translator = Translator.load(path, device=device, **loading)
        settings = parse_settings(translator.generator.settings_class, values, text)
        try:
            return cls(text, translator, translator.fit(settings))
        except UserError as error:  # speaks of "this one", and there may be several
            raise UserError(f"{text}: {error}") from None

    def translate(self, sources: Sequence[str]) -> list[str]:
        return [best[0].text.replace("\n", " ") for best in self.translator.hypotheses(sources, self.settings)]


def split_options(text: str) -> tuple[Path, dict[str, str]]:
    """The path and the settings of "RUN:key=value,key=value".

    Raises:
        UserError: it is not written so.
    """
    path, colon, options = text.rpartition(":")
    if not colon or "=" not in options:
        return Path(text), {}
    return Path(path), dict(_key_and_value(option, text) for option in options.split(","))


@dataclass(frozen=True)
class Result:
    """What came of a contender: its timings, and its score where there were references.

    Attributes:
        same: the share of the sentences that it translates as the first contender does, where that was asked; of
            images, that it gives the same class.
        unit: what its timings count.
    """

    name: str
    settings: dict[str, Any]
    parameters: int
    timings: list[Timing]
    score: Score | None
    same: float | None = None
    unit: str = "sentences"

    def milliseconds(self, batch: int) -> float:
        return next(timing.milliseconds for timing in self.timings if timing.batch == batch)

    def as_dict(self) -> dict[str, Any]:
        rates = [asdict(t) | {f"{self.unit}_per_second": round(t.per_second, 2)} for t in self.timings]
        return {
            "name": self.name,
            "settings": self.settings,
            "parameters": self.parameters,
            "timings": rates,
            "score": self.score and self.score.as_dict(),
            "same": self.same,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any], unit: str = "sentences") -> Self:
        timings = [Timing(t["batch"], t["milliseconds"], t["batches"]) for t in values["timings"]]
        score = Score(**values["score"]) if values["score"] else None
        return cls(values["name"], values["settings"], values["parameters"], timings, score, values.get("same"), unit)


def race(
    contenders: Sequence[Contender],
    sources: Sequence[str],
    references: Sequence[str] | None,
    batches: Sequence[int],
    seconds: float,
    tokenisation: str = "13a",
    compare: bool = False,
) -> list[Result]:
    """Times contenders at every size of batch, scores them where references are given, can compare what they say."""
    translating = [contender.translate for contender in contenders]
    by_batch = [measure_speed(translating, sources, batch, seconds) for batch in batches]
    results: list[Result] = []
    first: list[str] = []
    for contender, timings in zip(contenders, zip(*by_batch, strict=True), strict=True):
        said = contender.translate(sources) if compare or references is not None else []
        first = first or said
        score = None if references is None else bleu(said, references, tokenisation)
        same = share_of_same(said, first) if compare else None
        parameters = contender.translator.count_parameters(contender.settings)
        results.append(Result(contender.name, contender.settings.resolved(), parameters, list(timings), score, same))
    return results


def share_of_same(said: Sequence[object], first: Sequence[object]) -> float:
    """The share of the answers that are the same."""
    return round(sum(a == b for a, b in zip(said, first, strict=True)) / len(first), 4)


def tabulate(results: Sequence[Result]) -> str:
    """The results as a Markdown table; how many times faster each is than the first stands in brackets."""
    columns: dict[str, list[str]] = {"": [result.name for result in results]}
    if any(result.score is not None for result in results):
        columns["BLEU"] = ["" if result.score is None else f"{result.score.value:.2f}" for result in results]
    if any(result.same is not None for result in results):
        columns["as the first"] = ["" if result.same is None else f"{result.same:.1%}" for result in results]
    columns["parameters"] = [f"{result.parameters / 1e6:.1f} M" for result in results]
    for place, timing in enumerate(results[0].timings):
        head = (
            f"ms a batch of {timing.batch}" if results[0].unit == "sentences" else f"images/s, {timing.batch} at once"
        )
        columns[head] = [_figure(result, place, timing) for result in results]
    lines = [list(columns), ["---"] * len(columns), *map(list, zip(*columns.values(), strict=True))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figure(result: Result, place: int, first: Timing) -> str:
    timing = result.timings[place]
    figure = f"{timing.milliseconds:.1f}" if result.unit == "sentences" else f"{timing.per_second:,.0f}"
    return f"{figure} ({first.milliseconds / timing.milliseconds:.2f}×)"


def describe_machine(device: torch.device) -> str:
    """What the times were taken on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def _key_and_value(option: str, where: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not equals:
        raise UserError(f"{where}: write RUN:key=value,key=value, such as runs/x:iterations=4,lengths=3")
    return key.strip().replace("-", "_"), value.strip()
