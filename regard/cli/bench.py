"""`regard bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device

if TYPE_CHECKING:
    from regard.evaluation.bench.comparison import Finding, Race


def bench(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[:KEY=VALUE,...]...",
            help="models, each with its settings of the search, such as runs/a:beam=1 runs/b:iterations=4,lengths=3",
        ),
    ],
    src: Annotated[
        Path | None, typer.Option(help="source sentences, one a line; by default those that the run validates with")
    ] = None,
    ref: Annotated[Path | None, typer.Option(help="reference translations, one a line, for BLEU")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="sentences or images at once; may be repeated; 1, 8 and 64")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, help="how long each is timed, at each size of batch or way of training; of attention, a call's limit"
        ),
    ] = 3.0,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="the first model's weights in another program: huggingface, ctranslate2; may be repeated"),
    ] = None,
    training: Annotated[
        bool,
        typer.Option("--training", help="time steps of training, as the run's recipe has them and as it could have"),
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="time every kind of attention with the heads of a model, over lengths")
    ] = False,
    tokenize: Annotated[
        str | None, typer.Option(help="sacreBLEU tokeniser, by default the language's; 'none' for tokenised text")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write the results there, as JSON")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw quality against speed there: .png, .svg or .pdf")] = None,
    device: Device = "auto",
) -> None:
    """Time models on this machine, alone or beside other programs with the same weights."""
    from regard.errors import UserError
    from regard.evaluation.bench.attention import time_attention
    from regard.evaluation.bench.comparison import Race, check_peers
    from regard.evaluation.bench.environment import cite, describe_circumstances
    from regard.evaluation.bench.plot import save_quality_plot
    from regard.evaluation.bench.runs import check_runs
    from regard.runtime import choose_device
    from regard.training.bench import time_training

    if training and attention:
        raise UserError("--training and --attention are two things to time; choose one")
    reads = check_runs(runs, "training" if training else "attention" if attention else "answers")
    of_text: dict[str, object] = {"--src": src, "--ref": ref, "--tokenize": tokenize, "--plot": plot}
    _refuse_unfit("--training", of_text | {"--batch": batch} if training else {})
    _refuse_unfit("--attention", of_text | {"--batch": batch, "--peer": peer} if attention else {})
    _refuse_unfit(f"a model that reads {reads}", of_text if reads != "text" else {})
    _check_files(src, ref, out, plot)
    peers, chosen = check_peers(peer or ()), choose_device(device)
    found: Finding
    if training:
        found = time_training(runs, chosen, seconds, peers, _tell)
    elif attention:
        found = time_attention(runs[0], chosen, seconds, tell=_tell)
    else:
        wanted = Race(tuple(batch or ()), seconds, peers, chosen)
        found = race = _time_answers(reads, runs, wanted, (src, ref), tokenize)
    circumstances = describe_circumstances(chosen, peers)
    typer.echo("\n".join([*found.lines(), cite(circumstances)]))
    if out is not None:
        record = circumstances | found.as_dict()
        out.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if plot is not None:
        save_quality_plot(race.results, plot, f"Quality against speed on {circumstances['machine']}")


def _refuse_unfit(what: str, options: dict[str, object]) -> None:
    from regard.errors import UserError

    for name, value in options.items():
        if value is not None:
            raise UserError(f"{name}: is of no use with {what}; leave it away")


def _check_files(src: Path | None, ref: Path | None, out: Path | None, plot: Path | None) -> None:
    """What can be refused before anything is opened."""
    from regard.errors import UserError
    from regard.evaluation.bench.plot import check_picture

    if ref is not None and src is None:
        raise UserError("--ref needs --src, the sentences of which these are the translations")
    if plot is not None:
        check_picture(plot)
        if ref is None:
            raise UserError("--plot shows quality against speed, so it needs --ref, the reference translations")
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"{out}: no file can be written there; --out needs a file name in an existing folder")


def _time_answers(
    reads: str,
    runs: list[str],
    wanted: Race,
    files: tuple[Path | None, Path | None],
    tokenize: str | None,
) -> Race:
    from regard.cli.evaluate import choose_tokenisation
    from regard.evaluation.bench.images import race_images
    from regard.evaluation.bench.translation import race_translators

    if reads == "images":
        return race_images(runs, wanted)
    src, ref = files

    def choose(languages: Sequence[str]) -> str:
        return "none" if src is None or ref is None else choose_tokenisation(tokenize, languages, src, ref)

    return race_translators(runs, wanted, files, choose)


def _tell(text: str) -> None:
    typer.echo(f"{text} …", err=True)
