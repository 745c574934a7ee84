"""Trains from a corpus of millions of pairs and watches memory: it must not grow with the corpus.

    python benchmarks/data.py [--pairs 5000000] [--work FOLDER] [--figure docs/images/data-memory.svg]

A corpus of random sentences is written to disk, and a tenth of it. From each, `regard train` begins a run of a few
steps (the corpus is read, a tokenizer learned from 200,000 pairs, everything tokenised into the store), goes on with it
in a second process, and a third process makes every batch of a whole epoch, counting each sentence. The resident memory
of each process is read from /proc while it works, all of it and the part that is not mapped from files. Asserted: the
highest of the large corpus is no more than 100 MB above that of the small one, every sentence comes once, and at the
second start the first batch is there within 5 seconds. Writes benchmarks/results/data.json and a figure.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

ALLOWED_MB = 100
FIRST_BATCH_SECONDS = 5
SECONDS_BETWEEN_SAMPLES = 0.25
RESULT = Path(__file__).parent / "results" / "data.json"
SETTINGS = {
    "data.hold_out": 200,
    "tokenizer.size": 8000,
    "tokenizer.sample": 200_000,
    "model.preset": "tiny",
    "model.width": 64,
    "batch.tokens": 2048,
    "optim.schedule": "constant",
    "training.log_every": 1,
    "training.valid_sentences": 0,
    "training.device": "cpu",
}
Samples = list[dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--work", type=Path, help="where the corpus is written and deleted again; several GB")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--read", type=Path, help="(the third process) a run whose batches are all made")
    arguments = parser.parse_args()
    if arguments.read:
        make_every_batch(arguments.read)
        return
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        small, large = (measure(Path(folder), pairs) for pairs in (arguments.pairs // 10, arguments.pairs))
    result = {
        "what": "memory and time of training from a large corpus: begin, go on, make every batch of an epoch",
        "small": small,
        "large": large,
        "allowed_growth_mb": ALLOWED_MB,
        "command": f"python benchmarks/data.py --pairs {arguments.pairs}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
        | {"tokenizers": tokenizers.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if arguments.figure:
        draw(small, large, arguments.figure)
    for phase in ("begin", "go_on", "epoch"):
        for kind in ("rss", "anonymous"):
            growth = large[phase][f"peak_{kind}_mb"] - small[phase][f"peak_{kind}_mb"]
            print(
                f"{phase}, {kind}: {large[phase][f'peak_{kind}_mb']:.0f} MB, {growth:+.0f} MB for ten times the pairs"
            )
            assert growth < ALLOWED_MB, f"{phase}: {kind} memory grew by {growth:.0f} MB"
    assert large["first_batch_seconds"] < FIRST_BATCH_SECONDS, f"the first batch took {large['first_batch_seconds']} s"


def measure(folder: Path, pairs: int) -> dict[str, Any]:
    """All three processes over one corpus, which is deleted in the end."""
    home = folder / str(pairs)
    home.mkdir()
    source, target, run = home / "train.xx", home / "train.yy", home / "run"
    write_corpus(source, target, pairs)
    corpus_bytes = source.stat().st_size + target.stat().st_size
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    train = ["-m", "regard", "train", "--src", str(source), "--tgt", str(target), "--out", str(run), *settings]
    begin, _ = watch([*train, "--set", "training.steps=5"])
    go_on, said = watch([*train, "--set", "training.steps=10"])
    first_step = next(seconds for seconds, line in said if line.startswith("step 6/"))
    epoch, said = watch([__file__, "--read", str(run)])
    counted = json.loads(said[-1][1])
    assert counted["sentences"] == counted["distinct"] == pairs - SETTINGS["data.hold_out"], counted
    result = {
        "pairs": pairs,
        "corpus_mb": round(corpus_bytes / 1e6),
        "store_mb": round(sum(path.stat().st_size for path in (run / "data" / "train").iterdir()) / 1e6),
        "begin": describe(begin),
        "go_on": describe(go_on),
        "epoch": describe(epoch) | {"batches": counted["batches"]},
        "first_batch_seconds": counted["first_batch_seconds"],
        "second_start_to_first_step_seconds": round(first_step, 2),
    }
    print(json.dumps({key: value for key, value in result.items() if not isinstance(value, dict)}), flush=True)
    shutil.rmtree(home)
    return result


def write_corpus(source: Path, target: Path, pairs: int, chunk: int = 50_000) -> None:
    """Sentences of 4 to 20 random words, frequent ones and rare ones; the target has them in reverse."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(50_000)]
    translated = np.array(["".join(rng.permutation(list(word))) + "o" for word in words], object)
    table = np.array(words, object)
    share = np.cumsum(1 / np.arange(1, len(words) + 1))
    with source.open("w") as left, target.open("w") as right:
        for start in range(0, pairs, chunk):
            lengths = rng.integers(4, 21, min(chunk, pairs - start))
            chosen = np.searchsorted(share, rng.random(lengths.sum()) * share[-1])
            ends = np.cumsum(lengths).tolist()
            for file, texts in ((left, table[chosen].tolist()), (right, translated[chosen].tolist())):
                step = 1 if file is left else -1
                starts = [0, *ends]
                file.writelines(" ".join(texts[a:b][::step]) + "\n" for a, b in zip(starts, ends, strict=False))


