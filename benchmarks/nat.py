"""Speed and quality of non-autoregressive (NAT) models next to a cached autoregressive baseline.

    python benchmarks/nat.py builtin [--out FOLDER]

trains on the built-in corpus, checks the BLEU of each length model, and writes benchmarks/results/nat-builtin.json.

    python benchmarks/nat.py teacher  --data DATA --out OUT
    python benchmarks/nat.py distill  --data DATA --out OUT --extra train.en.gz --extra valid.en.gz --extra test.en.gz
    python benchmarks/nat.py students --data DATA --out OUT --round-weights
    python benchmarks/nat.py timing   --data DATA --out OUT [--device cpu]
    python benchmarks/nat.py plot

do the same on Multi30k in stages, on one GPU: train the autoregressive teacher; translate the training set, and further
English captions (here the three files of 3AM), with it; train all students on these translations at the same time;
time and score all models; draw the figures. DATA contains the tokenised train, val and test_2016_flickr as .en.gz and
.de.gz. Every stage can be interrupted and resumed, and skips what is finished; --minutes limits training. --teacher RUN
uses an existing model. `timing` updates OUT/nat-DEVICE.json after every measurement; `plot` draws the results in
benchmarks/results to docs/images.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import safetensors.torch
import torch
from harness import RESULTS, environment, save_result
from reports.nat import EAGER, GREEDY, IMAGES, ONE_PASS
from translation import Table

from regard.data.builtin.corpus import load_examples
from regard.data.text.readers import read_lines, read_pairs
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.nat import NATGenerator
from regard.evaluation.metrics import bleu, exact_match
from regard.evaluation.speed.harness import Result, measure_speed, tabulate
from regard.evaluation.speed.translation import TranslationSystem
from regard.models.folder import WEIGHTS, find_model_folder
from regard.ops.dispatch import choose_device
from regard.pipelines.translator import Translator

# Changes to the recipe `demo`, and the minimum BLEU of each search on the built-in corpus.
BUILTIN: dict[str, list[str]] = {
    "autoregressive": [],
    "classifier": ["model.kind=nat", "training.steps=2500", "objective.length_weight=1.0"],
    "end": ["model.kind=nat", "model.length=end", "model.upsample_ratio=1", "training.steps=1200"],
    "ctc": ["model.kind=nat", "model.length=ctc", "model.upsample_ratio=1", "training.steps=1200"],
}
MIN_BLEU: list[tuple[str, dict[str, Any], float]] = [
    ("autoregressive", {"beam": 1}, 95),
    ("classifier", {"iterations": 1}, 80),
    ("classifier", {"iterations": 4}, 90),
    ("end", {}, 80),
    ("ctc", {}, 80),
    ("ctc", {"beam": 5}, 80),
]


@dataclass(frozen=True)
class Student:
    """A model trained on the translations of the teacher.

    Attributes:
        changes: Changes to the recipe `multi30k-en-de`.
        warm: Whether it is initialised with the encoder of the teacher.
    """

    changes: list[str]
    warm: bool = True


NAT = ["model.kind=nat", "model.dropout=0.2", "model.hidden_dropout=0.1", "search.beam=1"]
CAPTURED = ["batch.tokens=8192", "batch.layout=packed", "training.cuda_graph=true"]
LONG = [*NAT, *CAPTURED, "training.steps=9000", "training.validate_every=1800"]
CTC = [*NAT, "model.length=ctc"]
# Up to the best validation of a longer run: the learning rate does not depend on the number of steps, averaging would.
SHORT = ["training.steps=1600", "training.validate_every=1600", "training.average=0"]
LARGE = ["batch.tokens=16384", "batch.layout=padded"]
STUDENTS = {
    "deep-shallow": Student(
        ["model.encoder_layers=12", "model.decoder_layers=1", "training.cuda_graph=true"], warm=False
    ),
    "mask-predict": Student([*LONG, "search.iterations=4"]),
    "end": Student([*LONG, "model.length=end"]),
    "ctc": Student([*CTC, *CAPTURED, "objective.reveal=none", *SHORT]),
    "ctc-glat": Student([*CTC, *LARGE, "training.steps=2000", "training.validate_every=500"]),
    "dag": Student([*Table.load("multi30k-nat").configurations["distilled"].set]),
}
SYSTEMS: list[tuple[str, str, str]] = [  # name, run, search settings
    (GREEDY, "teacher", "beam=1"),
    ("teacher, beam 5", "teacher", "beam=5"),
    ("12+1 layers, greedy", "deep-shallow", "beam=1"),
    ("12+1 layers, beam 5", "deep-shallow", "beam=5"),
    ("mask-predict, 1 iteration", "mask-predict", "iterations=1"),
    ("mask-predict, 4 iterations", "mask-predict", "iterations=4"),
    ("mask-predict, 10 iterations", "mask-predict", "iterations=10"),
    ("mask-predict, 10 iterations, 3 lengths", "mask-predict", "iterations=10,lengths=3"),
    ("mask-predict, 4 iterations, 5 lengths, reranked", "mask-predict", "iterations=4,lengths=5,rerank={teacher}"),
    ("mask-predict, 10 iterations, 5 lengths, reranked", "mask-predict", "iterations=10,lengths=5,rerank={teacher}"),
    ("cut at END", "end", ""),
    ("CTC", "ctc", ""),
    ("CTC + GLAT", "ctc-glat", ""),
    ("CTC + GLAT, prefix beam 5", "ctc-glat", "beam=5"),
    *((f"graph, {path}", "dag", f"path={path}") for path in ("greedy", "lookahead", "viterbi")),
    ("graph, beam 5", "dag", "beam=5"),
]


@dataclass(frozen=True)
class EagerSystem(TranslationSystem):
    """Translates without CUDA graphs."""

    def translate(self, sources: Sequence[str]) -> list[str]:
        with ExitStack() as stack:
            for generator in (AutoregressiveGenerator, NATGenerator):
                stack.enter_context(patch.object(generator, "capture_devices", ()))
            return super().translate(sources)


def start_training(
    recipe: str, out: Path, changes: Sequence[str], files: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start or resume a training run that prints to OUT.log."""
    settings = [word for change in changes for word in ("--set", change)]
    words = [sys.executable, "-m", "regard", "train", recipe, *files, "--out", str(out), *settings]
    log = out.with_name(f"{out.name}.log").open("ab")
    return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)


