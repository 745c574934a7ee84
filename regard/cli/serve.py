"""`regard serve`: serves models over HTTP."""

from ipaddress import ip_network
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device, Engine, Precision, parse_key_values
from regard.errors import UserError
from regard.files import read_json

CONFIGS = ("config.json", "regard.json")
"""Configuration files of a model folder and of an export for CTranslate2."""


def serve(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="models; NAME=RUN gives a model another name")],
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 accepts other machines")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 selects a free port")] = 5000,
    keys: Annotated[Path | None, typer.Option(help="file written by `regard key`; without it no key is needed")] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="limit, such as characters=20000")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="allowed site, such as https://example.org; or *")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="host name of the server in requests, besides local names; or *"),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="reverse proxy whose X-Forwarded-For header names the client"),
    ] = None,
    search: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="search setting, such as beam=1")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes per model; by default two")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads per process; by default the cores are shared")
    ] = None,
    engine: Engine = None,
    precision: Precision = None,
    log_text: Annotated[bool, typer.Option("--log-text", help="log the texts that users send")] = False,
    device: Device = "auto",
) -> None:
    """Serve models over HTTP, with the API of LibreTranslate, an API of its own, and a web page at /."""
    try:
        from regard.serving.server import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}; install it with pip install 'regard[serve]'") from None
    from regard.serving.config import Limits, ServingConfig, split_cores
    from regard.serving.messages import LoadRequest

    folders = _name_runs(runs)
    settings = parse_key_values("--search", search)
    directions = {name: _read_directions(folder) for name, folder in folders.items()}
    default_workers, default_threads = split_cores(sum(len(pairs) or 1 for pairs in directions.values()))
    options = device, threads or default_threads, settings, engine, precision
    requests = [
        LoadRequest(f"{name}-{'-'.join(pair)}" if pair else name, folder, *options, pair)
        for name, folder in folders.items()
        for pair in directions[name] or (None,)
    ]
    limits = Limits.parse(parse_key_values("--limit", limit), "--limit")
    config = ServingConfig(
        requests,
        workers or default_workers,
        limits,
        keys,
        tuple(cors or ()),
        log_text,
        hosts=allow_host,
        proxies=_check_networks(proxy or []),
    )
    run(config, host, port)


def _check_networks(addresses: list[str]) -> list[str]:
    for address in addresses:
        try:
            ip_network(address)
        except ValueError:
            raise UserError(f"--proxy {address}: expected an IP address or a network such as 10.0.0.0/8") from None
    return addresses


def _read_directions(run: Path) -> list[tuple[str, str]]:
    """Return the directions that the configuration of a model lists; workers check the rest of it."""
    for folder in (run, run / "best", run / "last"):
        for name in CONFIGS:
            if (folder / name).is_file():
                values = read_json(folder / name)
                pairs = values.get("directions") if isinstance(values, dict) else None
                return [(str(pair[0]), str(pair[-1])) for pair in pairs or () if pair]
    return []


def _name_runs(runs: list[str]) -> dict[str, Path]:
    """Return the folders by name: the given name in NAME=RUN, otherwise the name of the folder."""
    folders: dict[str, Path] = {}
    for run in runs:
        name, equals, path = run.partition("=")
        if not equals or Path(run).exists():
            name, path = Path(run).resolve().name, run
        if name in folders:
            raise UserError(f"two runs are called {name}; give one another name, such as other={path}")
        if not Path(path).is_dir():  # workers check the content
            raise UserError(f"{path}: no such model folder")
        folders[name] = Path(path)
    return folders
