"""`regard train`: trains a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.options import Overrides, exit_on_interruption
from regard.errors import UserError


def train(
    recipe: Annotated[Path | None, typer.Argument(help="YAML recipe, or name of a built-in recipe")] = None,
    src: Annotated[
        Path | None, typer.Option(help="source sentences; or .tsv, .jsonl, .parquet, .tmx, .xlf or a folder")
    ] = None,
    tgt: Annotated[Path | None, typer.Option(help="target sentences, line by line as in --src")] = None,
    valid_src: Annotated[Path | None, typer.Option(help="validation source; by default held-out pairs")] = None,
    valid_tgt: Annotated[Path | None, typer.Option(help="validation target")] = None,
    data: Annotated[Path | None, typer.Option(help="image models: folder with a folder per class")] = None,
    valid: Annotated[Path | None, typer.Option(help="validation images; by default a split or held-out images")] = None,
    init_from: Annotated[Path | None, typer.Option(metavar="RUN", help="initialise with a trained model")] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run; an interrupted run is resumed")] = None,
    overrides: Overrides = None,
) -> None:
    """Train a translator on parallel text, a classifier on images, or a CroCo model on pairs of views."""
    from regard.training.distributed import is_main, report_errors_once
    from regard.training.recipe import builtin_recipes
    from regard.training.run import run_recipe
    from regard.training.tasks.registry import load_recipe, task_of

    with exit_on_interruption(), report_errors_once():
        if recipe is None and src is None and data is None and not overrides:
            built_in = ", ".join(builtin_recipes())
            raise UserError(f"train needs a recipe (a YAML file or one of {built_in}), --src and --tgt, or --data")
        if out is None:
            raise UserError("train needs --out, the folder for the run")
        text = {"source": src, "target": tgt, "valid_source": valid_src, "valid_target": valid_tgt}
        images = {"images": data, "valid": valid}
        if any(text.values()) and any(images.values()):
            raise UserError(
                "--src, --tgt, --valid-src and --valid-tgt are text for translators, --data and --valid are images; "
                "give only one kind"
            )
        files = {key: path for key, path in (text | images).items() if path is not None}
        given: dict[str, Any] = {f"data.{key}": str(path) for key, path in files.items()}
        if init_from is not None:
            given["init.from"] = str(init_from)
        if src is not None and recipe is not None:
            given["data.builtin"] = None
        if data is not None and recipe is None:
            given["model.kind"] = "vit"  # unless --set chooses another kind
        loaded = load_recipe(recipe, overrides or [], given)
        outcome = run_recipe(loaded, out)
    if not is_main():
        return
    typer.echo(
        f"{outcome.steps} steps in {outcome.seconds:.0f} s; the best model (step {outcome.best_step}) is {out}/best"
    )
    typer.echo(f"next: {task_of(loaded).next_command(out)}")