def wait_for(processes: dict[str, subprocess.Popen[bytes]], out: Path, minutes: float | None) -> None:
    """Wait for training runs, and stop them after the given time; they save a checkpoint first."""
    deadline = time.monotonic() + 60 * minutes if minutes else None
    stopped = False
    while any(process.poll() is None for process in processes.values()):
        time.sleep(5)
        if int(time.monotonic()) % 60 < 5:
            for name in processes:
                lines = (out / f"{name}.log").read_text(errors="replace").strip().splitlines()
                print(f"{name}: {lines[-1] if lines else ''}", flush=True)
        if deadline and time.monotonic() > deadline and not stopped:
            stopped = True
            for process in processes.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
    for name, process in processes.items():
        print(f"{name}: {'finished' if process.returncode == 0 else f'exit code {process.returncode}'}", flush=True)
    if stopped:
        sys.exit("stopped after --minutes; run the same command to resume")
    if failed := [name for name, process in processes.items() if process.returncode]:
        sys.exit(f"{', '.join(failed)}: training failed; see the log in {out}")


def is_finished(run: Path) -> bool:
    log = run.with_name(f"{run.name}.log")
    return log.exists() and "next: regard translate" in log.read_text(errors="replace")


# The built-in corpus


def check_builtin(out: Path) -> None:
    """Train the models one after another and score them."""
    out.mkdir(parents=True, exist_ok=True)
    for name, changes in BUILTIN.items():
        if not is_finished(out / name):
            print(f"training {name}", flush=True)
            wait_for({name: start_training("demo", out / name, changes)}, out, None)
    test = load_examples("test")
    sources, references = [example.pair.source for example in test], [example.pair.target for example in test]
    rows, missed = [], []
    for name, settings, minimum in MIN_BLEU:
        translations = Translator.load(out / name)(sources, **settings)
        score, exact = bleu(translations, references, "zh"), exact_match(translations, references)
        print(f"{name} {settings}: {score.value:.2f} BLEU, {exact:.1f}% exact", flush=True)
        rows.append({"model": name, "search": settings, "score": score.as_dict(), "exact_matches_percent": exact})
        missed += [f"{name} {settings}: {score.value:.2f} BLEU, less than {minimum}"] if score.value < minimum else []
    result = {
        "what": f"the built-in corpus, {len(test)} held-out sentences",
        "changes_to_the_recipe_demo": BUILTIN,
        "rows": rows,
        **environment(),
    }
    save_result(result, "nat-builtin")
    if missed:
        sys.exit("; ".join(missed))


