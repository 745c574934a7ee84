"""How fast models translate, text to text, and what that costs in quality: contenders, timings, a table."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch

from regard.decoding.settings import AnySettings, parse_settings
from regard.decoding.translator import Translator
from regard.errors import UserError
from regard.evaluation.metrics import Score, bleu

WARM_UP = 3
TURNS = 5
"""Batches before the clock counts, and how often each contender has its turn, for a batch at the least."""


@dataclass(frozen=True)
class Timing:
    """The median time of a batch of so many sentences, and how many batches it is the median of."""

    batch: int
    milliseconds: float
    batches: int

    @property
    def sentences_per_second(self) -> float:
        return 1000 * self.batch / self.milliseconds


@dataclass(frozen=True)
class Contender:
    """A model and how it is to search."""

    name: str
    translator: Translator
    settings: AnySettings

    @classmethod
    def open(cls, text: str, device: str | torch.device = "cpu") -> Self:
        """Reads "RUN", or "RUN:beam=5" and "RUN:rounds=4,lengths=3" for other settings than the model's own.

        "engine" and "precision" are among them: "RUN:engine=ctranslate2,precision=int8".

        Raises:
            UserError: there is no such model, or it cannot search like that.
        """
        path, colon, options = text.rpartition(":")
        if not colon or "=" not in options:
            path, options = text, ""
        values = dict(_key_and_value(option, text) for option in options.split(",") if options)
        loading = {key: values.pop(key, None) for key in ("engine", "precision")}
        translator = Translator.load(Path(path), device=device, **loading)
        return cls(text, translator, translator.fit(parse_settings(translator.writer.settings, values, text)))

    def translate(self, sources: Sequence[str]) -> list[str]:
        return [best[0].text.replace("\n", " ") for best in self.translator.hypotheses(sources, self.settings)]


@dataclass(frozen=True)
class Result:
    """What came of a contender: its timings, and its score where there were references."""

    name: str
    settings: dict[str, Any]
    parameters: int
    timings: list[Timing]
    score: Score | None

    def milliseconds(self, batch: int) -> float:
        return next(timing.milliseconds for timing in self.timings if timing.batch == batch)

    def as_dict(self) -> dict[str, Any]:
        rates = [asdict(t) | {"sentences_per_second": round(t.sentences_per_second, 2)} for t in self.timings]
        return {
            "name": self.name,
            "settings": self.settings,
            "parameters": self.parameters,
            "timings": rates,
            "score": self.score and self.score.as_dict(),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        timings = [Timing(t["batch"], t["milliseconds"], t["batches"]) for t in values["timings"]]
        score = Score(**values["score"]) if values["score"] else None
        return cls(values["name"], values["settings"], values["parameters"], timings, score)


def race(
    contenders: Sequence[Contender],
    sources: Sequence[str],
    references: Sequence[str] | None,
    batches: Sequence[int],
    seconds: float,
    tokenisation: str = "13a",
) -> list[Result]:
    """Times contenders at every size of batch, and scores them where references are given."""
    translating = [contender.translate for contender in contenders]
    by_batch = [measure_speed(translating, sources, batch, seconds) for batch in batches]
    results = []
    for contender, timings in zip(contenders, zip(*by_batch, strict=True), strict=True):
        score = None if references is None else bleu(contender.translate(sources), references, tokenisation)
        parameters = sum(p.numel() for p in contender.translator.model.parameters())
        results.append(Result(contender.name, contender.settings.in_force(), parameters, list(timings), score))
    return results


def measure_speed(
    contenders: Sequence[Callable[[Sequence[str]], object]], sources: Sequence[str], batch: int, seconds: float
) -> list[Timing]:
    """Translates batch after batch of the sources, in order and again from the beginning, so many seconds each.

    The contenders take turns, so that whatever else the machine does slows all of them alike.

    Raises:
        UserError: there are fewer sources than make a batch.
    """
    if batch > len(sources):
        raise UserError(f"{len(sources)} sentences do not make a batch of {batch}; give more, or a smaller --batch")
    starts = range(0, len(sources) - batch + 1, batch)
    feeds = [cycle([sources[start : start + batch] for start in starts]) for _ in contenders]
    for translate, feed in zip(contenders, feeds, strict=True):
        for sentences in islice(feed, WARM_UP):
            translate(sentences)
    times: list[list[float]] = [[] for _ in contenders]
    for _ in range(TURNS):
        for translate, feed, taken in zip(contenders, feeds, times, strict=True):
            taken += _take_turn(translate, feed, seconds / TURNS)
    return [Timing(batch, round(1000 * median(taken), 4), len(taken)) for taken in times]


def _take_turn(
    translate: Callable[[Sequence[str]], object], feed: Iterator[Sequence[str]], seconds: float
) -> list[float]:
    """How long each batch took, until they have taken so many seconds."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        sentences = next(feed)
        begin = time.perf_counter()
        translate(sentences)  # text comes back, so the device has done its work
        times.append(time.perf_counter() - begin)
    return times


def tabulate(results: Sequence[Result]) -> str:
    """The results as a Markdown table; how many times faster each is than the first stands in brackets."""
    first, sizes = results[0], [timing.batch for timing in results[0].timings]
    heads = ["", "BLEU", "parameters", *(f"ms a batch of {size}" for size in sizes)]
    lines = [heads, ["---"] * len(heads)]
    for result in results:
        cells = [
            f"{result.milliseconds(size):.1f} ({first.milliseconds(size) / result.milliseconds(size):.2f}×)"
            for size in sizes
        ]
        score = "" if result.score is None else f"{result.score.value:.2f}"
        lines.append([result.name, score, f"{result.parameters / 1e6:.1f} M", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def describe_machine(device: torch.device) -> str:
    """What the times were taken on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def _key_and_value(option: str, where: str) -> tuple[str, str]:
    key, equals, value = option.partition("=")
    if not equals:
        raise UserError(f"{where}: write RUN:key=value,key=value, such as runs/x:rounds=4,lengths=3")
    return key.strip().replace("-", "_"), value.strip()
