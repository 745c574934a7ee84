"""Options, inputs and outputs shared by several commands."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

import typer

from regard.console import Interrupted, Interruptions, LineProgress
from regard.errors import UserError
from regard.files import read_raw_lines

if TYPE_CHECKING:
    from regard.cli.record_files import AlignedRecordFiles, RecordFile
    from regard.data.text.glossary import Glossary as TermGlossary
    from regard.decoding.settings import DecodingSettings
    from regard.pipelines.executors import Executor

Command = Callable[..., None]
Records = TypeVar("Records", "AlignedRecordFiles", "RecordFile | StandardOutput")


Run = Annotated[Path, typer.Argument(help="model folder, or training run that contains one")]
Others = Annotated[
    list[Path] | None, typer.Option("--with", metavar="RUN", help="further model of an ensemble (repeatable)")
]
Beam = Annotated[int | None, typer.Option(help="beam size; by default 5, for CTC models 1 (greedy search)")]
Iterations = Annotated[int | None, typer.Option(help="non-autoregressive models: iterations, by default 4")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="setting, such as optim.lr=3e-4")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 ...")]
Glossary = Annotated[
    Path | None, typer.Option(metavar="FILE", help="terms that are translated as given: .tsv with source and target")
]
Memory = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="translation memory (.tmx or any parallel file) to take sentences from"),
]
MemoryThreshold = Annotated[
    float | None, typer.Option(help="with --memory: minimum similarity of sentences that --json shows, by default 0.75")
]
OutputMemory = Annotated[
    Path | None, typer.Option(metavar="FILE", help="also write all sentences and their translations to a new .tmx file")
]
Engine = Annotated[str | None, typer.Option(help="regard, or ctranslate2 (often faster on CPU, fewer options)")]
Precision = Annotated[str | None, typer.Option(help="float32 by default; bfloat16, int8 (CPU) or float16 (GPU)")]
FromLanguage = Annotated[
    str | None, typer.Option("--from", help="source language, for a model with several directions or --server")
]
ToLanguage = Annotated[
    str | None, typer.Option("--to", help="target language, for a model with several directions or --server")
]
Input = Annotated[
    Path | None, typer.Option("--input", help="text, .tsv, .jsonl or .parquet; by default standard input")
]
Key = Annotated[
    str | None, typer.Option(help="key of .jsonl and .parquet, by default 'source'; column of .tsv, from 0")
]
Resume = Annotated[bool, typer.Option("--resume", help="continue an interrupted output; repeat the same options")]
SearchOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--search",
        metavar="KEY=VALUE",
        help="any other search setting: mbr (chrf or bleu; mbr alone is mbr=chrf), samples, epsilon, coverage, stop, "
        "min_length, max_length, max_ratio, max_extra, no_repeat, groups, diversity, rerank; may be repeated",
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Argument(metavar="IMAGE...", help="files, folders or patterns; by default paths from standard input"),
]


SEARCH_OPTIONS: dict[str, Any] = {
    "beam": Beam,
    "length_penalty": Annotated[str | None, typer.Option(help="average: length^alpha; wu: ((5+length)/6)^alpha; none")],
    "alpha": Annotated[float | None, typer.Option(help="exponent of the length penalty")],
    "temperature": Annotated[float | None, typer.Option(help="sample with this temperature; lower is sharper")],
    "top_k": Annotated[int | None, typer.Option(help="sample from the k most likely tokens")],
    "top_p": Annotated[
        float | None, typer.Option(help="sample from the most likely tokens with this total probability")
    ],
    "seed": Annotated[int | None, typer.Option(help="random seed for sampling")],
    "iterations": Iterations,
    "lengths": Annotated[
        int | None, typer.Option(help="models with a length classifier: lengths to try, by default 1")
    ],
    "search": SearchOverrides,
}
SHARD_OPTIONS: dict[str, Any] = {
    "on": Annotated[
        str | None,
        typer.Option("--on", metavar="ray", help="folders of shards: run on a Ray cluster"),
    ],
    "workers": Annotated[
        int | None,
        typer.Option(min=1, help="folders of shards: processes with a model; by default one per GPU, or per core"),
    ],
    "threads": Annotated[
        int | None, typer.Option(min=1, help="folders of shards: CPU threads of each worker, by default 1")
    ],
}
SHORT_SEARCH = {"mbr": "mbr=chrf"}
"""Arguments of --search that need no value."""
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "seed")


@dataclass(frozen=True)
class SearchOptions:
    """Values of the search options of one command line."""

    flags: dict[str, Any]
    overrides: Sequence[str] | None

    def settings(self, run: Path, **flags: Any) -> DecodingSettings:
        """Combine the flags and --search KEY=VALUE into the settings class of the model of `run`."""
        from regard.decoding.settings import SearchSettings, parse_settings, settings_for_model
        from regard.models.folder import find_model_folder, model_class, read_config

        values = {key: value for key, value in (self.flags | flags).items() if value is not None}
        values |= parse_key_values("--search", self.overrides, taken=values)
        settings_type: type[DecodingSettings] = SearchSettings
        with suppress(UserError):  # loading the model reports what is wrong with the folder
            folder = find_model_folder(run)
            settings_type = settings_for_model(model_class(folder, read_config(folder)))
        return parse_settings(settings_type, values, "options")


@dataclass(frozen=True)
class ShardOptions:
    """Values of the options of one command line."""

    on: str | None
    workers: int | None
    threads: int | None

    def reject(self) -> None:
        """Reject the options for input that is not a folder of shards."""
        for name, value in (("--on", self.on), ("--workers", self.workers), ("--threads", self.threads)):
            if value is not None:
                raise UserError(f"{name} {value}: is for folders of .jsonl or .parquet shards; give a folder as input")

    def executor(self, device: str = "cpu") -> Executor:
        """Return the executor; workers use GPUs if there are any and the device is not cpu."""
        if self.on is not None:
            from regard.pipelines.ray_executor import RayExecutor

            return RayExecutor(self.on, self.workers, self.threads, False if device == "cpu" else None)
        import torch

        from regard.pipelines.executors import LocalExecutor
        from regard.threads import available_cpus

        gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
        threads = self.threads or 1
        workers = self.workers or gpus or max(1, available_cpus() // threads)
        return LocalExecutor(workers, threads, gpus)


def add_search_options(*excluded: str) -> Callable[[Command], Command]:
    """Decorate a command: replace its parameter `search_options`, a `SearchOptions`, with the options themselves."""
    options = {name: option for name, option in SEARCH_OPTIONS.items() if name not in excluded}
    return replace_parameter("search_options", options, lambda search, **flags: SearchOptions(flags, search))


def add_shard_options(command: Command) -> Command:
    """Decorate a command: replace its parameter `shards`, a `ShardOptions`, with the options themselves."""
    return replace_parameter("shards", SHARD_OPTIONS, ShardOptions)(command)


def replace_parameter(
    name: str, options: Mapping[str, Any], collect: Callable[..., object]
) -> Callable[[Command], Command]:
    """Return a decorator of commands that replaces a parameter with options, of which `collect` makes its value."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def with_options(**values: Any) -> None:
            given = {option: values.pop(option) for option in options}
            command(**values, **{name: collect(**given)})

        return add_options(with_options, command, options, replaced=name)

    return decorate


