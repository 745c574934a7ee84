"""Train the configurations of a table, choose on the validation data, and score the test data once.

    python benchmarks/translation.py TABLE DATA OUT NAME... [--seed 1 2 3] [--jobs 4 --limit 540 --mps] [--test]
    python benchmarks/translation.py multi30k ../data/multi30k/tok OUT r-drop-10 simcut --seed 1 2 3 --test
    python benchmarks/translation.py en-zh ../data OUT every --reverse --test     # all configurations, from Chinese

A table is a file configurations/TABLE.yaml: data sets in the folder DATA, and configurations as changes to a recipe.
Runs are processes side by side, in the given order, seed by seed. Each of them writes OUT/NAME-seedN.json when it is
finished: the BLEU on the validation data, and with --test BLEU and chrF on the test data, with beam 5 and the default
length penalty; non-autoregressive models are scored with every search that they support. At the limit, training stops,
and the best model so far is scored in OUT/NAME-seedN.stopped.json. The same command continues; it skips the runs that
have a result.

A configuration with teachers is a student: its teachers are trained first and translate texts of their languages, alone
or as an ensemble, and the student is trained on the original and all synthetic pairs.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import yaml
from harness import environment, save_result
from pydantic import Field
from side_by_side import Job, run_jobs

from regard.config import Settings
from regard.console import Interrupted
from regard.data.text.languages import tokenisation_for
from regard.data.text.readers import Pair, read_lines, read_pairs
from regard.decoding.settings import DecodingSettings, NATSettings, SearchSettings
from regard.evaluation.metrics import Score, bleu, chrf
from regard.models.nat import NATransformerConfig
from regard.ops.dispatch import choose_device
from regard.pipelines.translator import Translator
from regard.training.distillation import Corpus, Distillation, distill, format_pairs
from regard.training.loop import RunResult
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

FOLDER = Path(__file__).parent / "configurations"
BEAM = 5
EVERY = "every"
TRAIN = "train"
"""The text of the training data; the other texts are those of `Table.monolingual`."""


class Teachers(Settings):
    """Models of a configuration that translate texts, each of its own language."""

    name: str
    seeds: tuple[int, ...]
    directions: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    ensemble: bool = Field(False, description="the models of a direction translate together")
    texts: tuple[str, ...] = (TRAIN,)
    beam: int = 5


class Configuration(Settings):
    """Changes to the recipe; with `first`, a model is trained before with further changes, and `then` follows."""

    like: str | None = Field(None, description="configuration whose changes precede those of `set`")
    set: tuple[str, ...] = ()
    first: tuple[str, ...] | None = None
    then: tuple[str, ...] = ()
    teachers: tuple[Teachers, ...] = ()
    weights: dict[str, float] = Field({}, description="of the corpora: original, or the name of a text; 0: not used")
    init: str | None = Field(None, description="start from the model of this configuration with the same seed")
    encoder: str | None = Field(None, description="start from the encoder of this configuration with seed 1")
    sets: tuple[str, ...] | None = Field(None, description="data sets to train and test on; all by default")


class Table(Settings):
    """Data sets, by the folder of each, and configurations."""

    title: str
    recipe: str
    languages: tuple[str, str]
    sets: dict[str, str]
    splits: tuple[str, str, str] = ("train", "valid", "test")
    monolingual: dict[str, str] = Field({})
    tokenize: str | None = None
    all: tuple[str, ...] = ()
    configurations: dict[str, Configuration]

    @classmethod
    def load(cls, name: str, reverse: bool = False) -> "Table":
        path = FOLDER / f"{name}.yaml"
        values = yaml.safe_load(path.read_text("utf-8"))
        for configuration in values["configurations"].values():  # in the order of the file
            if like := configuration.get("like"):
                configuration["set"] = [*values["configurations"][like]["set"], *configuration.get("set", ())]
        table = cls.parse(values, path.name)
        return table.changed(languages=table.languages[::-1]) if reverse else table

    def files(self, data: Path, name: str, split: int) -> tuple[Path, Path]:
        """The files of a split of a data set, source and target."""
        stems = (data / self.sets[name] / f"{self.splits[split]}.{language}" for language in self.languages)
        source, target = (find_compressed(stem) for stem in stems)
        return source, target

    def pairs(self, data: Path, name: str, split: int) -> list[Pair]:
        return list(read_pairs(*self.files(data, name, split)))

    def sets_of(self, name: str) -> Sequence[str]:
        return self.configurations[name].sets or tuple(self.sets)


def find_compressed(stem: Path) -> Path:
    """Return the path of a compressed text, with the suffix that it has."""
    return next((path for path in (stem.with_name(f"{stem.name}.{x}") for x in ("xz", "gz")) if path.exists()), stem)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=sorted(path.stem for path in FOLDER.glob("*.yaml")))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"configurations, or {EVERY}")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--reverse", action="store_true", help="translate in the opposite direction")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--limit", type=float, default=86_400, help="seconds after which training stops")
    parser.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's multi-process service")
    parser.add_argument("--test", action="store_true", help="score the test data too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--translate", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    table = Table.load(arguments.table, arguments.reverse)
    if arguments.names == [EVERY]:
        arguments.names = [name for name in table.configurations if not name.startswith("rehearsal")]
    for name in arguments.names:
        if name not in table.configurations:
            parser.error(
                f"{arguments.table}.yaml has no configuration {name}; it has {', '.join(table.configurations)}"
            )
    if not arguments.child:
        jobs = plan(table, arguments)
        sys.exit(run_jobs(jobs, arguments.out, arguments.jobs, arguments.limit, arguments.mps))
    (name,) = arguments.names
    if arguments.translate:
        translate_text(
            table, arguments, Teaching(name, tuple(arguments.seed), arguments.backward, *arguments.translate)
        )
    else:
        train_configuration(table, arguments, Run(name, arguments.seed[0], arguments.backward))


@dataclass(frozen=True)
class Run:
    """The training of a configuration; `backward` in the opposite direction, as a teacher."""

    name: str
    seed: int
    backward: bool = False

    def __str__(self) -> str:
        return f"{self.name}{'-backward' * self.backward}-seed{self.seed}"


@dataclass(frozen=True)
class Teaching:
    """A text that the models of a configuration translate, as an ensemble if there are several."""

    name: str
    seeds: tuple[int, ...]
    backward: bool
    text: str
    beam: str

    @property
    def runs(self) -> list[Run]:
        return [Run(self.name, seed, self.backward) for seed in self.seeds]

    def __str__(self) -> str:
        models = "-ensemble" if len(self.seeds) > 1 else f"-seed{self.seeds[0]}"
        return f"{self.name}{'-backward' * self.backward}{models}-{self.text}-beam{self.beam}"


def list_teaching(table: Table, name: str) -> list[Teaching]:
    """Return the texts that the teachers of a configuration translate."""
    return [
        Teaching(teachers.name, seeds, direction == "backward", text, str(teachers.beam))
        for teachers in table.configurations[name].teachers
        for seeds in ([teachers.seeds] if teachers.ensemble else [(seed,) for seed in teachers.seeds])
        for direction in teachers.directions
        for text in teachers.texts
    ]


def plan(table: Table, arguments: argparse.Namespace) -> list[Job]:
    """Return the jobs of all configurations and seeds, without those that are finished; teachers before students."""
    shared = [word for change in arguments.changes for word in ("--set", change)]
    shared += ["--test"] * arguments.test + ["--reverse"] * arguments.reverse
    jobs: dict[str, Job] = {}

    def add(item: Run | Teaching) -> str:
        """Add a job and those that it waits for, unless it is finished; return its name."""
        key = str(item)
        if key in jobs or (arguments.out / f"{key}{'.tsv' if isinstance(item, Teaching) else '.json'}").exists():
            return key
        if isinstance(item, Teaching):
            before, seeds = item.runs, item.seeds
            own = ["--translate", item.text, item.beam]
        else:
            configuration = table.configurations[item.name]
            before = [] if item.backward else list_teaching(table, item.name)
            before += [Run(configuration.init, item.seed)] if configuration.init else []
            before += [Run(configuration.encoder, 1)] if configuration.encoder else []
            seeds, own = (item.seed,), []
        after = tuple(add(each) for each in before)
        words = [__file__, arguments.table, arguments.data, arguments.out, item.name, "--seed", *seeds, "--child"]
        words += [*own, *["--backward"] * item.backward, *shared]
        jobs[key] = Job(key, tuple(map(str, words)), tuple(name for name in after if name in jobs))
        return key

    runs = [Run(name, seed) for seed in arguments.seed for name in arguments.names]
    for run in sorted(runs, key=lambda run: bool(list_teaching(table, run.name))):
        add(run)
    return list(jobs.values())


# One job


def train_configuration(table: Table, arguments: argparse.Namespace, run: Run) -> None:
    """Train one configuration with one seed, score it, and write the result."""
    configuration, data, out = table.configurations[run.name], arguments.data, arguments.out / str(run)
    if run.backward:
        table = table.changed(languages=table.languages[::-1])
    changes = [*table.all, *configuration.set]
    corpora = list_corpora(table, arguments.out, run, data)
    if configuration.first is not None:
        first = [*changes, *configuration.first, *arguments.changes]
        train(table, data, run, out / "first", first, corpora)
        changes += [f"init.from={out / 'first'}", *configuration.then]
    if configuration.init is not None:
        changes += [f"init.from={arguments.out / str(Run(configuration.init, run.seed)) / 'run'}"]
    if configuration.encoder is not None:
        changes += [f"init.from={arguments.out / str(Run(configuration.encoder, 1)) / 'run'}", "init.parts=encoder"]
    device, stopped = choose_device("auto"), False
    try:
        outcome = describe(train(table, data, run, out / "run", [*changes, *arguments.changes], corpora))
    except Interrupted:
        stopped = (out / "run" / "best").exists()
        if not stopped:
            raise
        outcome = {}
    translator = Translator.load(out / "run" / "best", device=device)
    sets = table.sets_of(run.name)
    scored = {each: score(table, translator, data, each, arguments.test and not run.backward, out) for each in sets}
    result = {
        "what": f"{table.title}, {' to '.join(table.languages)}, {run.name}, default length penalty",
        "configuration": configuration.model_dump(mode="json", exclude_unset=True)
        | {"all": table.all, "further": arguments.changes},
        **(next(iter(scored.values())) if len(table.sets) == 1 else {"sets": scored}),
        **outcome,
        "seed": run.seed,
        **environment(device),
    }
    save_result(result, arguments.out / (f"{run}.stopped.json" if stopped else f"{run}.json"))
    if stopped:
        sys.exit("stopped before the last step; the best model so far was scored")


def score(table: Table, translator: Translator, data: Path, name: str, test: bool, out: Path) -> dict[str, Any]:
    """Return the search with the highest BLEU on a validation set, with its scores, and the scores of all searches."""
    tokenize = table.tokenize or tokenisation_for(table.languages[1])
    searches, found = list_searches(translator), dict[str, dict[str, Any]]()
    for search, settings in searches.items():
        _, valid = translate(translator, table.pairs(data, name, 1), settings, tokenize)
        found[search] = {"val": round(valid.value, 3)}
        if test:
            pairs = table.pairs(data, name, 2)
            translations, tested = translate(translator, pairs, settings, tokenize)
            stem = name if len(searches) == 1 else f"{name}-{search.replace(' ', '-')}"
            (out / f"{stem}.{table.languages[1]}").write_text("".join(f"{line}\n" for line in translations), "utf-8")
            references = [pair.target for pair in pairs]
            found[search] |= {"score": tested.as_dict(), "chrf": chrf(translations, references).as_dict()}
    best = max(found, key=lambda search: found[search]["val"])
    return {"search": best, **found[best]} | ({"searches": found} if len(found) > 1 else {})


def list_searches(translator: Translator) -> dict[str, SearchSettings | NATSettings]:
    """Return the searches that the model is scored with, by name."""
    config = translator.model.config
    if not isinstance(config, NATransformerConfig):
        return {f"beam {BEAM}": SearchSettings(beam=BEAM)}
    if config.length != "dag":
        return {"one pass": NATSettings(iterations=1)}
    paths: tuple[Literal["greedy", "lookahead", "viterbi"], ...] = ("greedy", "lookahead", "viterbi")
    return {path: NATSettings(path=path) for path in paths} | {f"beam {BEAM}": NATSettings(beam=BEAM)}


def translate_text(table: Table, arguments: argparse.Namespace, teaching: Teaching) -> None:
    """Write the translations of a text as OUT/NAME.tsv, with the translated language first."""
    folders = [arguments.out / str(run) / "run" / "best" for run in teaching.runs]
    translator = Translator.load(*folders, device=choose_device("auto"))
    lines = chain.from_iterable(map(read_lines, list_texts(table, arguments.data, teaching.text, teaching.backward)))
    corpus = Corpus(lambda: (Pair(line, "") for line in lines), has_references=False)
    path = arguments.out / f"{teaching}.tsv"
    unfinished = path.with_name(f"{path.name}.part")
    with unfinished.open("w", encoding="utf-8") as file:
        settings = Distillation(search=SearchSettings(beam=int(teaching.beam)))
        distill(translator, corpus, settings, lambda pairs: file.writelines(format_pairs([path], pairs)))
    unfinished.replace(path)


def list_texts(table: Table, data: Path, text: str, backward: bool) -> Iterator[Path]:
    """The files of the training data, or of a monolingual text, in the language that a teacher translates."""
    if text in table.monolingual:
        yield find_compressed(data / f"{table.monolingual[text]}.{table.languages[backward]}")
    else:
        yield from (table.files(data, name, 0)[backward] for name in table.sets)


def list_corpora(table: Table, out: Path, run: Run, data: Path) -> list[dict[str, Any]]:
    """Return the training corpora of a run: the original pairs and those of its teachers."""
    weights = table.configurations[run.name].weights
    corpora: list[dict[str, Any]] = []
    for each in table.sets_of(run.name) if weights.get("original", 1) else ():
        source, target = table.files(data, each, 0)
        corpora.append({"source": str(source), "target": str(target), "weight": weights.get("original", 1)})
    for teaching in () if run.backward else list_teaching(table, run.name):
        path, columns = out / f"{teaching}.tsv", [1, 0] if teaching.backward else [0, 1]
        corpora.append({"source": str(path), "columns": columns, "weight": weights.get(teaching.text, 1)})
    return corpora


def train(
    table: Table,
    data: Path,
    run: Run,
    out: Path,
    changes: Sequence[str],
    corpora: Sequence[dict[str, Any]],
) -> RunResult:
    """Train the recipe with some changes, and validate on the validation data of all sets of the configuration."""
    valid = [pair for each in table.sets_of(run.name) for pair in table.pairs(data, each, 1)]
    overrides: dict[str, Any] = {"data.source": None, "data.target": None, "data.corpora": list(corpora)}
    for side, language in enumerate(table.languages):
        path = out.with_name(f"{out.name}-valid.{language}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{pair[side]}\n" for pair in valid), "utf-8")
        overrides[("data.valid_source", "data.valid_target")[side]] = str(path)
    overrides |= {"data.languages": list(table.languages), "training.seed": run.seed}
    overrides |= {"training.valid_sentences": len(valid)}
    return run_recipe(load_recipe(Path(table.recipe), changes, overrides), out)


def translate(
    translator: Translator, pairs: Sequence[Pair], settings: DecodingSettings, tokenize: str
) -> tuple[list[str], Score]:
    """Translate the sources; return the translations and their BLEU."""
    found = translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    translations = [hypotheses[0].text.replace("\n", " ") for hypotheses in found]
    return translations, bleu(translations, [pair.target for pair in pairs], tokenize)


def describe(outcome: RunResult) -> dict[str, Any]:
    return {
        "validation": outcome.scores,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        "phases": {name: round(seconds, 1) for name, seconds in outcome.phases.items()},
    }


if __name__ == "__main__":
    main()
