"""Timing of systems in turns, tables of the results, and a description of the machine."""

import datetime
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, Protocol, Self, TypeVar

import torch

from regard.errors import UserError
from regard.evaluation.metrics import Score

WARM_UP = 3
"""Batches before timing starts."""
TURNS = 5
BATCH_SIZES = (1, 8, 64)
LIBRARIES = {"huggingface": "transformers", "ctranslate2": "ctranslate2"}
"""Other libraries: the value of --library, and the name of the package."""
Item = TypeVar("Item")


class Report(Protocol):
    """The results of a benchmark: a table with its caption, and all values for JSON."""

    def lines(self) -> list[str]: ...

    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Timing:
    """Median time of a batch of `batch` sentences or images, over `batches` batches."""

    batch: int
    milliseconds: float
    batches: int

    @property
    def per_second(self) -> float:
        """Sentences or images per second."""
        return 1000 * self.batch / self.milliseconds


@dataclass(frozen=True)
class Result:
    """Timings of one system, and its score if there are references.

    Attributes:
        settings: Settings of its search.
        score: BLEU.
        same: Share of outputs equal to those of the first system, if they were compared.
        unit: What is timed, "sentences" or "images".
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
        values = asdict(self)
        values["timings"] = [
            asdict(one) | {f"{self.unit}_per_second": round(one.per_second, 2)} for one in self.timings
        ]
        del values["unit"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any], unit: str = "sentences") -> Self:
        timings = [Timing(t["batch"], t["milliseconds"], t["batches"]) for t in values["timings"]]
        score = Score(**values["score"]) if values["score"] else None
        return cls(values["name"], values["settings"], values["parameters"], timings, score, values.get("same"), unit)


@dataclass(frozen=True)
class SpeedReport:
    """Results of several systems: what was timed on which data, in words, and for how many seconds each."""

    results: list[Result]
    timed: str
    data: str
    seconds: float

    def lines(self) -> list[str]:
        compared = any(result.same is not None for result in self.results)
        same = "; same output: share of outputs equal to those of the first system" if compared else ""
        caption = f"medians {self.timed}; {self.data}; in brackets, speed relative to the first system{same}"
        return [tabulate(self.results), "", caption]

    def as_dict(self) -> dict[str, Any]:
        results = [result.as_dict() for result in self.results]
        return {"timed": self.timed, "on": self.data, "seconds": self.seconds, "results": results}


def measure_speed(
    systems: Sequence[Callable[[Sequence[Item]], object]],
    items: Sequence[Item],
    batch: int,
    seconds: float,
    noun: str = "sentences",
) -> list[Timing]:
    """Time systems on batches of the items, in order and repeatedly, for `seconds` each.

    The systems take turns, so that other load on the machine affects all of them. Their results must be on the host, so
    that the device has finished.
    """
    if batch > len(items):
        raise UserError(f"{len(items)} {noun} are fewer than a batch of {batch}; give more, or a smaller --batch")
    starts = range(0, len(items) - batch + 1, batch)
    batches = [cycle([items[start : start + batch] for start in starts]) for _ in systems]
    for system, own_batches in zip(systems, batches, strict=True):
        for one in islice(own_batches, WARM_UP):
            system(one)
    times: list[list[float]] = [[] for _ in systems]
    for _ in range(TURNS):
        for system, own_batches, own_times in zip(systems, batches, times, strict=True):
            own_times += _time_batches(system, own_batches, seconds / TURNS)
    return [Timing(batch, round(1000 * median(own_times), 4), len(own_times)) for own_times in times]


def _time_batches(
    system: Callable[[Sequence[Item]], object], batches: Iterator[Sequence[Item]], seconds: float
) -> list[float]:
    """Return the time of each batch, until their sum reaches `seconds`."""
    times: list[float] = []
    while not times or sum(times) < seconds:
        batch = next(batches)
        start = time.perf_counter()
        system(batch)
        times.append(time.perf_counter() - start)
    return times


def share_of_same(outputs: Sequence[object], first: Sequence[object]) -> float:
    """Return the share of equal outputs."""
    return round(sum(a == b for a, b in zip(outputs, first, strict=True)) / len(first), 4)


def choose_batch_sizes(given: Sequence[int], number: int, data: str) -> list[int]:
    """Return the given batch sizes, or the default sizes up to `number` items, in ascending order."""
    if not number:
        raise UserError(f"{data}: there is nothing to time")
    if given and max(given) > number:
        raise UserError(f"{data} are fewer than a batch of {max(given)}; give a smaller --batch")
    return sorted(set(given) or {size for size in BATCH_SIZES if size <= number})


def split_options(text: str) -> tuple[Path, dict[str, str]]:
    """Split "RUN:key=value,key=value" into the path and the settings."""
    path, colon, options = text.rpartition(":")
    if not colon or "=" not in options:
        return Path(text), {}
    values = {}
    for option in options.split(","):
        key, equals, value = option.partition("=")
        if not equals:
            raise UserError(f"{text}: write RUN:key=value,key=value, such as runs/x:iterations=4,lengths=3")
        values[key.strip().replace("-", "_")] = value.strip()
    return Path(path), values


def check_libraries(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of other libraries without repetitions, or raise a `UserError` if one is unknown."""
    for name in names:
        if name not in LIBRARIES:
            raise UserError(f"--library {name}: choose one of {', '.join(LIBRARIES)}")
    return tuple(dict.fromkeys(names))


def tabulate(results: Sequence[Result]) -> str:
    """Return the results as a Markdown table, with the speed relative to the first system in brackets."""
    columns: dict[str, list[str]] = {"": [result.name for result in results]}
    if any(result.score is not None for result in results):
        columns["BLEU"] = ["" if result.score is None else f"{result.score.value:.2f}" for result in results]
    if any(result.same is not None for result in results):
        columns["same output"] = ["" if result.same is None else f"{result.same:.1%}" for result in results]
    columns["parameters"] = [f"{result.parameters / 1e6:.1f} M" for result in results]
    for index, first in enumerate(results[0].timings):
        is_text = results[0].unit == "sentences"
        header = f"ms per batch of {first.batch}" if is_text else f"images/s, batch of {first.batch}"
        columns[header] = [_format_timing(result.timings[index], first, is_text) for result in results]
    return format_table([list(columns), *map(list, zip(*columns.values(), strict=True))])


def _format_timing(timing: Timing, first: Timing, is_text: bool) -> str:
    speed = f"{timing.milliseconds:.1f}" if is_text else f"{timing.per_second:,.0f}"
    return f"{speed} ({first.milliseconds / timing.milliseconds:.2f}×)"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table; the first row is the header."""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *body])


def describe_environment(device: torch.device, libraries: Iterable[str] = ()) -> dict[str, Any]:
    """Return the machine, the versions of the packages, and the date."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {package: version(package) for package in ("regard", *(LIBRARIES[name] for name in libraries))}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"machine": describe_machine(device), "versions": versions, "date": date}


def describe_machine(device: torch.device) -> str:
    """Return the name of the GPU, or of the CPU with its number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def summarise(environment: dict[str, Any]) -> str:
    """Return the description of an environment as one line."""
    versions = environment["versions"]
    named = [f"{package} {versions[package]}" for package in versions if package not in ("python", "regard")]
    return ", ".join([environment["machine"], *named, environment["date"]])
