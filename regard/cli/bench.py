"""`regard bench`: times models, also in comparison with other libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Device, check_file_name, reject_options
from regard.errors import UserError, prefix_errors
from regard.files import replace_text_file

if TYPE_CHECKING:
    import torch

    from regard.evaluation.benchmark.harness import Report, SpeedReport
    from regard.evaluation.benchmark.translation import TranslationSystem


def bench(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[:KEY=VALUE,...]...",
            help="models, each with optional search settings, such as runs/a:beam=1 runs/b:iterations=4,lengths=3",
        ),
    ],
    src: Annotated[Path | None, typer.Option(help="source sentences; by default the run's validation set")] = None,
    ref: Annotated[Path | None, typer.Option(help="reference translations, one per line, for BLEU")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="batch size (repeatable); by default 1, 8 and 64")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0, max=3600, help="time per model and batch size; with --attention, limit per call")
    ] = 3.0,
    library: Annotated[
        list[str] | None, typer.Option(help="other library: huggingface or ctranslate2 (repeatable)")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="time training steps and variants of the recipe")
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="time every kind of attention by sequence length")
    ] = False,
    tokenize: Annotated[str | None, typer.Option(help="sacreBLEU tokenizer; 'none' for tokenised text")] = None,
    out: Annotated[Path | None, typer.Option(help="file for the results as JSON")] = None,
    plot: Annotated[Path | None, typer.Option(help="plot of quality against speed: .png, .svg or .pdf")] = None,
    device: Device = "auto",
) -> None:
    """Time models on this machine, also in comparison with other libraries with the same weights."""
    from regard.evaluation.benchmark.attention import benchmark_attention
    from regard.evaluation.benchmark.harness import SpeedReport, check_libraries, describe_environment, summarise
    from regard.evaluation.benchmark.plot import save_quality_plot
    from regard.ops.dispatch import choose_device
    from regard.training.benchmark import open_run, time_training

    if training and attention:
        raise UserError("--training and --attention are two benchmarks; choose one")
    if attention and len(runs) > 1:
        raise UserError(f"{runs[1]}: --attention times the heads of one model; give one run")
    for run in runs if training else ():
        open_run(Path(run))  # reports invalid runs before the first one is timed
    input_type = None if training else _common_input_type(runs)
    text_options: dict[str, object] = {"--src": src, "--ref": ref, "--tokenize": tokenize, "--plot": plot}
    if training:
        reject_options("--training", text_options | {"--batch": batch})
    elif attention:
        reject_options("--attention", text_options | {"--batch": batch, "--library": library})
    elif input_type == "images":
        reject_options("an image model", text_options)
    elif input_type != "text":
        raise UserError(f"{runs[0]}: inference of a model that reads {input_type} is not timed; use --training")
    _check_files(src, ref, out, plot)
    libraries, chosen = check_libraries(library or ()), choose_device(device)
    report: Report
    if training:
        report = time_training(runs, chosen, seconds, libraries, _print_progress)
    elif attention:
        report = benchmark_attention(runs[0], chosen, seconds, on_progress=_print_progress)
    elif input_type == "images":
        report = _benchmark_images(runs, batch or (), seconds, libraries, chosen)
    else:
        report = _benchmark_text(runs, (src, ref), batch or (), seconds, libraries, chosen, tokenize)
    environment = describe_environment(chosen, libraries)
    typer.echo("\n".join([*report.lines(), summarise(environment)]))
    if out is not None:
        record = environment | report.as_dict()
        with replace_text_file(out) as file:
            file.write(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if plot is not None:
        assert isinstance(report, SpeedReport)
        save_quality_plot(report.results, plot, f"Quality against speed on {environment['machine']}")


def _check_files(src: Path | None, ref: Path | None, out: Path | None, plot: Path | None) -> None:
    """Reject invalid files before anything is loaded."""
    from regard.evaluation.benchmark.plot import check_plot_path

    if ref is not None and src is None:
        raise UserError("--ref needs --src, the source sentences")
    if plot is not None:
        check_plot_path(plot)
        if ref is None:
            raise UserError("--plot shows quality against speed, so it needs --ref, the reference translations")
    if out is not None:
        check_file_name(out, "--out")


def _common_input_type(runs: Sequence[str]) -> str:
    """Return what the models process, which must be the same: they are timed on the same inputs."""
    from regard.evaluation.benchmark.harness import split_options
    from regard.models.folder import find_model_folder, is_exported, model_input_type

    types = []
    for run in runs:
        path = split_options(run)[0]
        types.append("text" if is_exported(path) else model_input_type(find_model_folder(path)))
        if types[-1] != types[0]:
            raise UserError(f"{run} reads {types[-1]}, but {runs[0]} reads {types[0]}; time them separately")
    return types[0]


def _benchmark_images(
    runs: Sequence[str], batch: Sequence[int], seconds: float, libraries: Sequence[str], device: torch.device
) -> SpeedReport:
    from regard.evaluation.benchmark.images import ImageSystem, benchmark_classifiers
    from regard.interop.huggingface_vision import build_huggingface_classifier

    systems = [ImageSystem.open(run, device) for run in runs]
    for library in libraries:
        with prefix_errors(f"--library {library}"):
            if library != "huggingface":
                raise UserError("has no image models; huggingface does")
            model = build_huggingface_classifier(systems[0].classifier)
            systems.append(ImageSystem.in_transformers(systems[0], model))
    return benchmark_classifiers(systems, batch, seconds, compare=bool(libraries))


def _benchmark_text(
    runs: Sequence[str],
    files: tuple[Path | None, Path | None],
    batch: Sequence[int],
    seconds: float,
    libraries: Sequence[str],
    device: torch.device,
    tokenize: str | None,
) -> SpeedReport:
    from regard.cli.evaluate import choose_tokenisation
    from regard.evaluation.benchmark.harness import choose_batch_sizes, split_options
    from regard.evaluation.benchmark.translation import SENTENCES, Sentences, TranslationSystem, benchmark_translators
    from regard.interop.ctranslate2 import load_translator
    from regard.training.benchmark import validation_sentences

    src, ref = files
    if src is not None:
        sentences: Sentences | None = Sentences.read(src, ref)
    else:
        found = validation_sentences(split_options(runs[0])[0], SENTENCES)
        sentences = Sentences(found, None, f"{len(found):,} validation sentences of the run") if found else None
    if sentences is not None:  # reject a batch that is too large before models are loaded
        choose_batch_sizes(batch, len(sentences.sources), sentences.description)
    systems = [TranslationSystem.open(run, device, load_translator) for run in runs]
    for library in libraries:
        with prefix_errors(f"--library {library}"):
            systems.append(_open_in_library(library, runs[0], device))
    sentences = sentences or Sentences.random(systems[0].translator)
    sizes = choose_batch_sizes(batch, len(sentences.sources), sentences.description)
    tokenisation = "none"
    if src is not None and ref is not None:
        languages = [system.translator.languages[1] for system in systems]
        tokenisation = choose_tokenisation(tokenize, languages, src, ref)
    return benchmark_translators(systems, sentences, sizes, seconds, tokenisation, compare=bool(libraries))


def _open_in_library(library: str, run: str, device: torch.device) -> TranslationSystem:
    """Open the model of a run in another library, with the same search settings."""
    from regard.evaluation.benchmark.harness import split_options
    from regard.evaluation.benchmark.translation import TranslationSystem
    from regard.interop.ctranslate2 import load_translator
    from regard.interop.huggingface_translation import load_in_transformers

    path, values = split_options(run)
    if library == "ctranslate2":
        system = TranslationSystem.open(f"{run}{',' if values else ':'}engine=ctranslate2", device, load_translator)
        # Its beam search always stops early, which is less work than regard's default.
        early = "" if values.get("stop") == "first" or system.settings.resolved()["beam"] == 1 else ", stop=first"
        return replace(system, name=f"{run} in CTranslate2{early}")
    settings = ",".join(f"{key}={value}" for key, value in values.items() if key not in ("engine", "precision"))
    system = TranslationSystem.open(
        f"{path}:{settings}" if settings else str(path), device, lambda path, device: load_in_transformers(path, device)
    )
    return replace(system, name=f"{run} in transformers")


def _print_progress(text: str) -> None:
    typer.echo(f"{text} …", err=True)