def add_options(wrapper: Command, command: Command, options: Mapping[str, Any], replaced: str = "") -> Command:
    """Give the wrapper of a command its parameters, except the replaced one, and the options."""
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        if parameter.name != replaced
    ]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in options.items()
    ]
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def parse_key_values(option: str, given: Sequence[str] | None, taken: Iterable[str] = ()) -> dict[str, str]:
    """Parse the KEY=VALUE arguments of an option that may be repeated.

    Args:
        option: Name of the option, for errors.
        given: The arguments.
        taken: Keys that other options have set already.
    """
    values: dict[str, str] = {}
    for argument in given or ():
        key, equals, value = SHORT_SEARCH.get(argument, argument).partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise UserError(f"{option} {argument}: write KEY=VALUE")
        if key in values or key in taken:
            raise UserError(f"{option} {argument}: {key} is given twice; choose one")
        values[key] = value.strip()
    return values


def reject_options(context: str, options: Mapping[str, object]) -> None:
    """Reject options that are given, but have no effect in this context."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise UserError(f"{name}: has no effect with {context}; omit it")


def check_file_name(path: Path, option: str, inputs: Iterable[Path | None] = ()) -> None:
    """Check that a file can be created at `path`, and that it is none of the inputs."""
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{path}: no file can be written there; {option} needs a file name in an existing folder")
    if _is_any_of(path, inputs):
        raise UserError(f"{path}: {option} would overwrite an input file; choose another name")


def _is_any_of(path: Path, inputs: Iterable[Path | None]) -> bool:
    return path.exists() and any(other is not None and other.exists() and path.samefile(other) for other in inputs)


def read_input(source: Path | None, key: str | None) -> tuple[Iterator[str], int | None]:
    """Return the lines of a file or of standard input, and their number if it is known.

    A file is read once in advance to count the lines, so that an unreadable line is reported before hours of work.
    """
    from regard.data.text.readers import read_stream

    if source is None:
        return read_stream(read_raw_lines(sys.stdin.buffer, "standard input"), "standard input"), None
    total = sum(1 for _ in read_texts(source, key)) if source.is_file() else None  # a pipe can be read only once
    return read_texts(source, key), total


def read_texts(path: Path, key: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file, the values of a key of a .jsonl or .parquet file, or a column of a .tsv file.

    The default key is "source". Columns are counted from 0, which is the default. Lines of a .jsonl file may have a
    glossary; see `glossary_of_line`.
    """
    from regard.data.text.readers import format_suffix, read_lines, read_parquet, read_tsv

    suffix = format_suffix(path)
    if suffix == ".jsonl":
        from regard.data.text.glossary import read_texts_with_glossaries

        return read_texts_with_glossaries(path, key or "source")
    if suffix == ".parquet":
        key = "source" if key is None else key
        return (pair.source for pair in read_parquet(path, key, key))
    if suffix == ".tsv":
        if key is not None and not key.isdecimal():
            raise UserError(f"{path}: --key {key} is not a column of a .tsv file; columns are counted from 0")
        column = int(key or 0)
        return (pair.source for pair in read_tsv(path, column, column))
    if key is not None:
        raise UserError(f"{path}: only .jsonl and .parquet files have keys, and .tsv files columns; omit --key")
    return read_lines(path)


