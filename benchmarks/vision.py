"""Train the image recipes and score them on their test sets.

    python benchmarks/vision.py --data DATA --out OUT [--only mnist cifar10] [--minutes 9.5] [--set cifar10:KEY=VALUE]

DATA contains the folders mnist (idx files) and cifar10-jpg (an archive, or train/ and test/). Recipes are trained at
the same time unless --sequential is given. A run that is not finished after --minutes is stopped, and its best model is
scored. Writes OUT/NAME (the run), OUT/NAME.log (its output) and OUT/vision-NAME.json, in which "log" is a list of
[step, seconds, loss, learning rate].
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median_high
from typing import Any

from harness import environment, save_result

from regard.evaluation.classification import evaluate, open_test_set
from regard.ops.dispatch import choose_device
from regard.pipelines.classifier import Classifier

CIFAR10 = ("cifar10", "cifar10-plain", "cifar10-cct", "cifar10-swin")
DATA = {"mnist": "mnist"} | dict.fromkeys(CIFAR10, "cifar10-jpg")
SAVE_SECONDS = 60  # time to save a checkpoint after SIGTERM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(DATA), default=list(DATA), metavar="RECIPE")
    parser.add_argument("--minutes", type=float, default=9.0, help="time for all training, without scoring")
    parser.add_argument("--sequential", action="store_true", help="train one recipe after another")
    parser.add_argument("--other-load", nargs="+", default=[], help="other programs on the machine, for the result")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="RECIPE:KEY=VALUE")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * arguments.minutes
    runs = [Run(name, arguments) for name in arguments.only]
    for run in runs:
        run.start()
        if arguments.sequential:
            run.wait(end)
    for run in runs:
        run.wait(end)
    for run in runs:
        run.score()
    if failed := [run.name for run in runs if run.exit_code not in (0, 130, 143)]:
        sys.exit(f"{', '.join(failed)}: training failed; see the log in {arguments.out}")


class Run:
    """Training of a recipe in a separate process."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.name, self.out, self.data = name, arguments.out / name, find_data(arguments.data / DATA[name])
        self.result_path, self.log_path = arguments.out / f"vision-{name}.json", arguments.out / f"{name}.log"
        others = [] if arguments.sequential else [other for other in arguments.only if other != name]
        self.parallel_with = [*others, *arguments.other_load]
        prefix = f"{name}:"
        changes = [change.removeprefix(prefix) for change in arguments.changes if change.startswith(prefix)]
        self.changes = [word for change in changes for word in ("--set", change)]
        self.exit_code: int | None = None

    def start(self) -> None:
        words = ["train", self.name, "--data", str(self.data), "--out", str(self.out), *self.changes]
        print(f"{self.name}: regard {shlex.join(words)}", flush=True)
        with self.log_path.open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "regard", *words], stdout=log, stderr=log)

    def wait(self, end: float) -> None:
        """Wait until the run is finished, and stop it at `end`."""
        if self.exit_code is not None:
            return
        try:
            self.exit_code = self.process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)  # background jobs ignore SIGINT
            try:
                self.exit_code = self.process.wait(SAVE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.exit_code = self.process.wait()
        print(f"{self.name}: exit code {self.exit_code}", flush=True)

    def score(self) -> None:
        """Score the best model on the test set, and write the result."""
        if not (self.out / "best").is_dir():
            print(f"{self.name}: there is no model; end of its log:\n{self.log_path.read_text()[-2000:]}", flush=True)
            return
        entries = [json.loads(line) for line in (self.out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
        device = choose_device("auto")
        classifier = Classifier.load(self.out, device=device)
        images = open_test_set(self.data, classifier, "test")
        report = evaluate(classifier, images, self.data.name)
        mirrored = evaluate(classifier, images, self.data.name, mirrored=True).scores
        speeds = [entry["images_per_second"] for entry in entries if "images_per_second" in entry]
        result: dict[str, Any] = {
            "what": f"recipe {self.name}, trained from scratch, on the test images of {self.data.name}",
            "test": {k: value for k, value in report.as_dict().items() if k not in ("calibration", "confusion")},
            "test_mirrored": {"accuracy": mirrored.accuracy, "interval": list(mirrored.interval)},
            "parameters": sum(p.numel() for p in classifier.model.parameters()),
            "finished": self.exit_code == 0,
            "steps": entries[-1]["step"],
            "training_seconds": entries[-1]["seconds"],
            "images_per_second": median_high(speeds) if speeds else None,
            "validation": [
                {"step": entry["step"], "seconds": entry["seconds"]} | entry["validation"]
                for entry in entries
                if "validation" in entry
            ],
            "log": shorten_log(entries),
            "parallel_with": self.parallel_with,
            **environment(device),
            "command": f"regard train {self.name} --data {self.data.name} --out runs/{self.name} "
            f"{shlex.join(self.changes)}".strip(),
        }
        save_result(result, self.result_path)
        stopped = "" if result["finished"] else f", stopped at step {result['steps']}"
        print(
            f"{self.name}: {next(report.lines())}; {result['parameters'] / 1e6:.2f} M parameters, "
            f"{result['training_seconds']:.0f} s, {result['images_per_second'] or 0:,.0f} images/s{stopped}; "
            f"with mirrored images {mirrored.accuracy:.2f} %",
            flush=True,
        )


def find_data(path: Path) -> Path:
    """Return the only archive in a folder, or else the folder."""
    archives = [file for file in sorted(path.iterdir()) if ".tar" in file.name] if path.is_dir() else []
    return archives[0] if len(archives) == 1 and not (path / "train").is_dir() else path


def shorten_log(entries: list[dict[str, Any]]) -> list[list[float]]:
    """Return step, seconds, loss and learning rate of each training entry."""
    return [
        [entry["step"], round(entry["seconds"], 1), round(entry["loss"], 4), float(f"{entry['lr']:.4g}")]
        for entry in entries
        if "loss" in entry
    ]


if __name__ == "__main__":
    main()
