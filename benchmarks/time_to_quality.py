"""Seconds from raw data to a trained model of a given quality, with default settings for speed.

    python benchmarks/time_to_quality.py DATA OUT [--only multi30k cifar10 demo] [--seed 1 2 3]

DATA contains multi30k/tok and cifar10-jpg; the demo has its own data. For each task and seed, `regard train`
is timed from its start to its end: imports, reading and tokenising the raw data, training, validation and saving. Then
the model is scored on the test set. Writes benchmarks/results/time-to-quality-NAME.json, and fails if the mean score is
too low.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from harness import environment, save_result
from translation import translate
from vision import find_data

from regard.data.builtin.corpus import load_examples
from regard.data.text.readers import read_pairs
from regard.evaluation.classification import evaluate, open_test_set
from regard.evaluation.metrics import bleu
from regard.ops.dispatch import choose_device
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator


@dataclass(frozen=True)
class Target:
    """A task, and the score that counts as trained.

    Attributes:
        what: The score and its data.
        bound: Minimum mean score over the seeds.
        recipe: Name of the built-in recipe.
        settings: Changes to the recipe, for short training.
        score: Scores a run, given the data.
        files: Options of `regard train` and files in the data.
    """

    what: str
    bound: float
    recipe: str
    settings: tuple[str, ...]
    score: Callable[[Path, Path, torch.device], float]
    files: dict[str, str] = field(default_factory=dict)

    def words(self, data: Path, out: Path, seed: int, changes: list[str]) -> list[str]:
        """Return the arguments of `regard`."""
        files = [word for option, name in self.files.items() for word in (option, str(find_data(data / name)))]
        settings = [*self.settings, *changes, f"training.seed={seed}"]
        return ["train", self.recipe, *files, "--out", str(out), *(w for s in settings for w in ("--set", s))]


def score_multi30k(run: Path, data: Path, device: torch.device) -> float:
    """BLEU on test_2016_flickr, tokenised and lowercased, beam 5, length-normalised."""
    text = data / "multi30k/tok"
    pairs = list(read_pairs(text / "test_2016_flickr.en.gz", text / "test_2016_flickr.de.gz"))
    return translate(Translator.load(run / "best", device=device), pairs, 1.0, "none")[1].value


def score_cifar10(run: Path, data: Path, device: torch.device) -> float:
    """Accuracy on the test images in percent."""
    classifier = Classifier.load(run, device=device)
    images = find_data(data / "cifar10-jpg")
    return evaluate(classifier, open_test_set(images, classifier, "test"), images.name).scores.accuracy


def score_demo(run: Path, data: Path, device: torch.device) -> float:
    """BLEU of greedy translations of the built-in corpus's test sentences."""
    examples = load_examples("test")
    translations = Translator.load(run, device=device)([e.pair.source for e in examples], beam=1, split=False)
    return bleu(translations, [example.pair.target for example in examples], "zh").value


TEXT = {"--src": "train.en.gz", "--tgt": "train.de.gz", "--valid-src": "val.en.gz", "--valid-tgt": "val.de.gz"}
TARGETS = {
    "multi30k": Target(
        "BLEU on Multi30k en-de, test_2016_flickr, tokenised and lowercased, beam 5",
        41.0,
        "multi30k-en-de",
        ("training.steps=6000", "training.validate_every=6000"),
        score_multi30k,
        {option: f"multi30k/tok/{name}" for option, name in TEXT.items()},
    ),
    "cifar10": Target("% accuracy on CIFAR-10 (JPEG)", 93.0, "cifar10", (), score_cifar10, {"--data": "cifar10-jpg"}),
    "demo": Target("BLEU of the demo, built-in corpus", 97.0, "demo", (), score_demo),
}


def measure(target: Target, data: Path, out: Path, seed: int, changes: list[str]) -> dict[str, Any]:
    """Train with one seed, and return seconds and score."""
    shutil.rmtree(out, ignore_errors=True)
    words = target.words(data, out, seed, changes)
    print(f"regard {shlex.join(words)}", flush=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "regard", *words], check=True)
    seconds = time.perf_counter() - started
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    phases = next(entry["phases"] for entry in entries if "phases" in entry)
    score = target.score(out, data, choose_device("auto"))
    print(f"{seconds:.1f} s, {score:.2f} {target.what}; {phases}", flush=True)
    return {"seed": seed, "seconds": round(seconds, 1), "score": round(score, 2), "phases": phases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path, help="folder for runs")
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="NAME:KEY=VALUE")
    parser.add_argument("--results", type=Path, help="folder for the results; default: benchmarks/results")
    arguments = parser.parse_args()
    missed = []
    for name in arguments.only:
        target = TARGETS[name]
        changes = [change.partition(":")[2] for change in arguments.changes if change.startswith(f"{name}:")]
        runs = [
            measure(target, arguments.data, arguments.out / f"{name}-seed{seed}", seed, changes)
            for seed in arguments.seed
        ]
        score = mean(run["score"] for run in runs)
        result = {
            "what": target.what,
            "bound": target.bound,
            "score": round(score, 2),
            "seconds": round(mean(run["seconds"] for run in runs), 1),
            "recipe": target.recipe,
            "settings": [*target.settings, *changes],
            "runs": runs,
            **environment(choose_device("auto")),
        }
        file = f"time-to-quality-{name}"
        save_result(result, file if arguments.results is None else arguments.results / f"{file}.json")
        missed += [f"{score:.2f} {target.what}, expected {target.bound}"] if score < target.bound else []
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