def glossary_of_line(line: str) -> TermGlossary | None:
    """Return the glossary of a line that `read_texts` has read; None if it has none."""
    return getattr(line, "glossary", None)


def check_output(output: Path, resume: bool, inputs: Iterable[Path | None]) -> None:
    """Check, before a model is loaded, that translations can be written to `output`."""
    from regard.data.text.readers import COMPRESSION_SUFFIXES

    if output.suffix.lower() in COMPRESSION_SUFFIXES:
        raise UserError(f"{output}: translations are not compressed; choose a name without {output.suffix}")
    if _is_any_of(output, inputs):
        raise UserError(f"{output} is an input file; choose another name for the translations")
    if output.is_dir():
        raise UserError(f"{output} is a directory; translations need a file name")
    if output.is_file() and not resume:
        raise UserError(f"{output} already exists; continue it with --resume, or choose another name")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    if resume and output.exists() and not output.is_file():
        raise UserError(f"{output} is not a regular file, so --resume cannot continue it")


def check_new_file(path: Path, inputs: Iterable[Path | None]) -> None:
    """Check, before long work, that a new file can be written to `path`."""
    from regard.data.text.readers import COMPRESSION_SUFFIXES

    if path.suffix.lower() in COMPRESSION_SUFFIXES:
        raise UserError(f"{path}: the output is not compressed; choose a name without {path.suffix}")
    if _is_any_of(path, inputs):
        raise UserError(f"{path}: is an input file; choose another name for the output")
    if path.exists():
        raise UserError(f"{path}: already exists; choose another name")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")


def choose_pair_files(out: Path | None, out_src: Path | None, out_tgt: Path | None, command: str) -> list[Path]:
    """Return the single file for both sides, or the two files."""
    from regard.data.text.readers import PAIR_SUFFIXES

    if out is not None and out_src is None and out_tgt is None:
        if out.suffix.lower() not in (".tsv", ".jsonl"):
            raise UserError(f"{out}: --out holds both sides, so it must end in .tsv or .jsonl; or give --out-src")
        return [out]
    if out is None and out_src is not None and out_tgt is not None:
        if out_src.absolute() == out_tgt.absolute():
            raise UserError(f"{out_src}: --out-src and --out-tgt are the same file; choose two names")
        for path in (out_src, out_tgt):
            if path.suffix.lower() in PAIR_SUFFIXES:
                raise UserError(f"{path}: a file with this suffix holds both sides; give a .tsv or .jsonl as --out")
        return [out_src, out_tgt]
    raise UserError(f"{command} needs either --out, a .tsv or .jsonl file, or both --out-src and --out-tgt")


class StandardOutput:
    """Writes records to standard output, as `RecordFile` does to a file."""

    def __init__(self, interruptions: Interruptions | None = None) -> None:
        self.count, self._interruptions = 0, interruptions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def append(self, record: str) -> None:
        """Write one record."""
        try:
            with nullcontext() if self._interruptions is None else self._interruptions.defer():
                sys.stdout.buffer.write(record.encode("utf-8"))
                sys.stdout.buffer.flush()
                self.count += 1
        except BrokenPipeError:  # the reader has closed the pipe; the command line exits silently
            raise
        except OSError as error:
            _close_standard_output()
            raise UserError(f"standard output: cannot be written ({error.strerror})") from None

    def explain_interruption(self) -> str:
        """Return one sentence on how much is complete."""
        return f"interrupted after {self.count} lines"


def _close_standard_output() -> None:
    """Discard buffered output: at exit, Python would try to write it again and print another error."""
    with suppress(OSError, ValueError):  # a replacement of sys.stdout may have no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


@contextmanager
def open_output(
    open_records: Callable[[Interruptions], Records], total: int | None, shown: bool = True
) -> Iterator[tuple[Records, LineProgress]]:
    """Open record files and a progress display; on an interruption print how to continue and exit."""
    with Interruptions() as interruptions:
        records = open_records(interruptions)
        try:
            with records, LineProgress(total, records.count, shown=shown) as progress:
                yield records, progress
        except Interrupted as interrupted:
            typer.echo(f"regard: {records.explain_interruption()}", err=True)
            sys.exit(128 + interrupted.signal)


@contextmanager
def exit_on_interruption() -> Iterator[None]:
    """Exit with the code of the signal, 130 or 143, if the block is interrupted."""
    try:
        yield
    except Interrupted as interrupted:
        typer.echo("regard: interrupted", err=True)
        sys.exit(128 + interrupted.signal)