# Multi30k


def corpus_options(data: Path, source: Path | None = None, target: Path | None = None) -> list[str]:
    """Return the options of `regard train` for the given training files, by default those of Multi30k."""
    train = source or data / "train.en.gz", target or data / "train.de.gz"
    names = ("--src", "--tgt", "--valid-src", "--valid-tgt")
    paths = (*train, data / "val.en.gz", data / "val.de.gz")
    return [word for name, path in zip(names, paths, strict=True) for word in (name, str(path))]


def train_teacher(data: Path, out: Path, changes: list[str], minutes: float | None) -> None:
    if not is_finished(out / "teacher"):
        changes = ["training.cuda_graph=true", *changes]
        process = start_training("multi30k-en-de", out / "teacher", changes, corpus_options(data))
        wait_for({"teacher": process}, out, minutes)


def distill(data: Path, out: Path, teacher: Path, extra: Sequence[Path]) -> None:
    """Translate the training set with the teacher, and further sentences whose words all occur in it."""
    sources = out / "sources.en"
    if not sources.exists():
        sentences = list(read_lines(data / "train.en.gz"))
        known = {line for name in ("train", "val", "test_2016_flickr") for line in read_lines(data / f"{name}.en.gz")}
        words = {word for line in sentences for word in line.split()}
        for path in extra:
            new = [line for line in dict.fromkeys(map(tokenise, read_lines(path))) if line not in known]
            new = [line for line in new if words.issuperset(line.split())]
            print(f"{path}: {len(new):,} sentences of known words that are not in the training, validation or test set")
            sentences += new
            known.update(new)
        sources.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    files = ["--src", sources, "--out-src", out / "distilled.en", "--out-tgt", out / "distilled.de"]
    command = [sys.executable, "-m", "regard", "distill", teacher, *files, "--beam", "5", "--resume"]
    subprocess.run([str(word) for word in command], check=True)


@cache
def moses() -> tuple[Any, Any]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer("en"), MosesTokenizer("en")


def tokenise(line: str) -> str:
    """Preprocess English like the published Multi30k: lowercased, normalised and tokenised with Moses."""
    normaliser, tokenizer = moses()
    return str(tokenizer.tokenize(normaliser.normalize(line.lower()), return_str=True))


def train_students(
    data: Path, out: Path, teacher: Path, names: Sequence[str], changes: list[str], minutes: float | None
) -> None:
    """Train all students at the same time, because models of this size leave most of a GPU idle."""
    processes = {}
    for name in [name for name in names if not is_finished(out / name)]:
        student = STUDENTS[name]
        warm = [f"init.from={teacher}", "init.parts=encoder"] if student.warm else []
        files = corpus_options(data, out / "distilled.en", out / "distilled.de")
        processes[name] = start_training("multi30k-en-de", out / name, [*student.changes, *warm, *changes], files)
    wait_for(processes, out, minutes)


