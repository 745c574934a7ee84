"""Trains the recipes of images, several at once where asked, and scores each on its test set, which it has never seen.

    python benchmarks/vision.py --data DATA --out OUT [--only mnist cifar10] [--minutes 9.5] [--set cifar10:KEY=VALUE]

    python benchmarks/vision.py --data DATA --out OUT --only cifar10 --fill cifar10 --minutes 9

    python benchmarks/vision.py --data DATA --out OUT --profile cifar10 [--set cifar10:batch.images=512]

DATA holds the folders mnist (idx files) and cifar10-jpg (an archive, or train/ and test/). A run that is not done
within the minutes is asked to stop, and the best model until then is scored, which the result says. With --fill a short
run comes first, and the run has as many steps as its speed leaves time for in the minutes. Writes OUT/NAME
(the run), OUT/NAME.log (all it said) and OUT/vision-NAME.json: accuracy, time, speed, command, machine, versions, and
how it was learned, as "log", a list of [step, seconds, loss, learning rate].
With --profile it only takes a few steps of one recipe apart, into OUT/vision-profile-NAME.json.
"""

import argparse
import datetime
import json
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from vision_profile import profile_recipe

from regard.evaluation.classification import evaluate, open_test_set
from regard.pipelines.classifier import Classifier
from regard.runtime import choose_device
from regard.training.progress import Progress
from regard.training.tasks.classification.data import prepare_data
from regard.training.tasks.classification.recipe import ClassificationRecipe

SETS = {"mnist": "mnist", "cifar10": "cifar10-jpg", "cifar10-plain": "cifar10-jpg", "cifar10-swin": "cifar10-jpg"}
GRACE = 60  # seconds that a run gets to save itself
TRIED = 1500  # steps of a short run that tells the speed
SPARE = 0.97  # of the time that is left, which a run is planned for


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(SETS), default=list(SETS), metavar="RECIPE")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all training together; scoring comes after")
    parser.add_argument("--fill", nargs="+", choices=list(SETS), default=[], metavar="RECIPE", help="by its speed")
    parser.add_argument("--one-by-one", action="store_true", help="not all at once")
    parser.add_argument("--beside", nargs="+", default=[], help="what else runs on the machine, for the results to say")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="RECIPE:KEY=VALUE")
    parser.add_argument("--profile", choices=list(SETS), metavar="RECIPE", help="what its steps spend their time on")
    parser.add_argument("--device", default="auto", help="of --profile")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.profile is not None:
        take_apart(arguments.profile, arguments)
        return
    end = time.monotonic() + 60 * arguments.minutes
    runs = [Run(name, arguments) for name in arguments.only]
    for run in runs:
        if run.name in arguments.fill:
            run.fill(end)
        run.start()
        if arguments.one_by_one:
            run.wait(end)
    for run in runs:
        run.wait(end)
    for run in runs:
        run.score()
    if any(run.code not in (0, 130, 143) for run in runs):
        sys.exit("a run has failed; its log says why")


