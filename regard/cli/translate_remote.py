"""`regard translate --server`: the same command, with a server in place of a model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

KEY = "REGARD_API_KEY"


def translate_at(
    url: str,
    lines: Iterable[str],
    total: int | None,
    output: Path | None,
    resume: bool,
    languages: tuple[str | None, str | None],
    shown: bool,
) -> None:
    """Writes the server's translation of every line; the API key, if there is one, is in the environment."""
    from itertools import islice

    from regard.cli.output import writing
    from regard.errors import UserError
    from regard.pipelines.output import Output, count_lines
    from regard.pipelines.translate_files import without_line_ends
    from regard.serving.client import Client

    client = Client(url, os.environ.get(KEY))
    source, target = client.choose_languages(*languages)
    going_on = count_lines(output) if resume and output and output.exists() else None
    with writing(lambda stop: Output(output, stop, going_on), total, shown) as (records, progress):
        rest = iter(lines)
        if len(list(islice(rest, records.records))) < records.records:
            raise UserError(f"{output} holds more lines than the input; they do not belong together")
        for translation in client.translate(rest, source, target):
            records.append(f"{without_line_ends(translation)}\n")
            progress.advance(1)
