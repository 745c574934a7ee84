"""The honest trade: what writing all tokens at once gains in speed and costs in quality, against a cached baseline.

    python benchmarks/nat.py builtin [--out FOLDER]

trains on the built-in corpus, checks that each of the three ways to know the length learns, and writes
benchmarks/results/parallel-builtin.json.

    python benchmarks/nat.py teacher  --data DATA --out OUT
    python benchmarks/nat.py distill  --data DATA --out OUT --more train.en.gz --more valid.en.gz --more test.en.gz
    python benchmarks/nat.py students --data DATA --out OUT --rounded
    python benchmarks/nat.py timing   --data DATA --out OUT [--device cpu]
    python benchmarks/nat.py plot

do the same on Multi30k in pieces, on one GPU: the usual model, from the published text; its translations of the
training set, and of further English captions, here those of the three files of 3AM; all others, from these, side by
side; what each takes and scores; pictures. DATA holds train, val and test_2016_flickr as .en.gz and .de.gz in the
tokenised form. Every piece goes on where it was interrupted, and what is finished is not done again; `--minutes` ends
training in good time. `--teacher RUN` takes a model that is there already. `timing` writes OUT/parallel-DEVICE.json
after every step of its work; `plot` draws those that lie in benchmarks/results into docs/images.
"""

import argparse
import datetime
import json
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]  # this checkout, whatever else is installed

import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from benchmarks.reports.parallel import GREEDY, IMAGES, LAUNCHED, ONE_PASS  # noqa: E402

from regard.data.builtin.corpus import load_examples  # noqa: E402
from regard.data.text.readers import read_lines, read_pairs  # noqa: E402
from regard.decoding.autoregressive import AutoregressiveGenerator  # noqa: E402
from regard.decoding.nat import NATGenerator  # noqa: E402
from regard.evaluation import bleu, exact_match  # noqa: E402
from regard.evaluation.bench.environment import describe_machine  # noqa: E402
from regard.evaluation.bench.harness import Result, measure_speed, tabulate  # noqa: E402
from regard.evaluation.bench.translation import TranslationSystem  # noqa: E402
from regard.models.folder import WEIGHTS, find_model_folder  # noqa: E402
from regard.pipelines.translator import Translator  # noqa: E402
from regard.runtime import choose_device  # noqa: E402

RESULTS = HERE / "results"

# Changes to the recipe `demo`, and the least BLEU that each way of writing must reach on the built-in corpus.
BUILTIN: dict[str, list[str]] = {
    "token by token": [],
    "classifier": ["model.kind=nat", "training.steps=2500", "objective.length_weight=1.0"],
    "end": ["model.kind=nat", "model.length=end", "model.upsample_ratio=1", "training.steps=1200"],
    "ctc": ["model.kind=nat", "model.length=ctc", "model.upsample_ratio=1", "training.steps=1200"],
}
BOUNDS: list[tuple[str, dict[str, Any], float]] = [
    ("token by token", {"beam": 1}, 95),
    ("classifier", {"iterations": 1}, 80),
    ("classifier", {"iterations": 4}, 90),
    ("end", {}, 80),
    ("ctc", {}, 80),
    ("ctc", {"beam": 5}, 80),
]


@dataclass(frozen=True)
class Student:
    """A model that learns from the teacher's translations.

    Attributes:
        changes: to the recipe `multi30k-en-de`.
        warm: whether it begins with the teacher's encoder.
    """

    changes: list[str]
    warm: bool = True


PARALLEL = ["model.kind=nat", "model.dropout=0.2", "model.hidden_dropout=0.1", "search.beam=1"]
RECORDED = ["batch.tokens=8192", "batch.layout=packed", "training.cuda_graph=true"]
LONG = [*PARALLEL, *RECORDED, "training.steps=9000", "training.validate_every=1800"]
CTC = [*PARALLEL, "model.length=ctc"]
# As far as the best validation of a run with more steps: the rate does not depend on their number, the average would.
SHORT = ["training.steps=1600", "training.validate_every=1600", "training.average=0"]
LARGE = ["batch.tokens=16384", "batch.layout=padded"]
STUDENTS = {
    "deep-shallow": Student(
        ["model.encoder_layers=12", "model.decoder_layers=1", "training.cuda_graph=true"], warm=False
    ),
    "mask-predict": Student([*LONG, "search.iterations=4"]),
    "end": Student([*LONG, "model.length=end"]),
    "ctc": Student([*CTC, *RECORDED, "objective.reveal=none", *SHORT]),
    "ctc-glat": Student([*CTC, *LARGE, "training.steps=2000", "training.validate_every=500"]),
}
CONTENDERS: list[tuple[str, str, str]] = [
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
]


