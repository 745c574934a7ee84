"""Train the configurations of a table, choose on the validation data, and score the test data once.

    python benchmarks/translation.py TABLE DATA OUT NAME... [--seed 1 2 3] [--jobs 4 --limit 540 --mps] [--test]
    python benchmarks/translation.py multi30k ../data/multi30k/tok OUT r-drop-10 simcut --seed 1 2 3 --test
    python benchmarks/translation.py en-zh ../data OUT every --reverse --test     # all configurations, from Chinese

A table is a file configurations/TABLE.yaml: data sets in the folder DATA, and configurations as changes to a recipe.
Runs are processes side by side, in the given order, seed by seed. Each of them writes OUT/NAME-seedN.json when it is
finished: the validation BLEU with every exponent of the length penalty, and with --test BLEU and chrF on the test data
with the best one. Runs that are not finished within the limit are reported. The same command continues.

A configuration with teachers is a student: the teachers of both directions are trained first and translate the training
data, each its own language, and the students are trained on the original and all synthetic pairs.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import yaml
from harness import environment, save_result
from pydantic import Field
from side_by_side import Job, run_jobs

from regard.config import Settings
from regard.data.text.languages import tokenisation_for
from regard.data.text.readers import Pair, read_lines, read_pairs
from regard.decoding.config import SearchSettings
from regard.devices import choose_device
from regard.evaluation.metrics import Score, bleu, chrf
from regard.pipelines.translator import Translator
from regard.training.distillation import Corpus, Distillation, distill, format_pairs
from regard.training.loop import RunResult
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

FOLDER = Path(__file__).parent / "configurations"
ALPHAS = (0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
"""Exponents of the length penalty that validation chooses from; a higher one prefers longer translations."""
EVERY = "every"


class Teachers(Settings):
    """Models of both directions that translate the texts."""

    name: str
    seeds: tuple[int, ...]
    texts: tuple[str, ...] = ("train",)
    beam: int = 5
    weights: dict[str, float] = Field({})
    init: bool = Field(False, description="start each student from the forward teacher of its seed")


class Configuration(Settings):
    """Changes to the recipe; with `first`, a model is trained before with further changes, and `then` follows."""

    set: tuple[str, ...] = ()
    first: tuple[str, ...] | None = None
    then: tuple[str, ...] = ()
    teachers: Teachers | None = None
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
        table = cls.parse(yaml.safe_load(path.read_text("utf-8")), path.name)
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
    parser.add_argument("--limit", type=float, default=86_400, help="seconds for all runs")
    parser.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's multi-process service")
    parser.add_argument("--test", action="store_true", help="score the test data too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--teach", nargs="+", help=argparse.SUPPRESS)
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
    (name,), (seed,) = arguments.names, arguments.seed
    (train_backward_teacher if arguments.backward else run_configuration)(table, arguments, name, seed)


def plan(table: Table, arguments: argparse.Namespace) -> list[Job]:
    """Return the jobs of all configurations and seeds: teachers, runs without teachers, and students."""
    shared = [word for change in arguments.changes for word in ("--set", change)]
    shared += ["--test"] * arguments.test + ["--reverse"] * arguments.reverse
    runs = [(name, seed) for seed in arguments.seed for name in arguments.names]
    taught: dict[tuple[str, int, bool], list[str]] = {}  # the beam and the texts that each teacher translates
    for name in arguments.names:
        teachers = table.configurations[name].teachers
        for teacher in list_teachers(table, name):
            beam, *texts = taught.get(teacher, ["1"])
            assert teachers is not None
            texts += [text for text in teachers.texts if text not in texts]
            taught[teacher] = [str(max(int(beam), teachers.beam)), *texts]

    def job(name: str, seed: int, backward: bool = False) -> Job:
        words = [__file__, arguments.table, arguments.data, arguments.out, name, "--seed", seed, "--child", *shared]
        words += ["--backward"] * backward
        words += ["--teach", *taught[name, seed, backward]] if (name, seed, backward) in taught else []
        after = () if backward else tuple(run_name(*teacher) for teacher in list_teachers(table, name))
        return Job(run_name(name, seed, backward), tuple(map(str, words)), after)

    plain = [run for run in runs if not table.configurations[run[0]].teachers and (*run, False) not in taught]
    students = [job(*run) for run in runs if table.configurations[run[0]].teachers]
    return [*(job(*teacher) for teacher in taught), *(job(*run) for run in plain), *students]


def list_teachers(table: Table, name: str) -> list[tuple[str, int, bool]]:
    """Return the configuration, the seed and the direction of each teacher of a configuration."""
    teachers = table.configurations[name].teachers
    if teachers is None:
        return []
    return [(teachers.name, seed, backward) for seed in teachers.seeds for backward in (False, True)]


def run_name(name: str, seed: int, backward: bool = False) -> str:
    return f"{name}{'-backward' * backward}-seed{seed}"


# One run


def run_configuration(table: Table, arguments: argparse.Namespace, name: str, seed: int) -> None:
    """Train one configuration with one seed, choose the length penalty on the validation data, and write the result."""
    configuration, data = table.configurations[name], arguments.data
    out = arguments.out / run_name(name, seed)
    changes = [*table.all, *configuration.set]
    corpora = list_corpora(table, arguments.out, name, data)
    if configuration.first is not None:
        train(table, data, name, out / "first", seed, [*changes, *configuration.first, *arguments.changes], corpora)
        changes += [f"init.from={out / 'first'}", *configuration.then]
    if configuration.teachers is not None and configuration.teachers.init:
        changes += [f"init.from={arguments.out / run_name(configuration.teachers.name, seed) / 'run'}"]
    outcome = train(table, data, name, out / "run", seed, [*changes, *arguments.changes], corpora)
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    scored = {each: score(table, translator, data, each, arguments.test, out) for each in table.sets_of(name)}
    result = {
        "what": f"{table.title}, {' to '.join(table.languages)}, {name}, beam 5, length penalty chosen on valid",
        "configuration": configuration.model_dump(mode="json", exclude_unset=True)
        | {"all": table.all, "further": arguments.changes},
        **(next(iter(scored.values())) if len(table.sets) == 1 else {"sets": scored}),
        **describe(outcome, seed, device),
    }
    save_result(result, arguments.out / f"{run_name(name, seed)}.json")
    teach(table, translator, arguments, out, backward=False)


def score(table: Table, translator: Translator, data: Path, name: str, test: bool, out: Path) -> dict[str, Any]:
    """Return the BLEU on a validation set for every length penalty, and the test scores with the best one."""
    tokenize = table.tokenize or tokenisation_for(table.languages[1])
    valid = table.pairs(data, name, 1)
    scores = {alpha: translate(translator, valid, alpha, tokenize)[1] for alpha in ALPHAS}
    alpha = max(scores, key=lambda each: scores[each].value)
    result = {"val": {str(each): round(found.value, 3) for each, found in scores.items()}, "alpha": alpha}
    if not test:
        return result
    pairs = table.pairs(data, name, 2)
    translations, found = translate(translator, pairs, alpha, tokenize)
    (out / f"{name}.{table.languages[1]}").write_text("".join(f"{line}\n" for line in translations), "utf-8")
    return result | {
        "score": found.as_dict(),
        "chrf": chrf(translations, [pair.target for pair in pairs]).as_dict(),
    }


def train_backward_teacher(table: Table, arguments: argparse.Namespace, name: str, seed: int) -> None:
    """Train one configuration in the opposite direction, and translate the texts for its students."""
    backward = table.changed(languages=table.languages[::-1])
    out = arguments.out / run_name(name, seed, True)
    changes = [*table.all, *table.configurations[name].set, *arguments.changes]
    corpora = list_corpora(backward, arguments.out, name, arguments.data)
    train(backward, arguments.data, name, out / "run", seed, changes, corpora)
    teach(table, Translator.load(out / "run" / "best", device=choose_device("auto")), arguments, out, backward=True)


def teach(table: Table, translator: Translator, arguments: argparse.Namespace, out: Path, backward: bool) -> None:
    """Write the translations of the chosen texts with the chosen beam as OUT/TEXT.tsv."""
    beam, *texts = arguments.teach or ("1",)
    for text in texts:
        files = list_texts(table, arguments.data, text, backward)
        lines = chain.from_iterable(map(read_lines, files))
        corpus = Corpus(lambda lines=lines: (Pair(line, "") for line in lines), has_references=False)
        path, settings = out / f"{text}.tsv", Distillation(search=SearchSettings(beam=int(beam)))
        with path.open("w", encoding="utf-8") as file:
            write = lambda pairs, file=file, path=path: file.writelines(format_pairs([path], pairs))  # noqa: E731
            distill(translator, corpus, settings, write)


def list_texts(table: Table, data: Path, text: str, backward: bool) -> Iterator[Path]:
    """The files of the training data, or of a monolingual text, in the language that a teacher translates."""
    if text in table.monolingual:
        yield find_compressed(data / f"{table.monolingual[text]}.{table.languages[backward]}")
    else:
        yield from (table.files(data, name, 0)[backward] for name in table.sets)


def list_corpora(table: Table, out: Path, name: str, data: Path) -> list[dict[str, Any]]:
    """Return the training corpora of a configuration: the original pairs and those of its teachers."""
    teachers = table.configurations[name].teachers
    weights = {} if teachers is None else teachers.weights
    corpora: list[dict[str, Any]] = []
    for each in table.sets_of(name):
        source, target = table.files(data, each, 0)
        corpora.append({"source": str(source), "target": str(target), "weight": weights.get("original", 1)})
    for teacher in list_teachers(table, name):
        for text in teachers.texts if teachers else ():
            path, columns = out / run_name(*teacher) / f"{text}.tsv", [1, 0] if teacher[2] else [0, 1]
            corpora.append({"source": str(path), "columns": columns, "weight": weights.get(text, 1)})
    return corpora


def train(
    table: Table,
    data: Path,
    name: str,
    out: Path,
    seed: int,
    changes: Sequence[str],
    corpora: Sequence[dict[str, Any]],
) -> RunResult:
    """Train the recipe with some changes, and validate on the validation data of all sets of the configuration."""
    valid = [pair for each in table.sets_of(name) for pair in table.pairs(data, each, 1)]
    overrides: dict[str, Any] = {"data.source": None, "data.target": None, "data.corpora": list(corpora)}
    for side, language in enumerate(table.languages):
        path = out.with_name(f"{out.name}-valid.{language}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{pair[side]}\n" for pair in valid), "utf-8")
        overrides[("data.valid_source", "data.valid_target")[side]] = str(path)
    overrides |= {"data.languages": list(table.languages), "training.seed": seed}
    overrides |= {"training.valid_sentences": len(valid)}
    return run_recipe(load_recipe(Path(table.recipe), changes, overrides), out)


def translate(translator: Translator, pairs: Sequence[Pair], alpha: float, tokenize: str) -> tuple[list[str], Score]:
    """Translate the sources with beam 5; return the translations and their BLEU."""
    settings = SearchSettings(beam=5, alpha=alpha)
    found = translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    translations = [hypotheses[0].text.replace("\n", " ") for hypotheses in found]
    return translations, bleu(translations, [pair.target for pair in pairs], tokenize)


def describe(outcome: RunResult, seed: int, device: torch.device) -> dict[str, Any]:
    return {
        "validation": outcome.scores,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        "phases": {name: round(seconds, 1) for name, seconds in outcome.phases.items()},
        "seed": seed,
        **environment(device),
    }


if __name__ == "__main__":
    main()
