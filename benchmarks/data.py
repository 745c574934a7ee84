"""Train from a corpus of millions of pairs and check that memory does not grow with the corpus.

    python benchmarks/data.py [--pairs 5000000] [--work FOLDER] [--figure docs/images/data-memory.svg]

Writes a corpus of random sentences, and one of a tenth of the size. For each, `regard train` runs a few steps (reads
the corpus, trains a tokenizer on 200,000 pairs, tokenises everything into the store), a second process resumes it, and
a third one makes every batch of an epoch and counts the sentences. The resident memory of each process, in total and
without mapped files, is read from /proc. Fails if the peak of the large corpus exceeds that of the small one by more
than 100 MB, if a sentence does not occur exactly once, or if the first batch after resuming takes more than 5 seconds.
Writes benchmarks/results/data.json and a figure.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, save_result

from regard.training.tasks.registry import load_recipe

ALLOWED_MB = 100
FIRST_BATCH_SECONDS = 5
SECONDS_BETWEEN_SAMPLES = 0.25
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--work", type=Path, help="folder for the temporary corpus of several GB")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        make_all_batches(arguments.read)
        return
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        small, large = (measure(Path(folder), pairs) for pairs in (arguments.pairs // 10, arguments.pairs))
    result = {
        "what": "memory and time of training from a large corpus: start, resume, make every batch of an epoch",
        "small": small,
        "large": large,
        "allowed_growth_mb": ALLOWED_MB,
        **environment("cpu", "numpy", "tokenizers"),
    }
    save_result(result, "data")
    if arguments.figure:
        draw(small, large, arguments.figure)
    for phase in ("start", "resume", "epoch"):
        for kind in ("rss", "anonymous"):
            peak, small_peak = (measured[phase][f"peak_{kind}_mb"] for measured in (large, small))
            growth = peak - small_peak
            print(f"{phase}, {kind}: {peak:.0f} MB, {growth:+.0f} MB for ten times the pairs")
            assert growth < ALLOWED_MB, f"{phase}: {kind} memory grew by {growth:.0f} MB"
    assert large["first_batch_seconds"] < FIRST_BATCH_SECONDS, f"the first batch took {large['first_batch_seconds']} s"


def measure(folder: Path, pairs: int) -> dict[str, Any]:
    """Run all three processes on a new corpus and delete it afterwards."""
    corpus = folder / str(pairs)
    corpus.mkdir()
    source, target, run = corpus / "train.xx", corpus / "train.yy", corpus / "run"
    write_corpus(source, target, pairs)
    corpus_bytes = source.stat().st_size + target.stat().st_size
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    train = ["-m", "regard", "train", "--src", str(source), "--tgt", str(target), "--out", str(run), *settings]
    start, _ = run_python([*train, "--set", "training.steps=5"])
    resume, lines = run_python([*train, "--set", "training.steps=10"])
    first_step = next(seconds for seconds, line in lines if line.startswith("step 6/"))
    epoch, lines = run_python([__file__, "--read", str(run)])
    counts = json.loads(lines[-1][1])
    assert counts["sentences"] == counts["distinct"] == pairs - SETTINGS["data.hold_out"], counts
    result = {
        "pairs": pairs,
        "corpus_mb": round(corpus_bytes / 1e6),
        "store_mb": round(sum(path.stat().st_size for path in (run / "data" / "train").iterdir()) / 1e6),
        "start": describe(start),
        "resume": describe(resume),
        "epoch": describe(epoch) | {"batches": counts["batches"]},
        "first_batch_seconds": counts["first_batch_seconds"],
        "resume_to_first_step_seconds": round(first_step, 2),
    }
    print(json.dumps({key: value for key, value in result.items() if not isinstance(value, dict)}), flush=True)
    shutil.rmtree(corpus)
    return result


def write_corpus(source: Path, target: Path, pairs: int, chunk: int = 50_000) -> None:
    """Write sentences of 4 to 20 random words with Zipf's frequencies; targets are translated and reversed."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(50_000)]
    translated = np.array(["".join(rng.permutation(list(word))) + "o" for word in words], object)
    original = np.array(words, object)
    cumulative = np.cumsum(1 / np.arange(1, len(words) + 1))
    with source.open("w") as source_file, target.open("w") as target_file:
        for start in range(0, pairs, chunk):
            lengths = rng.integers(4, 21, min(chunk, pairs - start))
            chosen = np.searchsorted(cumulative, rng.random(lengths.sum()) * cumulative[-1])
            ends = np.cumsum(lengths).tolist()
            for file, vocabulary, step in ((source_file, original, 1), (target_file, translated, -1)):
                texts = vocabulary[chosen].tolist()
                file.writelines(" ".join(texts[a:b][::step]) + "\n" for a, b in pairwise([0, *ends]))


def run_python(arguments: list[str]) -> tuple[Samples, list[tuple[float, str]]]:
    """Run a Python process; return samples of its memory, and its output lines with the time in seconds."""
    start = time.perf_counter()
    samples: Samples = []
    lines: list[tuple[float, str]] = []
    variables = os.environ | {"PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as output:

        def read_lines() -> None:
            output.seek(0)
            lines.extend((time.perf_counter() - start, line) for line in output.read().splitlines()[len(lines) :])

        process = subprocess.Popen([sys.executable, *arguments], stdout=output, env=variables)
        while process.poll() is None:
            samples += read_memory(process.pid, time.perf_counter() - start)
            read_lines()
            time.sleep(SECONDS_BETWEEN_SAMPLES)
        assert process.returncode == 0, f"{arguments}: exit code {process.returncode}"
        read_lines()
    return samples, lines


def read_memory(process: int, seconds: float) -> Iterator[dict[str, float]]:
    """Yield the resident memory, in total and without mapped files; nothing if the process has just ended."""
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


def make_all_batches(run: Path) -> None:
    """Make all batches of the first epoch of a run, and print counts."""
    from regard.training.progress import Progress
    from regard.training.state import DataPosition, DataShard
    from regard.training.tasks.translation.task import TranslationTask

    start = time.perf_counter()
    recipe, progress = load_recipe(run / "recipe.yaml"), Progress(1)
    task = TranslationTask.open(run / "data", recipe, torch.device("cpu"), progress)
    seen = np.zeros(len(task.train_tokens), bool)
    batches = sentences = 0
    first = 0.0
    for positioned in task.batches(DataPosition(), DataShard()):
        first = first or time.perf_counter() - start
        if positioned.after.epoch:
            break
        batches, sentences = batches + 1, sentences + positioned.item.sentences
        seen[positioned.item.rows] = True
    counts = {"batches": batches, "sentences": sentences, "distinct": int(seen.sum())}
    print(json.dumps(counts | {"first_batch_seconds": round(first, 2)}))


def draw(small: dict[str, Any], large: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    titles = {"start": "reading, tokenising, first steps", "epoch": "every batch of an epoch"}
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