def round_weights(run: Path) -> None:
    """Round the weights of the best model to bfloat16, which compress to half the size."""
    path = find_model_folder(run) / WEIGHTS
    tensors = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def are_rounded(run: Path) -> bool:
    tensors = safetensors.torch.load_file(find_model_folder(run) / WEIGHTS).values()
    return all(torch.equal(tensor, tensor.bfloat16().to(tensor.dtype)) for tensor in tensors)


# Speed and quality


@dataclass
class CallTimer:
    """Records the index of the system and the seconds of each call, in order."""

    calls: list[tuple[int, float]]

    def wrap(self, system: int, translate: Callable[[Sequence[str]], object]) -> Callable[[Sequence[str]], None]:
        def timed(sources: Sequence[str]) -> None:
            start = time.perf_counter()
            translate(sources)
            self.calls.append((system, time.perf_counter() - start))

        return timed

    def turns(self, system: int) -> list[float]:
        """Return the median milliseconds of a batch in each turn of the system; the first turn is the warm-up."""
        turns = [
            [seconds for _, seconds in turn]
            for index, turn in groupby(self.calls, key=lambda call: call[0])
            if index == system
        ]
        return [round(1000 * median(turn), 4) for turn in turns[1:] or turns]


def measure(data: Path, out: Path, teacher: Path, device: torch.device, seconds: float, batches: list[int]) -> None:
    """Time and score all trained systems, save the result after every measurement, and print the criteria."""
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    systems = open_systems(out, teacher, device)
    runs = {run: teacher if run == "teacher" else out / run for run in dict.fromkeys(run for _, run, _ in SYSTEMS)}
    about = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased; median times of a batch, text to text",
        "students": {name: asdict(student) for name, student in STUDENTS.items()},
        "rounded_to_bfloat16": [run for run, folder in runs.items() if folder.exists() and are_rounded(folder)],
        **environment(device),
    }
    results = [
        Result(system.name, portable_settings(system), system.translator.count_parameters(system.settings), [], None)
        for system in systems
    ]
    turns: list[list[list[float]]] = [[] for _ in systems]
    path = out / f"nat-{'gpu' if device.type == 'cuda' else 'cpu'}.json"
    save = partial(save_results, path, about, results, turns)
    for batch in batches:
        timer = CallTimer([])
        timed = [timer.wrap(index, system.translate) for index, system in enumerate(systems)]
        for index, timing in enumerate(measure_speed(timed, sources, batch, seconds)):
            results[index].timings.append(timing)
            turns[index].append(timer.turns(index))
        save()
        print(f"batch size {batch}: finished", flush=True)
    for index, system in enumerate(systems):
        results[index] = replace(results[index], score=bleu(system.translate(sources), references, "none"))
        save()
    print(tabulate(results), flush=True)
    save(check_criteria(results))


def open_systems(out: Path, teacher: Path, device: torch.device) -> list[TranslationSystem]:
    """Load a separate model for each system, so that no system uses graphs captured by another."""
    systems = []
    for name, run, options in SYSTEMS:
        folder = teacher if run == "teacher" else out / run
        if not folder.exists():
            print(f"{name}: skipped, because {folder} does not exist", flush=True)
            continue
        options = options.format(teacher=teacher)
        path = f"{folder}:{options}" if options else str(folder)
        systems.append(replace(TranslationSystem.open(path, device), name=name))
        if device.type == "cuda" and name in (GREEDY, *ONE_PASS):
            systems.append(replace(EagerSystem.open(path, device), name=name + EAGER))
    return systems


def portable_settings(system: TranslationSystem) -> dict[str, Any]:
    """Return all search settings, without the path of the reranker."""
    settings = system.settings.resolved()
    return settings | ({"rerank": "teacher"} if settings.get("rerank") else {})


def save_results(
    path: Path,
    about: dict[str, Any],
    results: list[Result],
    turns: list[list[list[float]]],
    criteria: dict[str, Any] | None = None,
) -> None:
    """Write all results so far; every timing includes the median of each turn."""
    rows = [result.as_dict() for result in results]
    for row, turns_by_batch in zip(rows, turns, strict=True):
        row["timings"] = [
            timing | {"turns": medians} for timing, medians in zip(row["timings"], turns_by_batch, strict=True)
        ]
    save_result(about | {"results": rows} | ({"criteria": criteria} if criteria else {}), path)


