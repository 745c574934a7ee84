"""What training on a GPU reaches without settings for speed: one command for all measurements, one part after another.

    python benchmarks/defaults.py DATA OUT [--only training steps] [--limit 480] [--device cpu --tiny]

DATA contains multi30k/tok and tatoeba-en-de. The parts, in this order:

training   `regard train` of Transformer-base on tatoeba-en-de: tokens per second, and the time to the first steps
steps      captured and eager steps of every objective and task (captured_steps.py)
kills      processes that are killed between captured steps and resumed (tools/kill_captured.py)
multi30k   the recipe multi30k-en-de: seconds by phase, and BLEU (multi30k.py)

Each part is a process with a limit of its own; those that the total limit leaves no time for are not started. Results
are in OUT as JSON files, and the output of all parts in OUT/log.txt.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from harness import environment, save_result

from regard.ops.dispatch import choose_device

HERE = Path(__file__).parent
LIMITS = {"training": 75, "steps": 210, "kills": 110, "multi30k": 85}
"""Seconds of each part."""
BASE = {
    "model.preset": "base",
    "tokenizer.size": 32_000,
    "batch.tokens": 25_000,
    "optim.lr": 5e-4,
    "training.steps": 700,
    "training.validate_every": 700,
    "training.valid_sentences": 500,
}
WARM_UP_STEPS = 100
"""Steps that do not count for the speed."""
TINY = {
    "model.preset": "tiny",
    "model.width": 32,
    "model.hidden": 64,
    "batch.tokens": 512,
    "training.steps": 150,
    "training.validate_every": 150,
    "training.valid_sentences": 8,
    "tokenizer.size": 1000,
}


class Parts:
    """The parts, each of which runs a process and writes its results."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.data, self.out, self.tiny = arguments.data, arguments.out, arguments.tiny
        self.device, self.work = choose_device(arguments.device), work
        self.end = time.monotonic() + arguments.limit
        self.suffix = "gpu" if self.device.type == "cuda" else "cpu"

    def run(self, name: str) -> None:
        """Run a part within its limit."""
        parts: dict[str, Callable[[float], None]] = {
            "training": self.training,
            "steps": self.steps,
            "kills": self.kills,
            "multi30k": self.multi30k,
        }
        limit = min(LIMITS[name], self.end - time.monotonic()) if not self.tiny else 3600
        if limit < LIMITS[name] / 3:
            print(f"== {name}: not started, {max(0, limit):.0f} s are left", flush=True)
            return
        print(f"== {name}, at most {limit:.0f} s", flush=True)
        started = time.monotonic()
        try:
            parts[name](limit)
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        print(f"== {name}: {time.monotonic() - started:.1f} s", flush=True)

    def call(self, words: Sequence[object], limit: float, **variables: str) -> float:
        """Run Python, copy its output to the log, and return the seconds that it took."""
        started = time.monotonic()
        command = [sys.executable, *map(str, words)]
        paths = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        environ = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"} | variables
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True, start_new_session=True
        )
        with (self.out / "log.txt").open("a") as log:
            print("\n$ python", *command[1:], file=log)
            reader = threading.Thread(target=self._copy, args=(process, log))
            reader.start()
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with all its children
                print(f"stopped after {limit:.0f} s", flush=True)
            process.wait()
            reader.join(10)
        if process.returncode > 0:
            print(f"exit code {process.returncode}", flush=True)
        return time.monotonic() - started

    @staticmethod
    def _copy(process: "subprocess.Popen[str]", log: TextIO) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            print("   ", line, end="", flush=True)

    def training(self, limit: float) -> None:
        """Train Transformer-base with default settings; record its speed, and when its first steps ended."""
        text, run = self.data / "tatoeba-en-de", self.work / "base"
        files = {"--src": "train.en", "--tgt": "train.de", "--valid-src": "valid.en", "--valid-tgt": "valid.de"}
        words = [word for option, name in files.items() for word in (option, text / f"{name}.gz")]
        settings = [f"{key}={value}" for key, value in (BASE | (TINY if self.tiny else {})).items()]
        settings.append(f"training.device={self.device}")
        sets = [word for setting in settings for word in ("--set", setting)]
        seconds = self.call(["-m", "regard", "train", *words, "--out", run, *sets], limit)
        entries = read_log(run)
        steps = [entry for entry in entries if "loss" in entry]
        speeds = [entry["tokens_per_second"] for entry in steps if entry["step"] > WARM_UP_STEPS]
        result = {
            "what": "regard train of Transformer-base on tatoeba-en-de with default settings",
            "settings": settings,
            "tokens_per_second": round(median(speeds)),
            "fastest": round(max(speeds)),
            "slowest": round(min(speeds)),
            "seconds_until_step": {str(entry["step"]): entry["seconds"] for entry in steps if entry["step"] <= 20},
            "phases": next((entry["phases"] for entry in entries if "phases" in entry), None),
            "command_seconds": round(seconds, 1),
            "peak_mb": max(entry["memory"] for entry in steps),
            "events": [entry["event"] for entry in entries if "event" in entry],
            **environment(self.device),
        }
        self.save(result, f"training-defaults-{self.suffix}")

    def steps(self, limit: float) -> None:
        tiny = ["--tiny", "--timed", 10] if self.tiny else []
        out = self.out / f"captured-steps-{self.suffix}.json"
        within = ["--limit", max(1, limit - 25), "--device", self.device]
        self.call([HERE / "captured_steps.py", self.data, "--out", out, *within, *tiny], limit)

    def kills(self, limit: float) -> None:
        kills = ["--kills", 2, "--jobs", 2] if self.tiny else []
        out = self.out / f"kills-{self.suffix}.json"
        words = ["-m", "tools.kill_captured", "--device", self.device.type, "--out", out, *kills]
        self.call(words, limit, OMP_NUM_THREADS="1")

    def multi30k(self, limit: float) -> None:
        out = self.work / "multi30k"
        changes = ["--set", "training.steps=20", "--set", "training.validate_every=20", "--set", "batch.tokens=512"]
        words = [HERE / "multi30k.py", self.data / "multi30k/tok", out, "--seed", 1]
        self.call([*words, *(changes if self.tiny else [])], limit)
        for path in out.glob("multi30k-*.json"):
            result = json.loads(path.read_text("utf-8"))
            print("   ", result["score"]["value"], result["phases"], flush=True)
            shutil.copy(path, self.out)

    def save(self, result: dict[str, Any], name: str) -> None:
        print(json.dumps(result), flush=True)
        save_result(result, self.out / f"{name}.json")


def read_log(run: Path) -> list[dict[str, Any]]:
    """Return the entries of the log of a run."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), default=list(LIMITS), metavar="PART")
    parser.add_argument("--limit", type=float, default=480, help="seconds for all parts")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true", help="small models and few steps, to try the script")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        parts = Parts(arguments, Path(work))
        for name in arguments.only:
            parts.run(name)


if __name__ == "__main__":
    main()