def watch(words: list[str]) -> tuple[Samples, list[tuple[float, str]]]:
    """Runs a Python process; its memory again and again, and what it said when."""
    started = time.perf_counter()
    samples: Samples = []
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([sys.executable, *words], stdout=said, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        lines: list[tuple[float, str]] = []
        while process.poll() is None:
            samples += memory(process.pid, time.perf_counter() - started)
            said.seek(0)
            for line in said.read().splitlines()[len(lines) :]:
                lines.append((time.perf_counter() - started, line))
            time.sleep(SECONDS_BETWEEN_SAMPLES)
        assert process.returncode == 0, f"{words} ended with {process.returncode}"
        said.seek(0)
        lines += [(time.perf_counter() - started, line) for line in said.read().splitlines()[len(lines) :]]
    return samples, lines


def memory(process: int, seconds: float) -> Iterator[dict[str, float]]:
    """Resident memory now, in all and without what is mapped from files; nothing where the process has just ended."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    if "VmRSS" in fields:
        rss, anonymous = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))
        yield {"seconds": round(seconds, 2), "rss_mb": round(rss, 1), "anonymous_mb": round(anonymous, 1)}


def describe(samples: Samples) -> dict[str, Any]:
    return {
        "seconds": samples[-1]["seconds"],
        "peak_rss_mb": max(sample["rss_mb"] for sample in samples),
        "peak_anonymous_mb": max(sample["anonymous_mb"] for sample in samples),
        "samples": samples[:: max(1, len(samples) // 40)],
    }


def make_every_batch(run: Path) -> None:
    """Opens the data of a run and makes each batch of its first epoch."""
    from regard.training.progress import Progress
    from regard.training.recipe import Recipe
    from regard.training.state import DataShard, Position
    from regard.training.tasks.translation.task import TranslationTask

    started = time.perf_counter()
    recipe, progress = Recipe.load(run / "recipe.yaml"), Progress(1)
    task = TranslationTask.open(run / "data", recipe, torch.device("cpu"), progress)
    seen = np.zeros(len(task.train), bool)
    batches = sentences = 0
    first = 0.0
    for placed in task.batches(Position(), DataShard()):
        first = first or time.perf_counter() - started
        if placed.after.epoch:
            break
        batches, sentences = batches + 1, sentences + placed.batch.sentences
        seen[placed.batch.rows] = True
    counts = {"batches": batches, "sentences": sentences, "distinct": int(seen.sum())}
    print(json.dumps(counts | {"first_batch_seconds": round(first, 2)}))


def draw(small: dict[str, Any], large: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    titles = {"begin": "reading, tokenising, first steps", "epoch": "every batch of an epoch"}
    for axis, (phase, title) in zip(axes, titles.items(), strict=True):
        for result, colour in ((small, "#999999"), (large, "#1f5fa8")):
            samples = result[phase]["samples"]
            seconds = [sample["seconds"] for sample in samples]
            name = f"{result['pairs'] / 1e6:g} million pairs"
            axis.plot(seconds, [sample["rss_mb"] for sample in samples], color=colour, label=name)
            axis.plot(seconds, [sample["anonymous_mb"] for sample in samples], color=colour, linestyle=":")
        axis.set(title=title, xlabel="seconds", ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("MB resident\n(dotted: not mapped from files)")
    axes[1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