def plot_all() -> None:
    """Draw all results of `timing`; a separate stage because matplotlib may be missing on the GPU machine."""
    from regard.evaluation.speed.plot import save_quality_plot

    for path in RESULTS.glob("nat-[cg]pu.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        figure = IMAGES / f"{path.stem}.svg"
        results = [Result.from_dict(row) for row in result["results"]]
        save_quality_plot(results, figure, f"Multi30k en-de on {result['machine']}")
        print(figure)


def check_criteria(results: list[Result]) -> dict[str, Any]:
    """Return and print the quality and speed of the best NAT systems relative to the teacher."""
    scores = {result.name: result.score.value for result in results if result.score}
    teacher = max(value for name, value in scores.items() if name.startswith("teacher"))
    one_pass = {name: scores[name] for name in ONE_PASS if name in scores}
    iterative = {name: value for name, value in scores.items() if name.startswith("mask-predict")}
    times = {result.name: result.milliseconds(1) for result in results}
    criteria: dict[str, Any] = {"teacher_bleu": teacher}
    if one_pass:
        best = max(one_pass, key=lambda name: one_pass[name])
        criteria["best_one_pass"] = best
        criteria["best_one_pass_percent_of_teacher_bleu (at least 90)"] = round(100 * one_pass[best] / teacher, 2)
        for suffix in ("", EAGER):
            if GREEDY + suffix in times:
                key = f"best_one_pass_times_faster_at_batch_1{suffix} (on a GPU at least 5)"
                criteria[key] = round(times[GREEDY + suffix] / times[best + suffix], 2)
    if iterative:
        without_reranking = max(value for name, value in iterative.items() if "reranked" not in name)
        percent = round(100 * max(iterative.values()) / teacher, 2)
        criteria["mask_predict_percent_of_teacher_bleu (at least 95)"] = percent
        percent = round(100 * without_reranking / teacher, 2)
        criteria["mask_predict_percent_of_teacher_bleu_without_reranking"] = percent
    for name, value in criteria.items():
        print(f"{name}: {value}", flush=True)
    return criteria


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["builtin", "teacher", "distill", "students", "timing", "plot"])
    parser.add_argument("--data", type=Path, help="folder of Multi30k")
    parser.add_argument("--out", type=Path, default=Path("runs/nat"))
    parser.add_argument("--teacher", type=Path, help="a trained run to use instead of OUT/teacher")
    parser.add_argument("--extra", type=Path, action="append", default=[], help="further English sentences to distill")
    parser.add_argument("--only", action="append", choices=list(STUDENTS), help="students to train; all by default")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="a change to every recipe")
    parser.add_argument("--round-weights", action="store_true", help="round the students' weights to bfloat16")
    parser.add_argument("--minutes", type=float, help="stop training after this time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="timing of each system and batch size")
    parser.add_argument("--batch", type=int, action="append", help="batch sizes; 1, 8 and 64 by default")
    arguments = parser.parse_args()
    data, out = arguments.data, arguments.out
    if arguments.stage == "builtin":
        check_builtin(out)
        return
    if arguments.stage == "plot":
        plot_all()
        return
    if data is None:
        parser.error("--data is required")
    out.mkdir(parents=True, exist_ok=True)
    teacher = arguments.teacher or out / "teacher"
    if arguments.stage == "teacher":
        train_teacher(data, out, arguments.changes, arguments.minutes)
    elif arguments.stage == "distill":
        distill(data, out, teacher, arguments.extra)
    elif arguments.stage == "students":
        names = arguments.only or list(STUDENTS)
        train_students(data, out, teacher, names, arguments.changes, arguments.minutes)
        for name in names if arguments.round_weights else ():
            round_weights(out / name)
    else:
        device = choose_device(arguments.device)
        measure(data, out, teacher, device, arguments.seconds, arguments.batch or [1, 8, 64])


if __name__ == "__main__":
    main()
