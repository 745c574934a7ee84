"""`regard export`: exports a model to the format of another program."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Run


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="new folder for the exported model")],
    to: Annotated[str, typer.Option(help="format: ctranslate2, huggingface, onnx, torch or argos")],
    quantization: Annotated[
        str | None, typer.Option(help="ctranslate2, argos: type of the weights, such as int8")
    ] = None,
    sample: Annotated[Path | None, typer.Option(help="sentences for verification instead of random ones")] = None,
) -> None:
    """Export a model to the format of another program, and verify that its outputs are the same."""
    from regard.data.text.readers import read_lines
    from regard.interop.export_model import export_model

    texts = None if sample is None else list(read_lines(sample))
    for sentence in export_model(run, out, to, quantization, texts):
        typer.echo(sentence)
    typer.echo(f"{out}: written")
