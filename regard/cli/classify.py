"""`regard classify`: classifies images."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from regard.cli.options import Device, Images, Run, check_file_name
from regard.errors import UserError
from regard.files import read_raw_lines, replace_text_file

if TYPE_CHECKING:
    from regard.pipelines.classifier import FileResult, Ranking, Vector


def classify(
    run: Run,
    images: Images = None,
    top: Annotated[int, typer.Option(min=1, help="number of classes per image")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="write one JSON object per line")] = False,
    out: Annotated[Path | None, typer.Option(help="output file, .csv or .jsonl; replaced if it exists")] = None,
    device: Device = "auto",
) -> None:
    """Classify images, with probabilities. Unreadable images are reported and skipped."""
    from regard.ops.dispatch import choose_device
    from regard.pipelines.classifier import Classifier, find_images

    write = _choose_format(out, as_json)
    arguments = image_arguments(images)
    classifier = Classifier.load(run, device=choose_device(device))
    counter = FileCounter()
    results = counter.readable(classifier.map_files(find_images(arguments), classifier.predict))
    rankings = ((path, classifier.rank(probabilities[None], top)[0]) for path, probabilities in results)
    with nullcontext(sys.stdout) if out is None else replace_text_file(out) as file:
        write(file, rankings, min(top, len(classifier.classes)))
    counter.check()


class FileCounter:
    """Prints an error for every unreadable image, and counts them."""

    def __init__(self) -> None:
        self.total = self.unreadable = 0

    def readable(self, results: Iterable[FileResult]) -> Iterator[tuple[Path, Vector]]:
        """Yield the results of the readable images."""
        for result in results:
            self.total += 1
            if isinstance(result, UserError):
                self.unreadable += 1
                typer.echo(f"regard: {result}", err=True)
            else:
                yield result

    def check(self) -> None:
        """Raise an error at the end, so that scripts notice an incomplete result."""
        if not self.total:
            raise UserError("no images were given; name files or folders")
        check_readable(self.unreadable, self.total)


def check_readable(unreadable: int, total: int) -> None:
    """Raise an error if some of the images were unreadable."""
    if unreadable:
        raise UserError(f"{unreadable} of {total} images could not be read and were skipped")


def image_arguments(images: Sequence[str] | None) -> list[str]:
    """Return the command-line arguments, or the lines of standard input if there are none."""
    if images:
        return list(images)
    lines = read_raw_lines(sys.stdin.buffer, "standard input")
    return [os.fsdecode(line).rstrip("\r\n") for line in lines if line.strip()]


Writer = Callable[[TextIO, "Iterable[tuple[Path, Ranking]]", int], None]


def _write_text(file: TextIO, rankings: Iterable[tuple[Path, Ranking]], top: int) -> None:
    for path, ranking in rankings:
        print(path, "  ".join(f"{label} {100 * p:.1f}%" for label, p in ranking), sep="  ", file=file, flush=True)


def _write_json(file: TextIO, rankings: Iterable[tuple[Path, Ranking]], top: int) -> None:
    for path, ranking in rankings:
        classes = [{"label": label, "probability": round(p, 6)} for label, p in ranking]
        print(json.dumps({"image": str(path), "classes": classes}, ensure_ascii=False), file=file, flush=True)


def _write_csv(file: TextIO, rankings: Iterable[tuple[Path, Ranking]], top: int) -> None:
    table = csv.writer(file, lineterminator="\n")
    header = [f"{name}{n}" for n in range(1, top + 1) for name in ("label", "probability")]
    table.writerow(["image", *header])
    for path, ranking in rankings:
        cells: list[Any] = [cell for label, p in ranking for cell in (label, f"{p:.6f}")]
        table.writerow([path, *cells])


def _choose_format(out: Path | None, as_json: bool) -> Writer:
    if out is None:
        return _write_json if as_json else _write_text
    formats: dict[str, Writer] = {".csv": _write_csv, ".jsonl": _write_json}
    suffix = out.suffix.lower()
    if suffix not in formats:
        raise UserError(f"{out}: the name must end in .csv or .jsonl")
    if as_json and suffix == ".csv":
        raise UserError(f"{out}: --json and .csv contradict each other; choose a name that ends in .jsonl")
    check_file_name(out, "--out")
    return formats[suffix]
