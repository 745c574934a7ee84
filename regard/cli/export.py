"""`regard export` and `regard import`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Run


def export(
    run: Run,
    out: Annotated[Path, typer.Argument(help="a new folder for what is written")],
    to: Annotated[str, typer.Option(help="the format: ctranslate2, huggingface, onnx, torch or argos")],
    quantization: Annotated[
        str | None,
        typer.Option(help="with ctranslate2 or argos: numbers of the weights, such as int8; float32 unless given"),
    ] = None,
    sample: Annotated[
        Path | None, typer.Option(help="sentences, one a line, to verify the result with, in place of made-up ones")
    ] = None,
) -> None:
    """Write a model in the format of another program, and verify that it says there what it says here."""
    from regard.data.text.readers import read_lines
    from regard.interop.export import export

    texts = None if sample is None else list(read_lines(sample))
    for sentence in export(run, out, to, quantization, texts):
        typer.echo(sentence)
    typer.echo(f"{out}: written")


def bring_in(
    path: Annotated[Path, typer.Argument(help="a folder of transformers or timm, or a file of weights")],
    out: Annotated[Path, typer.Argument(help="a new model folder")],
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="what the files do not tell of the model, such as heads=8"),
    ] = None,
    embedding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=NAME",
            help="for an nn.Transformer: the tensors source, target, output and bias, and scaled=false where "
            "embeddings are not multiplied by the root of the width",
        ),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="for an nn.Transformer: a tokenizer.json of regard")] = None,
) -> None:
    """Read a model of transformers, timm, torchvision or PyTorch, and write it as a model folder."""
    import yaml

    from regard.interop.import_model import import_model

    changes = {key: yaml.safe_load(value) for key, value in _pairs("--set", change)}
    names = dict(_pairs("--embedding", embedding)) if embedding else None
    typer.echo(f"{out}: {import_model(path, out, changes, names, tokenizer)}")


def _pairs(option: str, given: list[str] | None) -> list[tuple[str, str]]:
    from regard.errors import UserError

    pairs = []
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"{option} {text}: write KEY=VALUE")
        pairs.append((key.strip(), value.strip()))
    return pairs
