"""Kill training runs, resume them, and compare the results with those of an uninterrupted run, which must be identical.

    python -m tools.kill_and_resume --kills 100 --seed 3
    python -m tools.kill_and_resume --kills 100 --seed 3 --workers 2
    python -m tools.kill_and_resume --kills 30 --images

A run is killed in calls that change files, in optimizer steps, or after random times; with workers, also by killing a
data worker. `tests/contracts/test_resume.py` uses the same functions with few, selected kills.
"""

import argparse
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import SMALL, settings_of, toy_pairs
from tests.forks import FORKS
from tests.images import TINY, paint
from tools.killing import CALLS, run_plan

Death = dict[str, Any]
EVERYTHING = {
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "batch.tokens": 128,
    "model.dropout": 0.2,
    "model.attention_dropout": 0.1,
    "optim.accumulate": 2,
    "training.average": 0.5,
    "objective.scheduled_sampling.half_life": 10,
    "objective.guided_attention.steps": 30,
    "objective.r_drop": 0.5,
    "training.validate_every": 8,
    "training.valid_sentences": 4,
    "training.log_every": 3,
    "training.checkpoint_every": 1,
}
"""Everything that draws random numbers or has a state."""
IMAGES = {
    "model.drop_path": 0.2,
    "augmentation.preset": "strong",
    "optim.accumulate": 2,
    "training.ema": 0.9,
    "training.validate_every": 4,
    "training.log_every": 3,
    "training.checkpoint_every": 1,
}
"""The same for image models."""


def text_command(corpus: Path, out: Path, **changes: object) -> list[str]:
    """Return the command that trains on train.en and train.zh of a folder; changes are written group__key=value."""
    settings = settings_of(SMALL | EVERYTHING | {key.replace("__", "."): value for key, value in changes.items()})
    return ["train", "--src", str(corpus / "train.en"), "--tgt", str(corpus / "train.zh"), "--out", str(out), *settings]


def image_command(images: Path, out: Path, **changes: object) -> list[str]:
    """Return the command that trains a classifier of a folder of images."""
    settings = settings_of(TINY | IMAGES | {key.replace("__", "."): value for key, value in changes.items()})
    return ["train", "--data", str(images), "--out", str(out), *settings]


def drive(
    plan: list[Death], command: list[str], folder: Path, background: bool = False
) -> tuple[list[tuple[int, str]], str]:
    """Run a command with the planned kills; return how each process ended and the output of all."""
    out = Path(command[command.index("--out") + 1])
    process = FORKS.Process(target=run_plan, args=(plan, out, command, folder, background))
    process.start()
    process.join(300 + 30 * len(plan))
    process.kill()
    output = (folder / "output.txt").read_text(encoding="utf-8")
    if process.exitcode:
        raise RuntimeError(output)
    return json.loads((folder / "ends.json").read_text()), output


def results(out: Path) -> dict[str, bytes]:
    """Return the models of a run and the tensors of its last checkpoint."""
    checkpoint = out / "checkpoints" / (out / "checkpoints" / "last").read_text().strip()
    files = [*(out / "best").iterdir(), *(out / "last").iterdir(), checkpoint / "state.safetensors"]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def log(out: Path) -> list[dict[str, object]]:
    """Return the log without time and memory."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = ("seconds", "tokens_per_second", "images_per_second", "memory")
    kept = (entry for entry in entries if "phases" not in entry)
    return [{key: value for key, value in entry.items() if key not in measured} for entry in kept]


def assert_same_run(expected: Path, out: Path) -> None:
    """Check that two runs have the same models, checkpoint and log, and that no temporary files remain."""
    assert results(out) == results(expected)
    assert log(out) == log(expected)
    assert not list(out.rglob(".*")), "temporary files of killed processes are removed"


def random_plan(kills: int, seed: int, workers: int) -> list[Death]:
    """Return random kills of all kinds."""
    rng = random.Random(seed)
    kinds = [
        lambda: {"call": rng.randint(1, 40)},
        lambda: {"call": rng.randint(1, 4), "of": rng.choice(CALLS)},
        lambda: {"step": rng.randint(1, 4)},
        lambda: {"seconds": rng.uniform(0.05, 0.6)},
    ]
    if workers:
        at = ("before", "within", "after")
        kinds += [lambda: {"worker": rng.randint(1, workers), "batch": rng.randint(1, 4), "at": rng.choice(at)}] * 2
    return [rng.choice(kinds)() for _ in range(kills)]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="data workers of the killed run")
    parser.add_argument("--images", action="store_true", help="train a classifier instead of a translator")
    arguments = parser.parse_args()
    plan = random_plan(arguments.kills, arguments.seed, arguments.workers)
    settings = {"training__steps": 3 * arguments.kills + 20, "training__seed": arguments.seed}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, language in enumerate(("en", "zh")):
            lines = (f"{pair[side]}\n" for pair in toy_pairs())
            (folder / f"train.{language}").write_text("".join(lines), encoding="utf-8")
        paint(folder / "images", 20, 1)
        command, data = (image_command, folder / "images") if arguments.images else (text_command, folder)
        drive([], command(data, folder / "uninterrupted", **settings), folder)
        killed = command(data, folder / "killed", **settings, training__workers=arguments.workers)
        ends, output = drive(plan, killed, folder)
        killed_early = sum(status != 0 for status, _ in ends)
        print(f"{killed_early} of {len(plan)} processes were killed before the end of the run")
        print(f"resumed from {len(set(re.findall(r'resuming from step ([0-9]+)', output)))} different steps")
        assert ends[-1][0] == 0, output
        assert "Traceback" not in output, output
        assert_same_run(folder / "uninterrupted", folder / "killed")
    print("models, last checkpoint and log are identical")


if __name__ == "__main__":
    main()
