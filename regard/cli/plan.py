"""`regard plan`: computes memory, hours and cost of a training before it starts."""

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Overrides
from regard.errors import UserError


def plan(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe, or name of a built-in recipe")],
    gpus: Annotated[int, typer.Option(min=1, help="number of GPUs")] = 1,
    gpu: Annotated[str, typer.Option(help="h200, h100, a100, b200, l40s or rtx4090")] = "h200",
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of a machine")] = 8,
    interconnect: Annotated[
        str,
        typer.Option(
            metavar="NAME|GB/S",
            help="between machines: infiniband-400, infiniband-200, ethernet-200, ethernet-100, or GB/s per GPU",
        ),
    ] = "infiniband-400",
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="measured step of this recipe: --out of regard bench RUN --training"),
    ] = None,
    pairs: Annotated[
        float | None, typer.Option(help="sentence pairs to train on; by default training.steps decides")
    ] = None,
    length: Annotated[float, typer.Option(help="with --pairs: mean target tokens of a pair")] = 27.0,
    images: Annotated[float | None, typer.Option(help="images to train on; by default training.steps decides")] = None,
    price: Annotated[float | None, typer.Option(help="price of a GPU hour, in any currency")] = None,
    watts: Annotated[float | None, typer.Option(help="power of a GPU; by default its limit")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    overrides: Overrides = None,
) -> None:
    """Compute memory, speed, hours, energy and cost of a training on several GPUs. Nothing is run."""
    from regard.files import read_json
    from regard.training.plan import Cluster, find_gpu, make_plan, parse_interconnect, read_measured
    from regard.training.tasks.registry import load_recipe
    from regard.training.tasks.translation.recipe import TranslationRecipe

    for option, value in (("--pairs", pairs), ("--length", length), ("--images", images), ("--price", price)):
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{option} {value:g}: must be a number above 0")
    loaded = load_recipe(recipe, overrides or [])
    is_text = isinstance(loaded, TranslationRecipe)
    for option, value, other in (("--pairs", pairs, not is_text), ("--images", images, is_text)):
        if value is not None and other:
            raise UserError(f"{option}: the recipe trains on {'sentence pairs' if is_text else 'images'}; omit it")
    cluster = Cluster(find_gpu(gpu), gpus, gpus_per_node, parse_interconnect(interconnect))
    seconds = None if measured is None else read_measured(read_json(measured), str(measured))
    units = images if pairs is None else pairs * length
    result = make_plan(loaded, cluster, measured=seconds, units=units, price=price, watts=watts)
    if as_json:
        typer.echo(json.dumps({"computed": True, "gpu": gpu} | result.as_dict(), indent=2))
        return
    typer.echo(f"computed, not measured: {recipe} on {gpus} × {gpu}" + ("" if gpus == 1 else f", {interconnect}"))
    typer.echo("\n".join(result.lines()))