@dataclass(frozen=True)
class Launched(TranslationSystem):
    """Writes what it would, but nothing of it is recorded; keys and values are cached as ever."""

    def translate(self, sources: Sequence[str]) -> list[str]:
        with ExitStack() as stack:
            for generator in (AutoregressiveGenerator, NATGenerator):
                stack.enter_context(patch.object(generator, "capture_devices", ()))
            return super().translate(sources)


def describe_run() -> dict[str, Any]:
    options = ("--data", "--out", "--teacher", "--more")  # paths of this machine are of no use elsewhere
    words = [before[2:].upper() if before in options else word for before, word in pairwise(sys.argv)]
    return {
        "command": " ".join(["python benchmarks/nat.py", *words]),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def start(recipe: str, out: Path, changes: Sequence[str], files: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Begins a training run, or goes on with it; what it says goes to OUT.log."""
    settings = [word for change in changes for word in ("--set", change)]
    words = [sys.executable, "-m", "regard", "train", recipe, *files, "--out", str(out), *settings]
    log = out.with_name(f"{out.name}.log").open("ab")
    return subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)


def wait_for(processes: dict[str, subprocess.Popen[bytes]], out: Path, minutes: float | None) -> None:
    """Waits for runs, and asks them to save and stop when the time is over."""
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
        print(f"{name}: {'done' if process.returncode == 0 else f'ended with {process.returncode}'}", flush=True)
    if stopped:
        sys.exit("the time was over; the same command goes on")
    if failed := [name for name, process in processes.items() if process.returncode]:
        sys.exit(f"{', '.join(failed)}: see the log in {out}")


def is_done(run: Path) -> bool:
    log = run.with_name(f"{run.name}.log")
    return log.exists() and "next: regard translate" in log.read_text(errors="replace")


# The built-in corpus


def check_builtin(out: Path) -> None:
    """Trains each kind one after the other, so that the machine is each one's own."""
    out.mkdir(parents=True, exist_ok=True)
    for name, changes in BUILTIN.items():
        run = out / name.replace(" ", "-")
        if not is_done(run):
            print(f"training {name}", flush=True)
            wait_for({run.name: start("demo", run, changes)}, out, None)
    test = load_examples("test")
    sources, references = [d.pair.source for d in test], [d.pair.target for d in test]
    rows, missed = [], []
    for name, settings, bound in BOUNDS:
        translations = Translator.load(out / name.replace(" ", "-"))(sources, **settings)
        score, exact = bleu(translations, references, "zh"), exact_match(translations, references)
        print(f"{name} {settings}: {score.value:.2f} BLEU, {exact:.1f}% exact", flush=True)
        rows.append({"model": name, "search": settings, "score": score.as_dict(), "exact_matches_percent": exact})
        missed += [f"{name} {settings}: {score.value:.2f} is below {bound}"] if score.value < bound else []
    result = {
        "what": f"the built-in corpus, {len(test)} held-out sentences",
        "changes_to_the_recipe_demo": BUILTIN,
        "rows": rows,
        "machine": describe_machine(torch.device("cpu")),
    }
    (RESULTS / "nat-builtin.json").write_text(
        json.dumps(result | describe_run(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if missed:
        sys.exit("; ".join(missed))


# Multi30k


def files_of(data: Path, pair: Sequence[Path] = ()) -> list[str]:
    """The options of `regard train` that name the corpus; a distilled one has its own training files."""
    pair = pair or [data / "train.en.gz", data / "train.de.gz"]
    names = ("--src", "--tgt", "--valid-src", "--valid-tgt")
    paths = [*pair, data / "val.en.gz", data / "val.de.gz"]
    return [word for name, path in zip(names, paths, strict=True) for word in (name, str(path))]


def train_teacher(data: Path, out: Path, changes: list[str], minutes: float | None) -> None:
    if not is_done(out / "teacher"):
        changes = ["training.cuda_graph=true", *changes]
        wait_for({"teacher": start("multi30k-en-de", out / "teacher", changes, files_of(data))}, out, minutes)


def distill(data: Path, out: Path, teacher: Path, more: Sequence[Path]) -> None:
    """The training set with the teacher's translations in place of the references: what its students learn from.

    Captions that nobody has translated serve as well: the teacher does, where it knows every word.
    """
    sources = out / "sources.en"
    if not sources.exists():
        sentences = list(read_lines(data / "train.en.gz"))
        known = {line for name in ("train", "val", "test_2016_flickr") for line in read_lines(data / f"{name}.en.gz")}
        words = {word for line in sentences for word in line.split()}
        for path in more:
            fresh = [line for line in dict.fromkeys(map(tokenise, read_lines(path))) if line not in known]
            fresh = [line for line in fresh if words.issuperset(line.split())]
            print(
                f"{path}: {len(fresh):,} sentences of known words that stand in neither training, validation nor test"
            )
            sentences += fresh
            known.update(fresh)
        sources.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    files = ["--src", sources, "--out-src", out / "distilled.en", "--out-tgt", out / "distilled.de"]
    words = [sys.executable, "-m", "regard", "distill", teacher, *files, "--beam", "5", "--resume"]
    subprocess.run([str(word) for word in words], check=True)


@cache
def moses() -> tuple[Any, Any]:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    return MosesPunctNormalizer("en"), MosesTokenizer("en")


def tokenise(line: str) -> str:
    """English as Multi30k's published form has it: lowercased, normalised and tokenised by Moses."""
    normaliser, tokenizer = moses()
    return str(tokenizer.tokenize(normaliser.normalize(line.lower()), return_str=True))


def train_students(
    data: Path, out: Path, teacher: Path, names: Sequence[str], changes: list[str], minutes: float | None
) -> None:
    """All at once: models of this size leave most of a GPU idle. Those of the teacher's size begin with its encoder."""
    started = {}
    for name in [name for name in names if not is_done(out / name)]:
        student = STUDENTS[name]
        warm = [f"init.from={teacher}", "init.parts=encoder"] if student.warm else []
        files = files_of(data, [out / "distilled.en", out / "distilled.de"])
        started[name] = start("multi30k-en-de", out / name, [*student.changes, *warm, *changes], files)
    wait_for(started, out, minutes)


def round_weights(run: Path) -> None:
    """Rounds the weights of a run's best model to bfloat16, in which half as much has to be carried."""
    path = find_model_folder(run) / WEIGHTS
    tensors = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in safetensors.torch.load_file(path).items()}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def are_rounded(run: Path) -> bool:
    tensors = safetensors.torch.load_file(find_model_folder(run) / WEIGHTS).values()
    return all(torch.equal(tensor, tensor.bfloat16().to(tensor.dtype)) for tensor in tensors)


# What everything takes and scores


@dataclass
class Watch:
    """Notes who took how long, one call after the other."""

    calls: list[tuple[int, float]]

    def around(self, number: int, translate: Callable[[Sequence[str]], object]) -> Callable[[Sequence[str]], None]:
        def timed(sources: Sequence[str]) -> None:
            begin = time.perf_counter()
            translate(sources)
            self.calls.append((number, time.perf_counter() - begin))

        return timed

    def turns(self, number: int) -> list[float]:
        """The median milliseconds of a batch in each of its turns, those that warm up left out."""
        turns = [
            [seconds for _, seconds in turn]
            for who, turn in groupby(self.calls, key=lambda call: call[0])
            if who == number
        ]
        return [round(1000 * median(turn), 4) for turn in turns[1:] or turns]


def time_all(data: Path, out: Path, teacher: Path, device: torch.device, seconds: float, batches: list[int]) -> None:
    """Times and scores everything that is trained, and says which bounds are kept; writes down what there is so far."""
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    contenders = open_contenders(out, teacher, device)
    runs = {run: teacher if run == "teacher" else out / run for run in dict.fromkeys(run for _, run, _ in CONTENDERS)}
    about = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased; median times of a batch, text to text",
        "students": {name: asdict(student) for name, student in STUDENTS.items()},
        "rounded_to_bfloat16": [run for run, folder in runs.items() if folder.exists() and are_rounded(folder)],
        "machine": describe_machine(device),
    }
    results = [Result(one.name, settings_of(one), parameters_of(one), [], None) for one in contenders]
    turns: list[list[list[float]]] = [[] for _ in contenders]
    path = out / f"nat-{'gpu' if device.type == 'cuda' else 'cpu'}.json"
    save = partial(write_down, path, about, results, turns)
    for batch in batches:
        watch = Watch([])
        timed = [watch.around(number, one.translate) for number, one in enumerate(contenders)]
        for number, timing in enumerate(measure_speed(timed, sources, batch, seconds)):
            results[number].timings.append(timing)
            turns[number].append(watch.turns(number))
        save()
        print(f"batches of {batch}: done", flush=True)
    for number, one in enumerate(contenders):
        results[number] = replace(results[number], score=bleu(one.translate(sources), references, "none"))
        save()
    print(tabulate(results), flush=True)
    save(check_bounds(results))


def open_contenders(out: Path, teacher: Path, device: torch.device) -> list[TranslationSystem]:
    """All whose models are there; each has its own, so that none finds prepared what another has used."""
    contenders = []
    for name, run, options in CONTENDERS:
        folder = teacher if run == "teacher" else out / run
        if not folder.exists():
            print(f"{name}: not trained, left out", flush=True)
            continue
        options = options.format(teacher=teacher)
        where = f"{folder}:{options}" if options else str(folder)
        contenders.append(replace(TranslationSystem.open(where, device), name=name))
        if device.type == "cuda" and name in (GREEDY, *ONE_PASS):
            contenders.append(replace(Launched.open(where, device), name=name + LAUNCHED))
    return contenders


def settings_of(contender: TranslationSystem) -> dict[str, Any]:
    """All that are in force, without saying where on this machine the judge lies."""
    settings = contender.settings.resolved()
    return settings | ({"rerank": "teacher"} if settings.get("rerank") else {})


def parameters_of(contender: TranslationSystem) -> int:
    return contender.translator.count_parameters(contender.settings)


def write_down(
    path: Path,
    about: dict[str, Any],
    results: list[Result],
    turns: list[list[list[float]]],
    bounds: dict[str, Any] | None = None,
) -> None:
    """What there is so far; every timing has the median of each of its turns beside it."""
    rows = [one.as_dict() for one in results]
    for row, of_one in zip(rows, turns, strict=True):
        row["timings"] = [timing | {"turns": medians} for timing, medians in zip(row["timings"], of_one, strict=True)]
    result = about | {"results": rows} | ({"bounds": bounds} if bounds else {}) | describe_run()
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def plot_all() -> None:
    """Draws every result of `timing`; apart from it, since a machine with a GPU may have nothing to draw with."""
    from regard.evaluation.bench.plot import save_quality_plot

    for path in RESULTS.glob("nat-[cg]pu.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        picture = IMAGES / f"{path.stem}.svg"
        save_quality_plot(
            [Result.from_dict(one) for one in result["results"]], picture, f"Multi30k en-de on {result['machine']}"
        )
        print(picture)


def check_bounds(results: list[Result]) -> dict[str, Any]:
    """The quality and the speed of the best against the teacher's, in one line each."""
    scores = {result.name: result.score.value for result in results if result.score}
    usual = max(value for name, value in scores.items() if name.startswith("teacher"))
    one_pass = {name: scores[name] for name in ONE_PASS if name in scores}
    refined = {name: value for name, value in scores.items() if name.startswith("mask-predict")}
    times = {result.name: result.milliseconds(1) for result in results}
    found: dict[str, Any] = {"teacher_bleu": usual}
    if one_pass:
        best = max(one_pass, key=lambda name: one_pass[name])
        found["best_one_pass"] = best
        found["best_one_pass_percent_of_teacher_bleu (at least 90)"] = round(100 * one_pass[best] / usual, 2)
        for how in ("", LAUNCHED):
            if GREEDY + how in times:
                key = f"best_one_pass_times_faster_at_batch_1{how} (on a GPU at least 5)"
                found[key] = round(times[GREEDY + how] / times[best + how], 2)
    if refined:
        alone = max(value for name, value in refined.items() if "reranked" not in name)
        found["mask_predict_percent_of_teacher_bleu (at least 95)"] = round(100 * max(refined.values()) / usual, 2)
        found["mask_predict_percent_of_teacher_bleu_without_reranking"] = round(100 * alone / usual, 2)
    for name, value in found.items():
        print(f"{name}: {value}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=["builtin", "teacher", "distill", "students", "timing", "plot"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/parallel"))
    parser.add_argument("--teacher", type=Path, help="a trained run in place of OUT/teacher")
    parser.add_argument(
        "--more", type=Path, action="append", default=[], help="further English sentences for the teacher to translate"
    )
    parser.add_argument("--only", action="append", choices=list(STUDENTS), help="students to train; all unless given")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="a change to every recipe")
    parser.add_argument(
        "--rounded", action="store_true", help="round the weights of the students to bfloat16 once they are trained"
    )
    parser.add_argument("--minutes", type=float, help="training is asked to stop after so long")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each size of batch")
    parser.add_argument("--batch", type=int, action="append")
    parser.add_argument("--again", action="store_true", help="forget what was trained before")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if arguments.again and out.exists():
        shutil.rmtree(out)
    if arguments.piece == "builtin":
        check_builtin(out)
        return
    if arguments.piece == "plot":
        plot_all()
        return
    if arguments.data is None:
        parser.error("--data is needed")
    out.mkdir(parents=True, exist_ok=True)
    teacher = arguments.teacher or out / "teacher"
    if arguments.piece == "teacher":
        train_teacher(arguments.data, out, arguments.changes, arguments.minutes)
    elif arguments.piece == "distill":
        distill(arguments.data, out, teacher, arguments.more)
    elif arguments.piece == "students":
        names = arguments.only or list(STUDENTS)
        train_students(arguments.data, out, teacher, names, arguments.changes, arguments.minutes)
        for name in names if arguments.rounded else ():
            round_weights(out / name)
    else:
        batches = arguments.batch or [1, 8, 64]
        time_all(arguments.data, out, teacher, choose_device(arguments.device), arguments.seconds, batches)


if __name__ == "__main__":
    main()
