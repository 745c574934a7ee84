"""`regard key`: creates an API key for `regard serve --keys`."""

from pathlib import Path
from typing import Annotated

import typer

from regard.files import report_unwritable


def key(
    name: Annotated[str, typer.Argument(help="owner of the key, one word")],
    file: Annotated[Path, typer.Option(help="file of key hashes to append to; created if missing")],
    per_minute: Annotated[int, typer.Option(min=1, max=999_999_999, help="requests per minute")] = 600,
) -> None:
    """Create an API key for `regard serve --keys`. The key is printed once, and only its hash is stored."""
    from regard.serving.keys import Keys, make_key

    if file.exists():
        Keys.load(file)  # reports a damaged file before anything is appended
    secret, line = make_key(name, per_minute)
    with report_unwritable(file), file.open("a", encoding="utf-8") as lines:
        lines.write(line)
    typer.echo(secret)
