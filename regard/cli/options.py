"""Options that several commands share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.decoding.config import DecodingSettings


Run = Annotated[Path, typer.Argument(help="a model folder, or a training run that holds one")]
Others = Annotated[
    list[Path] | None, typer.Option("--with", metavar="RUN", help="a further model, which votes; may be repeated")
]
Beam = Annotated[
    int | None,
    typer.Option(help="hypotheses kept a sentence, 5 unless given; 1 is greedy search, and what a CTC model has"),
]
Iterations = Annotated[
    int | None, typer.Option(help="for a model that writes all tokens at once: passes that refine them, 4 unless given")
]
Lengths = Annotated[
    int | None, typer.Option(help="for a model that guesses the length: how many lengths are tried, 1 unless given")
]
Penalty = Annotated[
    str | None,
    typer.Option(help="scores are divided by length^alpha (average), ((5+length)/6)^alpha (wu), or not (none)"),
]
Alpha = Annotated[float | None, typer.Option(help="the exponent of the length penalty")]
Temperature = Annotated[float | None, typer.Option(help="sample; below 1 sharper, above 1 flatter")]
TopK = Annotated[int | None, typer.Option(help="sample among the k likeliest tokens")]
TopP = Annotated[float | None, typer.Option(help="sample among the likeliest tokens of this share")]
Seed = Annotated[int | None, typer.Option(help="another seed gives other samples")]
Change = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting, such as optim.lr=3e-4")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Engine = Annotated[
    str | None, typer.Option(help="regard, or ctranslate2, which is often faster on a CPU and can do less")
]
Precision = Annotated[
    str | None,
    typer.Option(help="float32 unless given; faster, and rounding more: bfloat16, on a CPU int8, on a GPU float16"),
]
Source = Annotated[
    Path | None,
    typer.Option("--input", help="lines (.gz, .xz), a .tsv, .jsonl or .parquet; by default standard input"),
]
Key = Annotated[
    str | None,
    typer.Option(help="where the text is in a .jsonl or .parquet --input, 'source' unless given, or in a .tsv, 0"),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="go on with an output that was interrupted; give the same options again")
]
MoreSearch = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="KEY=VALUE",
        help="any other setting of the search: coverage, stop, min_length, max_length, max_ratio, max_extra, "
        "no_repeat, groups, diversity, rerank; may be repeated",
    ),
]


SEARCH: dict[str, Any] = {
    "beam": Beam,
    "length_penalty": Penalty,
    "alpha": Alpha,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "seed": Seed,
    "iterations": Iterations,
    "lengths": Lengths,
    "search": MoreSearch,
}
SAMPLING = ("temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True)
class Search:
    """What the options of the search said, of a command that has them."""

    flags: dict[str, Any]
    further: Sequence[str]

    def settings(self, run: Path, **more: Any) -> DecodingSettings:
        """The settings, with what else is known, of the kind that a run's model takes.

        Raises:
            UserError: one of them is wrong, or not for this model.
        """
        return choose_search(run, self.further, **self.flags, **more)


def with_search(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the options of the search but for some, which come to it together, as `search`."""

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        names = [name for name in SEARCH if name not in without]
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "search"]
        more = [inspect.Parameter(name, _NAMED, default=None, annotation=SEARCH[name]) for name in names]

        @wraps(command)
        def run(**given: Any) -> None:
            flags = {name: given.pop(name) for name in names}
            further = flags.pop("search") or ()
            command(**given, search=Search(flags, further))

        every = [parameter.replace(kind=_NAMED) for parameter in own] + more
        run.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
        return run

    return extend


_NAMED = inspect.Parameter.KEYWORD_ONLY


def choose_search(run: Path, further: Sequence[str] | None, **flags: object) -> DecodingSettings:
    """The settings of the flags that were given and of --search KEY=VALUE, of the kind that the run's model takes."""
    from regard.decoding.config import parse_settings, settings_for_kind
    from regard.errors import UserError
    from regard.models.folder import find_model_folder, model_kind, read_config

    values = {key: value for key, value in flags.items() if value is not None}
    for change in further or ():
        key, equals, value = change.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise UserError(f"--search {change}: write KEY=VALUE, such as max_length=80")
        if key in values:
            raise UserError(f"--search {change}: {key} is given twice; choose one")
        values[key] = value.strip()
    kind = "transformer"
    with suppress(UserError):  # whoever opens the folder says what is wrong with it
        folder = find_model_folder(run)
        kind = model_kind(folder, read_config(folder))
    return parse_settings(settings_for_kind(kind), values, "options")


@contextmanager
def exit_code_of_interruption() -> Iterator[None]:
    """Ends the process with the code that belongs to the signal, 130 or 143, where the block was interrupted."""
    from regard.runtime import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        typer.echo("regard: interrupted", err=True)
        sys.exit(128 + interrupted.signal)
