"""`regard serve` and `regard key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Device, Engine, Precision


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="model folders or training runs; NAME=RUN gives one another name"),
    ],
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 lets other machines in")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 takes a free one")] = 5000,
    keys: Annotated[
        Path | None, typer.Option(help="a file of API keys' hashes, made by `regard key`; else no key is needed")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="change a limit, such as characters=20000; see docs/serving.md"),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="a web site whose pages may ask, such as https://example.org; or *"),
    ] = None,
    search: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="a setting of the search, such as beam=1")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="processes a model, each with a copy of it; two unless given"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads a process; the cores are shared out unless given")
    ] = None,
    engine: Engine = None,
    precision: Precision = None,
    log_text: Annotated[bool, typer.Option("--log-text", help="let the log hold what users send")] = False,
    device: Device = "auto",
) -> None:
    """Serve models over HTTP, in the form of LibreTranslate's API and in our own, with a page at / to watch them."""
    from regard.errors import UserError

    try:
        from regard.serving.server import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}; install it with pip install 'regard[serve]'") from None
    from regard.serving.config import Limits, ServingConfig, split_cores
    from regard.serving.messages import LoadRequest

    named = _name(runs)
    chosen = _read(search, "--search")
    team, each = split_cores(len(named))
    orders = [
        LoadRequest(name, path, device, threads or each, chosen, engine, precision) for name, path in named.items()
    ]
    limits = Limits.parse(_read(limit, "--limit"), "--limit")
    run(ServingConfig(orders, workers or team, limits, keys, tuple(cors or ()), log_text), host, port)


def key(
    name: Annotated[str, typer.Argument(help="whose key it is; one word")],
    file: Annotated[Path, typer.Option(help="the file of hashes to add it to; a new one is made")],
    per_minute: Annotated[int, typer.Option(min=1, max=999_999_999, help="requests a minute")] = 600,
) -> None:
    """Make an API key for `regard serve --keys`: it is shown once, and only its hash is kept."""
    from regard.errors import UserError
    from regard.serving.keys import Keys, make_key

    if file.exists():
        Keys.load(file)
    made, line = make_key(name, per_minute)
    try:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(line)
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror})") from None
    typer.echo(made)


def _name(runs: list[str]) -> dict[str, Path]:
    """The runs by name, which is the folder's unless given as NAME=RUN."""
    from regard.errors import UserError

    named: dict[str, Path] = {}
    for run in runs:
        name, equals, path = run.partition("=")
        if not equals or Path(run).exists():
            name, path = Path(run).resolve().name, run
        if name in named:
            raise UserError(f"two runs are called {name}; give one another name, such as other={path}")
        if not Path(path).is_dir():  # what is in it is for a worker to judge, but this can be said at once
            raise UserError(f"{path}: no such model folder")
        named[name] = Path(path)
    return named


def _read(changes: list[str] | None, option: str) -> dict[str, Any]:
    from regard.errors import UserError

    values: dict[str, Any] = {}
    for change in changes or ():
        name, equals, value = change.partition("=")
        if not equals:
            raise UserError(f"{option} {change}: write KEY=VALUE")
        if name in values:
            raise UserError(f"{option} {change}: {name} is given twice; choose one")
        values[name.strip().replace("-", "_")] = value.strip()
    return values
