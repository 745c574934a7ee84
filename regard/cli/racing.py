"""`regard bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Device


def bench(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[:KEY=VALUE,...]...",
            help="models, each with its settings of the search, such as runs/a:beam=1 runs/b:rounds=4,lengths=3",
        ),
    ],
    src: Annotated[Path, typer.Option(help="source sentences, one a line")],
    ref: Annotated[Path | None, typer.Option(help="reference translations, one a line, for BLEU")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="sentences translated at once; may be repeated; 1, 8 and 64")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0, help="how long each is timed at each size of batch")] = 3.0,
    tokenize: Annotated[
        str | None, typer.Option(help="sacreBLEU tokeniser, by default the language's; 'none' for tokenised text")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write the results there, as JSON")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw quality against speed there: .png, .svg or .pdf")] = None,
    device: Device = "auto",
) -> None:
    """Time models from text to text, at several sizes of batch, and set their speed against their quality."""
    from regard.cli.evaluation import choose_tokenisation
    from regard.devices import choose_device
    from regard.errors import UserError
    from regard.evaluation.speed import Contender, describe_machine, race, tabulate
    from regard.evaluation.trade import check_picture, save_trade
    from regard.text.readers import read_lines, read_parallel

    if plot is not None:
        check_picture(plot)
        if ref is None:
            raise UserError("--plot shows quality against speed, so it needs --ref, the reference translations")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"{out}: no file can be written there; --out needs a file name in an existing folder")
    sizes = sorted(set(batch or (1, 8, 64)))
    sources = list(read_lines(src)) if ref is None else [pair.source for pair in read_parallel(src, ref)]
    references = None if ref is None else [pair.target for pair in read_parallel(src, ref)]
    if len(sources) < max(sizes):
        raise UserError(f"{src}: {len(sources)} sentences do not make a batch of {max(sizes)}; give a smaller --batch")
    chosen = choose_device(device)
    contenders = [Contender.open(run, chosen) for run in runs]
    tokenisation = "none"
    if ref is not None:
        tokenisation = choose_tokenisation(tokenize, [c.translator.languages[1] for c in contenders], src, ref)
    results = race(contenders, sources, references, sizes, seconds, tokenisation)
    typer.echo(tabulate(results))
    machine = describe_machine(chosen)
    typer.echo(f"\nmedian times from text to text on {machine}; in brackets, how much faster than the first")
    if out is not None:
        record = {"machine": machine, "results": [result.as_dict() for result in results]}
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if plot is not None:
        save_trade(results, plot, f"Quality against speed on {machine}")
