"""`regard demo`, `regard train` and `regard average`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Change, exit_code_of_interruption


def demo(
    out: Annotated[
        Path | None, typer.Option(help="folder for the trained model, runs/demo or runs/vision unless given")
    ] = None,
    vision: Annotated[
        bool, typer.Option("--vision", help="a classifier of rendered shapes in place of a translator")
    ] = False,
    change: Change = None,
) -> None:
    """Train a translator on the built-in corpus, or a classifier on shapes; score it, draw what it looks at."""
    with exit_code_of_interruption():
        if vision:
            from regard.cli.demo_vision import run_vision_demo

            run_vision_demo(out or Path("runs/vision"), change or [])
        else:
            from regard.cli.demo_translation import run_demo

            run_demo(out or Path("runs/demo"), change or [])


def train(
    recipe: Annotated[Path | None, typer.Argument(help="a YAML recipe, or the name of a built-in one")] = None,
    src: Annotated[
        Path | None,
        typer.Option(help="source sentences, one a line (.gz, .xz), or a .tsv, .jsonl, .parquet or a folder of these"),
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="target sentences, line by line beside the source")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="validation source; else some pairs are held out")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="validation target")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="for a model of images: a folder of class folders, with or without train/ and test/ above"),
    ] = None,
    valid: Annotated[Path | None, typer.Option(help="images to validate with; else a split, or some held out")] = None,
    init_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="begin with a trained model, its weights and its tokenizer")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the run; one that was interrupted goes on")] = None,
    change: Change = None,
) -> None:
    """Train a translator from parallel text, a classifier from images, or a model of two views."""
    from regard.errors import UserError
    from regard.training.distributed import is_main, reporting_once
    from regard.training.families import family_of
    from regard.training.recipe import Recipe, builtin_recipes
    from regard.training.run import run_recipe

    with exit_code_of_interruption(), reporting_once():
        if recipe is None and src is None and data is None and not change:
            built_in = ", ".join(builtin_recipes())
            raise UserError(f"train needs a recipe (a YAML file or one of {built_in}), --src and --tgt, or --data")
        if out is None:
            raise UserError("train needs --out, the folder for the run")
        files = {"source": src, "target": tgt, "valid_source": valid_src, "valid_target": valid_tgt}
        files |= {"images": data, "valid": valid}
        given: dict[str, Any] = {f"data.{key}": str(path) for key, path in files.items() if path is not None}
        if init_from is not None:
            given["init.from"] = str(init_from)
        if src is not None and recipe is not None:
            given["data.builtin"] = None
        if data is not None and recipe is None:
            given["model.kind"] = "vit"  # unless --set says otherwise
        wanted = Recipe.load(recipe, change or [], given)
        outcome = run_recipe(wanted, out)
    if not is_main():
        return
    typer.echo(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s; the best model (step {outcome.best_step}) is {out}/best"
    )
    typer.echo(f"next: {family_of(wanted.kind).suggest(out)}")


def average(
    runs: Annotated[
        list[Path], typer.Argument(help="model folders or runs that hold one; or one run, for its kept checkpoints")
    ],
    out: Annotated[Path, typer.Option(help="the model folder to write; it must not exist")],
) -> None:
    """Average the weights of several models of one make, or of the checkpoints that a run has kept."""
    from regard.training.checkpoint_average import average_models

    for folder in average_models(runs, out):
        typer.echo(f"averaged {folder}")
    typer.echo(f"the mean is {out}; next: regard translate {out} < FILE")
