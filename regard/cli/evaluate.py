"""`regard evaluate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.classify import evaluate_images
from regard.cli.options import SAMPLING, Device, Search, with_search

if TYPE_CHECKING:
    from regard.evaluation import Report, System


@with_search(*SAMPLING)
def evaluate(
    run: Annotated[Path, typer.Argument(help="a model folder, a run that holds one, or a file of translations")],
    search: Search,
    src: Annotated[
        Path | None, typer.Option(help="source sentences, one a line, or a .tsv or .jsonl with the references")
    ] = None,
    ref: Annotated[Path | None, typer.Option(help="reference translations, one a line")] = None,
    data: Annotated[
        Path | None, typer.Option(help="for a model of images: a folder of class folders; of its splits, the test set")
    ] = None,
    split: Annotated[str | None, typer.Option(help="with --data: train, valid or test")] = None,
    mirrored: Annotated[
        bool, typer.Option("--mirrored", help="with --data: each image is seen both ways round, and the mean counts")
    ] = False,
    pictures: Annotated[
        Path | None, typer.Option(help="with --data: a folder for confusion.png and reliability.png")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="compare with a model, a file of translations, or the scores in a scores.json")
    ] = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="test the difference by paired bootstrap resampling")
    ] = False,
    tokenize: Annotated[
        str | None,
        typer.Option(help="sacreBLEU tokeniser, by default the language's; 'none' for text that is tokenised"),
    ] = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="ignore case")] = False,
    ter: Annotated[bool, typer.Option("--ter", help="measure the translation edit rate too")] = False,
    out: Annotated[Path | None, typer.Option(help="write the translations there")] = None,
    save: Annotated[bool, typer.Option(help="keep the scores in scores.json of the model folder")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="answer in JSON, with every setting")] = False,
    device: Device = "auto",
) -> None:
    """Score a model on a test set: translations with sacreBLEU, signature included; or the classes of images."""
    from regard.errors import UserError

    if (src is None) == (data is None):
        raise UserError("evaluate needs either --src, sentences for a translator, or --data, images for a classifier")
    if src is None:
        assert data is not None
        evaluate_images(run, data, split, mirrored, pictures, save, as_json, device)
        return
    contest = _Contest(run, against, paired, search, (src, ref), device)
    contest.check(out)
    contest.open(lambda languages: choose_tokenisation(tokenize, languages, src, ref), lowercase, ter, save)
    systems = contest.translate(out)
    contest.report(systems, save, as_json)


class _Contest:
    """A system on a test set, alone or against another. Whatever can be refused is, before hours of translating."""

    def __init__(
        self,
        run: Path,
        against: Path | None,
        paired: bool,
        search: Search,
        files: tuple[Path, Path | None],
        device: str,
    ) -> None:
        self.run, self.against, self.paired, self.search = run, against, paired, search
        self.files, self.device = files, device
        self.stored: list[Report] | None = None

    def check(self, out: Path | None) -> None:
        """What can be refused before anything is opened."""
        from regard import evaluation
        from regard.errors import UserError

        self.settings = self.search.settings(self.run)
        if out is not None and (out.is_dir() or not out.parent.is_dir()):
            raise UserError(f"{out}: no file can be written there; --out needs a file name in an existing folder")
        read = [path for path in (*self.files, self.run, self.against) if path is not None and path.exists()]
        if out is not None and any(out.exists() and out.samefile(path) for path in read):
            raise UserError(f"{out}: --out would replace what is read; choose another name")
        if self.against is not None and self.against.suffix == ".json":
            self.stored = evaluation.read_reports(self.against)
        if self.paired and self.rival is None:
            raise UserError(
                "--paired needs a second system's translations: give a model or a file of them in --against"
            )

    @property
    def rival(self) -> Path | None:
        """The other system, where it is here to translate too."""
        return None if self.stored is not None else self.against

    def open(self, tokenisation: Callable[[Sequence[str | None]], str], lowercase: bool, ter: bool, save: bool) -> None:
        """Opens the test set and the systems, and checks that they can be compared and kept."""
        from regard import evaluation
        from regard.data.text.readers import read_parallel
        from regard.runtime import choose_device

        self.sources, self.references = zip(*read_parallel(*self.files), strict=True)
        paths = [path for path in (self.run, self.rival) if path is not None]
        self.entrants = [evaluation.Entrant.open(path, choose_device(self.device)) for path in paths]
        self.chosen = [self.settings, *(self.search.settings(path) for path in paths[1:])]
        languages = [entrant.language for entrant in self.entrants]
        self.metrics = evaluation.Metrics(tokenisation=tokenisation(languages), lowercase=lowercase, ter=ter)
        for entrant, its in zip(self.entrants, self.chosen, strict=True):
            entrant.fit(its)
            entrant.check_length(len(self.sources))
            if save and entrant.folder is not None:
                evaluation.check_scores_writable(entrant.folder)
        if self.stored is not None:  # conditions do not depend on translations, so the references can stand in for them
            stand_in = evaluation.System(self.references, self.entrants[0].fit(self.settings))
            evaluation.compare_with_stored(self._score(stand_in), self.stored)

    def translate(self, out: Path | None) -> list[System]:
        """The systems with their translations, of which those of the first are kept where they are wanted."""
        from regard.errors import UserError
        from regard.training.checkpoint import replace_text

        pairs = zip(self.entrants, self.chosen, strict=True)
        systems = [entrant.translate(self.sources, its) for entrant, its in pairs]
        if out is not None:
            try:
                replace_text(out, "".join(f"{line}\n" for line in systems[0].translations))
            except OSError as error:
                raise UserError(f"{out}: cannot be written ({error.strerror})") from None
        return systems

    def report(self, systems: list[System], save: bool, as_json: bool) -> None:
        """Scores the translations, compares them, and says so."""
        reports = [self._score(system) for system in systems]
        answer: dict[str, list[Any]] = {"evaluations": reports}
        self._tell(systems, reports, save, as_json)
        answer |= self._compare(systems, reports, as_json)
        if as_json:
            lists = {key: [value.as_dict() for value in values] for key, values in answer.items()}
            typer.echo(json.dumps(lists, indent=2, ensure_ascii=False))
        elif self.against is not None:
            compared = [str(value) for key in ("differences", "significance") for value in answer.get(key, [])]
            typer.echo(f"{self.run} against {self.against}:")
            typer.echo("\n".join(compared))

    def _score(self, system: System) -> Report:
        from regard import evaluation

        return evaluation.evaluate(system, self.sources, self.references, self.metrics)

    def _tell(self, systems: list[System], reports: list[Report], save: bool, as_json: bool) -> None:
        from regard import evaluation

        for entrant, system, report in zip(self.entrants, systems, reports, strict=True):
            if not as_json:
                typer.echo(f"{entrant.path}: {report.facts()}" if self.against else report.facts())
                typer.echo("\n".join(str(score) for score in report.results()))
            doubt = evaluation.tokenisation_warning(system.translations, self.references)
            if doubt is not None:
                typer.echo(f"regard: {entrant.path}: {doubt}", err=True)
            if save:
                entrant.keep(report)

    def _compare(self, systems: list[System], reports: list[Report], as_json: bool) -> dict[str, list[Any]]:
        """The differences to the other system, if there is one; an older report of its own joins the others."""
        from regard import evaluation

        if self.against is None:
            return {}
        if self.stored is not None:
            nearest, differences = evaluation.compare_with_stored(reports[0], self.stored)
            reports.append(nearest)
            if not as_json:
                typer.echo(f"{self.against}: {nearest.facts()}, {nearest.date}")
            return {"differences": differences}
        answer: dict[str, list[Any]] = {"differences": evaluation.compare(reports[0], reports[1])}
        if self.paired:
            answer["significance"] = evaluation.paired_bootstrap(systems[0], systems[1], self.references, self.metrics)
        return answer


def choose_tokenisation(
    given: str | None, languages: Sequence[str | None], source: Path, reference: Path | None
) -> str:
    """The tokeniser asked for, or that of the target language, as the models or else the files' names tell it."""
    from regard.errors import UserError
    from regard.evaluation import check_tokenisation, tokenisation_for
    from regard.training.tasks.translation.recipe import DataSettings

    guess = DataSettings(source=source, target=reference).language_pair()[1]
    chosen = given or tokenisation_for(next((language for language in languages if language), guess))
    try:
        check_tokenisation(chosen)
    except UserError as error:
        raise UserError(f"--tokenize: {error}") from None
    return chosen
