"""`regard classify`, and what `regard embed` and `regard evaluate` do with a model of images."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from regard.cli.options import Device, Run

if TYPE_CHECKING:
    from regard.errors import UserError
    from regard.pipelines.classifier import Classifier, Ranked
    from regard.pipelines.image_files import Row, Work

Images = Annotated[
    list[str] | None,
    typer.Argument(metavar="IMAGE...", help="files, folders or patterns; by default paths from standard input"),
]


def classify(
    run: Run,
    images: Images = None,
    top: Annotated[int, typer.Option(min=1, help="how many classes to name for each image")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="a line of JSON for each image")] = False,
    out: Annotated[
        Path | None, typer.Option(help="write a table there, .csv, or lines of JSON, .jsonl; replaced if it exists")
    ] = None,
    device: Device = "auto",
) -> None:
    """Say what is on images, with probabilities; one that cannot be read is named, and the others go on."""
    from regard.pipelines.classifier import Classifier
    from regard.pipelines.image_files import find_images
    from regard.runtime import choose_device

    write = _choose_form(out, as_json)
    words = _image_words(images)
    classifier = Classifier.load(run, device=choose_device(device))
    with _opened(out) as file:
        tally = _Tally(classifier, classifier.predict)
        write(file, _ranked(classifier, tally.look(find_images(words)), top), min(top, len(classifier.classes)))
    tally.finish()


def embed_images(run: Path, images: Sequence[str] | None, out: Path, device: str) -> None:
    """Writes the features of images."""
    import numpy as np

    from regard.pipelines.classifier import Classifier
    from regard.pipelines.embedding_files import check_embedding_file, save_arrays
    from regard.pipelines.image_files import find_images
    from regard.runtime import choose_device

    check_embedding_file(out, "mean")
    words = _image_words(images)
    classifier = Classifier.load(run, device=choose_device(device))
    tally = _Tally(classifier, classifier.features)
    seen = list(tally.look(find_images(words)))
    rows = np.stack([row for _, row in seen]) if seen else classifier.embed([])
    save_arrays({"embeddings": rows}, out)
    names = out.with_suffix(".txt")
    names.write_text("".join(f"{path}\n" for path, _ in seen), encoding="utf-8", errors="surrogateescape")
    typer.echo(f"{out}: embeddings {' × '.join(map(str, rows.shape))}; their images are listed in {names}")
    tally.finish()


def evaluate_images(
    run: Path,
    data: Path,
    split: str | None,
    mirrored: bool,
    pictures: Path | None,
    save: bool,
    as_json: bool,
    device: str,
) -> None:
    """Scores a classifier on images whose classes are known.

    Raises:
        UserError: there is nothing to score, or, once all is said and kept, some images could not be read.
    """
    from regard import evaluation
    from regard.evaluation.classification_report import evaluate, open_test_set
    from regard.models.folder import find_model_folder
    from regard.pipelines.classifier import Classifier
    from regard.pipelines.progress import LineProgress
    from regard.runtime import choose_device

    folder = find_model_folder(run)
    if save:
        evaluation.check_scores_writable(folder)
    classifier = Classifier.load(folder, device=choose_device(device))
    images = open_test_set(data, classifier, split)
    with LineProgress(len(images), noun="images") as progress:
        report = evaluate(classifier, images, str(data), progress.advance, mirrored)
    for sentence in report.bad:
        typer.echo(f"regard: {sentence}", err=True)
    typer.echo(json.dumps(report.as_dict(), indent=2, ensure_ascii=False) if as_json else "\n".join(report.lines()))
    if pictures is not None:
        from regard.evaluation.classification_plots import save_pictures

        drawn = save_pictures(report.scores, pictures)
        if not as_json:
            typer.echo("drawn: " + ", ".join(map(str, drawn)))
    if save:
        evaluation.record(report, folder)
    _refuse_bad(len(report.bad), len(images))


class _Tally:
    """Names bad images as they come, and counts them."""

    def __init__(self, classifier: Classifier, work: Work) -> None:
        self.classifier, self.work, self.all, self.bad = classifier, work, 0, 0

    def look(self, found: Iterator[Path | UserError]) -> Iterator[tuple[Path, Row]]:
        """What was made of the images that can be read."""
        from regard.errors import UserError
        from regard.pipelines.image_files import look_at

        for one in look_at(found, self.classifier.preprocessing, self.work):
            self.all += 1
            if isinstance(one, UserError):
                self.bad += 1
                typer.echo(f"regard: {one}", err=True)
            else:
                yield one

    def finish(self) -> None:
        """Ends with the code of a refusal where an image was bad.

        Raises:
            UserError: some were.
        """
        from regard.errors import UserError

        if not self.all:
            raise UserError("not a single image was given; name files or folders")
        _refuse_bad(self.bad, self.all)


def _refuse_bad(bad: int, number: int) -> None:
    """Ends with the code of a refusal where images were bad, so that a script does not take a part for the whole.

    Raises:
        UserError: some were.
    """
    from regard.errors import UserError

    if bad:
        raise UserError(f"{bad} of {number} could not be read and were left out")


def _ranked(classifier: Classifier, seen: Iterator[tuple[Path, Row]], top: int) -> Iterator[tuple[Path, Ranked]]:
    return ((path, classifier.rank(row[None], top)[0]) for path, row in seen)


Writer = Callable[[TextIO, "Iterator[tuple[Path, Ranked]]", int], None]


def _write_text(file: TextIO, answers: Iterator[tuple[Path, Ranked]], top: int) -> None:
    for path, ranked in answers:
        print(path, "  ".join(f"{label} {100 * p:.1f}%" for label, p in ranked), sep="  ", file=file, flush=True)


def _write_json(file: TextIO, answers: Iterator[tuple[Path, Ranked]], top: int) -> None:
    for path, ranked in answers:
        classes = [{"label": label, "probability": round(p, 6)} for label, p in ranked]
        print(json.dumps({"image": str(path), "classes": classes}, ensure_ascii=False), file=file, flush=True)


def _write_csv(file: TextIO, answers: Iterator[tuple[Path, Ranked]], top: int) -> None:
    table = csv.writer(file, lineterminator="\n")
    heads = [f"{name}{n}" for n in range(1, top + 1) for name in ("label", "probability")]
    table.writerow(["image", *heads])
    for path, ranked in answers:
        cells: list[Any] = [cell for label, p in ranked for cell in (label, f"{p:.6f}")]
        table.writerow([path, *cells])


def _choose_form(out: Path | None, as_json: bool) -> Writer:
    """How answers are written, by the options that were given.

    Raises:
        UserError: the file's name says no such form, or it cannot be there.
    """
    from regard.errors import UserError

    if out is None:
        return _write_json if as_json else _write_text
    forms: dict[str, Writer] = {".csv": _write_csv, ".jsonl": _write_json}
    if out.suffix.lower() not in forms:
        raise UserError(f"{out}: the name must end in .csv or .jsonl")
    if as_json and out.suffix.lower() == ".csv":
        raise UserError(f"{out}: --json and .csv contradict each other; choose a name that ends in .jsonl")
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"{out}: no file can be written there; --out needs a file name in an existing folder")
    return forms[out.suffix.lower()]


@contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that takes its name once it is whole.

    Raises:
        UserError: it cannot be written.
    """
    from regard.errors import UserError

    if out is None:
        yield sys.stdout
        return
    fresh = out.with_name(f".{out.name}.part")
    try:
        with fresh.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            yield file
        fresh.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    finally:
        fresh.unlink(missing_ok=True)


def _image_words(images: Sequence[str] | None) -> list[str]:
    """What was given as arguments, or else the lines of standard input."""
    if images:
        return list(images)
    return [line.rstrip("\n") for line in sys.stdin if line.strip()]
