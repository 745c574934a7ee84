"""Kill runs whose steps are captured in CUDA graphs, and compare the resumed runs with uninterrupted ones.

    python -m tools.kill_captured [--kills 8] [--jobs 9] [--device cuda] [--out FILE]

Each job trains a small model with another objective or task; its processes are killed after replayed steps, a random
time after them, or in calls that change files, and the next one resumes. In the end, models, last checkpoint and log
must be identical to those of an uninterrupted run. On a CPU, the same code runs without capture.
"""

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.conftest import SMALL, settings_of, toy_pairs
from tests.images import TINY, paint
from tools.kill_and_resume import Death, assert_same_run, drive

STEPS_PER_KILL = 30
COMMON: dict[str, object] = {
    "training.cuda_graph": True,
    "training.checkpoint_every": 3,
    "training.validate_every": 16,
    "training.log_every": 5,
    "training.threads": 1,
}
TEXT: dict[str, object] = {
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.dropout": 0.2,
    "batch.tokens": 128,
    "training.valid_sentences": 4,
}
NAT: dict[str, object] = {"model.kind": "nat", "training.valid_sentences": 0}
JOBS: dict[str, dict[str, object]] = {
    "teacher forcing": {"optim.accumulate": 2, "training.average": 0.5},
    "R-Drop": {"objective.r_drop": 0.5, "training.ema": 0.9},
    "SimCut": {"objective.simcut.p": 0.1},
    "scheduled sampling": {"objective.scheduled_sampling": {"half_life": 40, "start": 20}},
    "guided attention": {"objective.guided_attention.steps": 100},
    "NAT, length classifier": NAT | {"model.length": "classifier"},
    "NAT, END": NAT | {"model.length": "end"},
    "NAT, GLAT and CTC": NAT | {"model.length": "ctc", "objective.reveal": "glancing"},
    "images": {
        "model.drop_path": 0.2,
        "augmentation.preset": "strong",
        "augmentation.mix_prob": 0.5,
        "training.ema": 0.9,
    },
}


def command(job: str, data: Path, out: Path, device: str, steps: int) -> list[str]:
    """Return the command that trains a job."""
    end = {"training.device": device, "training.steps": steps}
    if job == "images":
        images = TINY | COMMON | JOBS[job] | end
        return ["train", "--data", str(data / "pictures"), "--out", str(out), *settings_of(images)]
    texts = ["--src", str(data / "train.en"), "--tgt", str(data / "train.zh")]
    return ["train", *texts, "--out", str(out), *settings_of(SMALL | TEXT | COMMON | JOBS[job] | end)]


def random_plan(kills: int, seed: int) -> list[Death]:
    """Return random kills, most of them during or after replayed steps."""
    rng = random.Random(seed)
    kinds: list[Callable[[], Death]] = [
        lambda: {"replay": rng.randint(1, 9)},
        lambda: {"replay": rng.randint(1, 9), "later": rng.uniform(0.001, 0.1)},
        lambda: {"call": rng.randint(1, 40)},
    ]
    return [rng.choice(kinds)() for _ in range(kills)]


def run_job(job: str, data: Path, device: str, kills: int, seed: int) -> dict[str, Any]:
    """Train a job without interruption and with kills, and return what happened."""
    folder, started = data / job, time.monotonic()
    (folder / "whole").mkdir(parents=True)
    (folder / "parts").mkdir()
    steps, plan = STEPS_PER_KILL * kills, random_plan(kills, seed)
    row: dict[str, Any] = {"job": job, "kills": 0, "identical": False}

    def train(name: str, deaths: list[Death]) -> tuple[list[tuple[int, str]], str]:
        words = command(job, data, folder / name / "run", device, steps)
        return drive(deaths, words, folder / name, background=True)  # files are written as on a GPU

    with ThreadPoolExecutor(2) as pool:  # side by side, as they need no common state
        whole, parts = pool.submit(train, "whole", []), pool.submit(train, "parts", plan)
        try:
            whole.result()
            ends, output = parts.result()
        except RuntimeError as error:
            return row | {"error": str(error)[-2000:]}
    killed = [place or "after some time" for status, place in ends if status == signal.SIGKILL]
    row |= {
        "kills": len(killed),
        "killed_in": {place: killed.count(place) for place in sorted(set(killed))},
        "resumed_from_steps": len(set(re.findall(r"resuming from step ([0-9]+)", output))),
        "steps": steps,
        "seconds": round(time.monotonic() - started, 1),
    }
    try:
        assert ends[-1][0] == 0, output[-2000:]
        assert "Traceback" not in output, output[-2000:]
        assert_same_run(folder / "whole/run", folder / "parts/run")
    except AssertionError as error:
        return row | {"error": str(error)[:500] or "models, checkpoint or log differ"}
    return row | {"identical": True}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=8, help="processes to kill of each job")
    parser.add_argument("--jobs", type=int, default=9, help="jobs side by side")
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS), metavar="JOB")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(arguments.jobs) as pool:
        data = Path(name)
        for side, language in enumerate(("en", "zh")):
            lines = (f"{pair[side]}\n" for pair in toy_pairs())
            (data / f"train.{language}").write_text("".join(lines), encoding="utf-8")
        paint(data / "pictures", 20, 1)
        seeds = enumerate(arguments.only, arguments.seed)
        jobs = [pool.submit(run_job, job, data, arguments.device, arguments.kills, seed) for seed, job in seeds]
        for job in jobs:
            rows.append(job.result())
            print(json.dumps(rows[-1]), flush=True)
            if arguments.out is not None:
                save(rows, arguments.device, arguments.out)
    print(f"{sum(row['kills'] for row in rows)} processes were killed")
    if failed := [row["job"] for row in rows if not row["identical"]]:
        sys.exit(f"not identical: {', '.join(failed)}")


def save(rows: list[dict[str, Any]], device: str, out: Path) -> None:
    """Write the results."""
    result = {
        "what": "runs with captured steps that were killed and resumed, compared with uninterrupted runs",
        "kills": sum(row["kills"] for row in rows),
        "identical": all(row["identical"] for row in rows),
        "device": device,
        "torch": torch.__version__,
        "jobs": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