class Run:
    """A recipe, in a process of its own."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.out, self.data = name, arguments.out / name, find_data(arguments.data / SETS[name])
        self.results, self.log = arguments.out / f"vision-{name}.json", arguments.out / f"{name}.log"
        others = [] if arguments.one_by_one else [other for other in arguments.only if other != name]
        self.beside = [*others, *arguments.beside]
        self.changes = changes_of(name, arguments)
        self.shared: list[str] = []  # changes that make no difference to what is learned
        self.code: int | None = None

    @property
    def words(self) -> list[str]:
        return ["train", self.name, "--data", str(self.data), "--out", str(self.out), *_set(self.changes + self.shared)]

    @property
    def told(self) -> list[str]:
        data = ["--data", self.data.name, "--out", f"runs/{self.name}"]
        return ["regard", "train", self.name, *data, *_set(self.changes)]

    def fill(self, end: float) -> None:
        """Gives the run as many steps as there is time for until the end, by a short one with the same images.

        They are decoded before it, so that what it takes beside its steps is what the run will take.
        """
        short = self.out.with_name(f"{self.name}-short")
        self.shared = [f"data.store={self.out.with_name(f'{self.name}-store')}"]
        recipe = ClassificationRecipe.load(Path(self.name), self.changes + self.shared, {"data.images": str(self.data)})
        with tempfile.TemporaryDirectory() as folder:
            prepare_data(Path(folder), recipe, Progress(1))
        begin = time.monotonic()
        how = [f"training.steps={TRIED}", f"training.log_every={TRIED // 10}", *self.shared]
        words = ["train", self.name, "--data", str(self.data), "--out", str(short), *_set(self.changes + how)]
        subprocess.run([sys.executable, "-m", "regard", *words], check=True, stdout=subprocess.DEVNULL)
        now = time.monotonic()
        # At its beginning it warms up, and at its end it may change images less.
        speeds = [entry["images_per_second"] for entry in read_log(short) if "images_per_second" in entry][2:-3]
        step = recipe.batch.images / statistics.median(speeds)
        steps = int(SPARE * (end - now - (now - begin - TRIED * step)) / step)
        if steps < TRIED:
            sys.exit(f"{self.name}: a step takes {1000 * step:.1f} ms, so the minutes are over before it could begin")
        print(f"{self.name}: {1000 * step:.2f} ms a step, so {steps:,} of them", flush=True)
        self.changes = [*self.changes, f"training.steps={steps}"]

    def start(self) -> None:
        print(f"{self.name}: regard {' '.join(self.words)}", flush=True)
        self.file = self.log.open("a", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regard", *self.words], stdout=self.file, stderr=self.file
        )

    def wait(self, end: float) -> None:
        if self.code is not None:
            return
        try:
            self.code = self.process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)  # SIGINT is ignored below a background job
            try:
                self.code = self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.code = self.process.wait()
        self.file.close()
        print(f"{self.name}: ended with {self.code}", flush=True)

    def score(self) -> None:
        entries = read_log(self.out)
        if not (self.out / "best").is_dir():
            print(f"{self.name}: no model yet; the last words of its log:\n{self.log.read_text()[-2000:]}", flush=True)
            return
        device = choose_device("auto")
        classifier = Classifier.load(self.out, device=device)
        images = open_test_set(self.data, classifier, "test")
        report = evaluate(classifier, images, self.data.name)
        both = evaluate(classifier, images, self.data.name, mirrored=True).scores
        speeds = [entry["images_per_second"] for entry in entries if "images_per_second" in entry]
        checks = [{"step": e["step"], "seconds": e["seconds"]} | e["validation"] for e in entries if "validation" in e]
        found = {key: value for key, value in report.as_dict().items() if key not in ("calibration", "confusion")}
        result: dict[str, Any] = {
            "what": f"recipe {self.name}, trained from scratch, on the test images of {self.data.name}",
            "test": found,
            "test_seen_both_ways_round": {"accuracy": both.accuracy, "interval": list(both.interval)},
            "parameters": sum(p.numel() for p in classifier.model.parameters()),
            "finished": self.code == 0,
            "steps": entries[-1]["step"],
            "training_seconds": entries[-1]["seconds"],
            "images_per_second": sorted(speeds)[len(speeds) // 2] if speeds else None,
            "validation": checks,
            "log": shorten_log(entries),
            "beside": self.beside,
            "command": shlex.join(self.told),
        } | describe_machine(device)
        self.results.write_text(write_result(result), encoding="utf-8")
        done = "" if self.code == 0 else f", stopped at step {result['steps']}"
        print(
            f"{self.name}: {next(report.lines())}; {result['parameters'] / 1e6:.2f} M parameters, "
            f"{result['training_seconds']:.0f} s, {result['images_per_second'] or 0:,.0f} images/s{done}; "
            f"seen both ways round {both.accuracy:.2f} %",
            flush=True,
        )


def take_apart(name: str, arguments: argparse.Namespace) -> None:
    device = choose_device(arguments.device)
    changes = changes_of(name, arguments)
    result = profile_recipe(name, find_data(arguments.data / SETS[name]), changes, device)
    result |= {"changes": changes} | describe_machine(device)
    text = json.dumps(result, indent=1)
    (arguments.out / f"vision-profile-{name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)


def _set(changes: list[str]) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def changes_of(name: str, arguments: argparse.Namespace) -> list[str]:
    return [change.removeprefix(f"{name}:") for change in arguments.changes if change.startswith(f"{name}:")]


def describe_machine(device: torch.device) -> dict[str, Any]:
    return {
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def find_data(path: Path) -> Path:
    """The folder, or the only archive in it."""
    archives = [file for file in sorted(path.iterdir()) if ".tar" in file.name] if path.is_dir() else []
    return archives[0] if len(archives) == 1 and not (path / "train").is_dir() else path


def read_log(run: Path) -> list[dict[str, Any]]:
    path = run / "log.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def shorten_log(entries: list[dict[str, Any]]) -> list[list[float]]:
    """Step, seconds, loss and learning rate of each entry on training; one on validation has no loss of its own."""
    return [
        [entry["step"], round(entry["seconds"], 1), round(entry["loss"], 4), float(f"{entry['lr']:.4g}")]
        for entry in entries
        if "loss" in entry
    ]


def write_result(result: dict[str, Any]) -> str:
    """JSON with a line for each key, and for each list of numbers, however many it has."""
    text = json.dumps(result, indent=2, ensure_ascii=False)
    flat = re.sub(r"\[\s*\n([^][{}\"]+)\n\s*\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    return f"{flat}\n"


if __name__ == "__main__":
    main()
