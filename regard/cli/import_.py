"""`regard import`: converts a model of another library to a model folder."""

from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import parse_key_values


def import_(
    path: Annotated[
        Path, typer.Argument(help="folder of transformers, timm or CTranslate2; .argosmodel, or weights file")
    ],
    out: Annotated[Path, typer.Argument(help="new model folder")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="missing setting, such as heads=8")
    ] = None,
    embedding: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=NAME",
            help="nn.Transformer: names of the tensors source, target, output and bias; scaled=false if "
            "embeddings are not multiplied by the square root of the width",
        ),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="nn.Transformer: a tokenizer.json of regard; CTranslate2: also a SentencePiece model"),
    ] = None,
) -> None:
    """Convert a model of transformers, timm, torchvision, PyTorch or CTranslate2 to a model folder."""
    from regard.interop.import_model import import_model
    from regard.training.recipe import parse_setting

    given = parse_key_values("--set", overrides).items()
    changes = {key: parse_setting(value, f"--set {key}={value}") for key, value in given}
    names = parse_key_values("--embedding", embedding) or None
    typer.echo(f"{out}: {import_model(path, out, changes, names, tokenizer)}")
