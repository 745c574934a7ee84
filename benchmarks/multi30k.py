"""Train configurations of Multi30k, and score them by the published protocol: tokenised, lowercased BLEU, beam 5.

    python benchmarks/multi30k.py DATA OUT [--seed 1]                                    # the recipe multi30k-en-de
    python benchmarks/multi30k.py DATA OUT simcut r-drop-10 --seed 1 2 3 --jobs 4 --limit 540 --mps [--test]

DATA contains the tokenised train, val and test_2016_flickr as .en.gz and .de.gz, for configurations with captions also
their folder `captions`. The configurations are in multi30k.yaml. Runs are processes side by side on one GPU, in the
given order, seed by seed. Each of them writes OUT/NAME-seedN.json when it is finished: the validation BLEU with every
exponent of the length penalty, and with --test the BLEU on test_2016_flickr with the best one. Runs that are not
finished within the limit are reported.

A configuration with teachers is a student: the teachers of both directions are trained first and translate the training
data, each its own language, and the students are trained on the original and all synthetic pairs.

Without configurations, OUT/multi30k-captured-seedN.json or, with --set training.cuda_graph=false,
OUT/multi30k-en-de-seedN.json has the score on test_2016_flickr without a choice on the validation data.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from harness import environment, save_result
from side_by_side import Job, run_stages

from regard.data.text.readers import Pair, read_lines, read_pairs
from regard.decoding.config import SearchSettings
from regard.evaluation.metrics import Score, bleu
from regard.pipelines.translator import Translator
from regard.runtime import choose_device
from regard.training.distillation import Corpus, Distillation, distill, format_pairs
from regard.training.loop import RunResult
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

CONFIGURATIONS = yaml.safe_load((Path(__file__).parent / "multi30k.yaml").read_text("utf-8"))
ALPHAS = (0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
"""Exponents of the length penalty that validation chooses from; a higher one prefers longer translations."""
LANGUAGES = ("en", "de")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *CONFIGURATIONS], metavar="NAME")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--limit", type=float, default=86_400, help="seconds for all runs")
    parser.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's multi-process service")
    parser.add_argument("--test", action="store_true", help="score test_2016_flickr too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--backward", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--teach", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.names:
        run_plain_recipe(arguments.data, arguments.out, arguments.seed[0], arguments.changes)
    elif not arguments.child:
        stages = plan(arguments)
        sys.exit(run_stages(stages, arguments.out, arguments.jobs, arguments.limit, arguments.mps))
    elif arguments.backward:
        run_backward_teacher(arguments)
    else:
        run_configuration(arguments)


def plan(arguments: argparse.Namespace) -> list[list[Job]]:
    """Return the jobs of all configurations and seeds: first the teachers, then the others."""
    shared = [word for change in arguments.changes for word in ("--set", change)] + ["--test"] * arguments.test
    runs = [(name, seed) for seed in arguments.seed for name in arguments.names]
    taught: dict[tuple[str, int, bool], list[str]] = {}  # the beam and the texts that each teacher translates
    for name in arguments.names:
        for teacher in list_teachers(name):
            beam, *texts = taught.get(teacher, ["1"])
            wanted = CONFIGURATIONS[name]["teachers"]
            texts += [text for text in wanted["texts"] if text not in texts]
            taught[teacher] = [str(max(int(beam), wanted["beam"])), *texts]

    def job(name: str, seed: int, backward: bool = False) -> Job:
        taught_texts = taught.get((name, seed, backward), [])
        words = [__file__, arguments.data, arguments.out, name, "--seed", seed, "--child", *shared]
        words += ["--backward"] * backward + ["--teach", *taught_texts] * bool(taught_texts)
        return Job(run_name(name, seed, backward), tuple(map(str, words)))

    plain = [(name, seed) for name, seed in runs if not list_teachers(name) and (name, seed, False) not in taught]
    students = [job(name, seed) for name, seed in runs if list_teachers(name)]
    return [[job(*teacher) for teacher in taught] + [job(name, seed) for name, seed in plain], students]


def list_teachers(name: str) -> list[tuple[str, int, bool]]:
    """Return the configuration, the seed and the direction of each teacher of a configuration."""
    teachers = CONFIGURATIONS[name].get("teachers")
    if teachers is None:
        return []
    return [(teachers["name"], seed, backward) for seed in teachers["seeds"] for backward in (False, True)]


def run_name(name: str, seed: int, backward: bool) -> str:
    return f"{name}{'-backward' * backward}-seed{seed}"


def run_configuration(arguments: argparse.Namespace) -> None:
    """Train one configuration with one seed, choose the length penalty on the validation data, and write the result."""
    (name,), (seed,), data = arguments.names, arguments.seed, arguments.data
    out = arguments.out / f"{name}-seed{seed}"
    changes = [*CONFIGURATIONS["all"], *CONFIGURATIONS[name].get("set", [])]
    if "first" in CONFIGURATIONS[name]:
        train(data, out / "first", seed, [*changes, *CONFIGURATIONS[name]["first"], *arguments.changes])
        changes += [f"init.from={out / 'first'}", *CONFIGURATIONS[name]["then"]]
    teachers = CONFIGURATIONS[name].get("teachers", {})
    if teachers.get("init"):
        changes += [f"init.from={arguments.out / run_name(teachers['name'], seed, False) / 'run'}"]
    corpora = list_corpora(arguments.out, name, data)
    outcome = train(data, out / "run", seed, [*changes, *arguments.changes], corpora=corpora)
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    valid = list(read_pairs(data / "val.en.gz", data / "val.de.gz"))
    scores = {alpha: translate(translator, valid, alpha)[1] for alpha in ALPHAS}
    alpha = max(scores, key=lambda each: scores[each].value)
    result = {
        "what": f"Multi30k en-de, {name}, tokenised and lowercased, beam 5, length penalty chosen on val",
        "configuration": CONFIGURATIONS[name] | {"all": CONFIGURATIONS["all"], "further": arguments.changes},
        "val": {str(each): round(score.value, 3) for each, score in scores.items()},
        "alpha": alpha,
        **describe(outcome, seed, device),
    }
    if arguments.test:
        pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
        translations, score = translate(translator, pairs, alpha)
        result["score"] = score.as_dict()
        (arguments.out / f"{name}-seed{seed}.de").write_text("".join(f"{line}\n" for line in translations), "utf-8")
    save_result(result, arguments.out / f"{name}-seed{seed}.json")
    teach(translator, arguments, out, backward=False)


def run_backward_teacher(arguments: argparse.Namespace) -> None:
    """Train one configuration from German to English, and translate the texts for its students."""
    (name,), (seed,) = arguments.names, arguments.seed
    out = arguments.out / run_name(name, seed, True)
    changes = [*CONFIGURATIONS["all"], *CONFIGURATIONS[name].get("set", []), *arguments.changes]
    train(arguments.data, out / "run", seed, changes, languages=LANGUAGES[::-1])
    teach(Translator.load(out / "run" / "best", device=choose_device("auto")), arguments, out, backward=True)


def teach(translator: Translator, arguments: argparse.Namespace, out: Path, backward: bool) -> None:
    """Write the translations of the chosen texts with the chosen beam as OUT/TEXT.tsv."""
    beam, *texts = arguments.teach or ("1",)
    for text in texts:
        path, source = out / f"{text}.tsv", text_file(arguments.data, text, LANGUAGES[backward])
        corpus = Corpus(lambda source=source: (Pair(line, "") for line in read_lines(source)), has_references=False)
        with path.open("w", encoding="utf-8") as file:
            distill(
                translator,
                corpus,
                Distillation(search=SearchSettings(beam=int(beam))),
                lambda pairs, file=file, path=path: file.writelines(format_pairs([path], pairs)),
            )


def text_file(data: Path, text: str, language: str) -> Path:
    return data / (f"captions/train.{language}.xz" if text == "captions" else f"{text}.{language}.gz")


def list_corpora(out: Path, name: str, data: Path) -> list[dict[str, Any]]:
    """Return the corpora of a student, the original pairs and those of the teachers; none for other configurations."""
    teachers = CONFIGURATIONS[name].get("teachers", {})
    corpora = [
        {
            "source": str(out / run_name(*teacher) / f"{text}.tsv"),
            "columns": [1, 0] if teacher[2] else [0, 1],
            "weight": teachers.get("weights", {}).get(text, 1),
        }
        for teacher in list_teachers(name)
        for text in teachers["texts"]
    ]
    original = {"source": str(data / "train.en.gz"), "target": str(data / "train.de.gz")}
    return [original | {"weight": teachers.get("weights", {}).get("original", 1)}, *corpora] if corpora else []


def run_plain_recipe(data: Path, out: Path, seed: int, changes: Sequence[str]) -> None:
    """Train the recipe and write its score on test_2016_flickr."""
    outcome = train(data, out / "run", seed, changes)
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    translations, score = translate(translator, pairs, 1.0)
    (out / "test.de").write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    print(score)
    result = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased, beam 5, length-normalised score",
        "score": score.as_dict(),
        **describe(outcome, seed, device),
    }
    shown = (f"--set {change}" for change in changes)
    result["command"] = " ".join((f"python benchmarks/multi30k.py DATA OUT --seed {seed}", *shown))
    name = "en-de" if "training.cuda_graph=false" in changes else "captured"
    save_result(result, out / f"multi30k-{name}-seed{seed}.json")


def train(
    data: Path,
    out: Path,
    seed: int,
    changes: Sequence[str],
    *,
    languages: Sequence[str] = LANGUAGES,
    corpora: Sequence[dict[str, Any]] = (),
) -> RunResult:
    """Train the recipe with some changes, from and to the languages, on the training data or on other corpora."""
    files: dict[str, Any] = {}
    for side, language in zip(("source", "target"), languages, strict=True):
        files[side] = None if corpora else str(data / f"train.{language}.gz")
        files[f"valid_{side}"] = str(data / f"val.{language}.gz")
    files |= {"corpora": list(corpora), "languages": list(languages)} if corpora else {}
    overrides = {f"data.{key}": value for key, value in files.items()} | {"training.seed": seed}
    return run_recipe(load_recipe(Path("multi30k-en-de"), changes, overrides), out)


def translate(translator: Translator, pairs: Sequence[Pair], alpha: float) -> tuple[list[str], Score]:
    """Translate the sources with beam 5; return the translations and their tokenised BLEU."""
    settings = SearchSettings(beam=5, alpha=alpha)
    found = translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    translations = [hypotheses[0].text for hypotheses in found]
    return translations, bleu(translations, [pair.target for pair in pairs], "none")


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
