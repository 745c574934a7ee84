"""Speed and quality of non-autoregressive (NAT) models next to a cached autoregressive baseline.

    python benchmarks/nat.py builtin [--out FOLDER]

trains on the built-in corpus, checks the BLEU of each length model, and writes benchmarks/results/nat-builtin.json.

    python benchmarks/nat.py timing DATA RUNS [--device cpu]
    python benchmarks/nat.py plot

times and scores models of Multi30k and draws the figures. DATA contains the tokenised test_2016_flickr.en.gz and
.de.gz; RUNS is the folder of the runs, which

    python benchmarks/translation.py multi30k-nat DATA RUNS every --test

trains; models that were not trained are skipped. On a GPU, some systems are timed without CUDA graphs, too, and on a
CPU with int8 weights. `timing` updates RUNS/nat-gpu.json or RUNS/nat-cpu.json after every measurement; `plot` draws the
results in benchmarks/results to docs/images.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from harness import RESULTS, environment, save_result
from reports.nat import DEEP, EAGER, GREEDY, IMAGES, INT8, ONE_PASS, TEN
from translation import Table

from regard.data.builtin.corpus import load_examples
from regard.data.text.readers import read_pairs
from regard.decoding.autoregressive import AutoregressiveGenerator
from regard.decoding.nat import NATGenerator
from regard.evaluation.benchmark.harness import Result, measure_speed, tabulate
from regard.evaluation.benchmark.translation import TranslationSystem
from regard.evaluation.metrics import bleu, exact_match
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


SYSTEMS: list[tuple[str, str, str]] = [  # name, configuration of multi30k-nat.yaml, search settings
    (GREEDY, "teacher", "beam=1"),
    ("teacher, beam 5", "teacher", "beam=5"),
    (DEEP, "captions-deep-shallow", "beam=1"),
    ("12+1 layers, beam 5", "captions-deep-shallow", "beam=5"),
    ("mask-predict, 1 iteration", "captions-mask-predict", "iterations=1"),
    ("mask-predict, 4 iterations", "captions-mask-predict", "iterations=4"),
    (TEN, "captions-mask-predict", "iterations=10"),
    (f"{TEN}, 3 lengths", "captions-mask-predict", "iterations=10,lengths=3"),
    *(
        (
            f"mask-predict, {count} iterations, 5 lengths, reranked",
            "captions-mask-predict",
            f"iterations={count},lengths=5,rerank={{teacher}}",
        )
        for count in (4, 10)
    ),
    ("cut at END", "captions-end", ""),
    ("CTC", "captions-ctc-plain", ""),
    ("CTC + GLAT", "captions-ctc", ""),
    ("CTC + GLAT, prefix beam 5", "captions-ctc", "beam=5"),
    ("CTC + GLAT + DSLP", "captions-ctc-dslp", ""),
    *((f"graph, {path}", "captions-dag", f"path={path}") for path in ("greedy", "lookahead", "viterbi")),
    ("graph, beam 5", "captions-dag", "beam=5"),
    *((f"graph + FA, {path}", "captions-dag-fuzzy", f"path={path}") for path in ("greedy", "lookahead", "viterbi")),
    ("graph + FA, beam 5", "captions-dag-fuzzy", "beam=5"),
]
INT8_ON_CPU = (GREEDY, "teacher, beam 5", DEEP, "12+1 layers, beam 5", "CTC + GLAT", "graph + FA, lookahead")
"""Systems that are measured on a CPU with int8 weights, too."""


@dataclass(frozen=True)
class EagerSystem(TranslationSystem):
    """Translates without CUDA graphs."""

    def translate(self, sources: Sequence[str]) -> list[str]:
        with ExitStack() as stack:
            for generator in (AutoregressiveGenerator, NATGenerator):
                stack.enter_context(patch.object(generator, "capture_devices", ()))
            return super().translate(sources)


def train(recipe: str, out: Path, changes: Sequence[str]) -> None:
    """Train or resume a run, which prints to OUT.log."""
    settings = [word for change in changes for word in ("--set", change)]
    words = [sys.executable, "-m", "regard", "train", recipe, "--out", str(out), *settings]
    with out.with_name(f"{out.name}.log").open("ab") as log:
        subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=True)


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
            train("demo", out / name, changes)
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


def measure(data: Path, runs: Path, device: torch.device, seconds: float, batches: list[int]) -> None:
    """Time and score all trained systems, save the result after every measurement, and print the criteria."""
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    systems = open_systems(runs, device)
    table = Table.load("multi30k-nat")
    configurations = {name: table.configurations[name] for _, name, _ in SYSTEMS if run_folder(runs, name).exists()}
    about = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased; median times of a batch, text to text",
        "configurations": {
            name: configuration.model_dump(mode="json", exclude_unset=True)
            for name, configuration in configurations.items()
        },
        **environment(device),
    }
    results = [
        Result(system.name, portable_settings(system), system.translator.count_parameters(system.settings), [], None)
        for system in systems
    ]
    turns: list[list[list[float]]] = [[] for _ in systems]
    path = runs / f"nat-{'gpu' if device.type == 'cuda' else 'cpu'}.json"
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


def run_folder(runs: Path, configuration: str) -> Path:
    """Return the model of a configuration, that of the first seed."""
    return runs / f"{configuration}-seed1" / "run" / "best"


def open_systems(runs: Path, device: torch.device) -> list[TranslationSystem]:
    """Load a separate model for each system, so that no system uses graphs captured by another."""
    systems = []
    for name, configuration, options in SYSTEMS:
        folder = run_folder(runs, configuration)
        if not folder.exists():
            print(f"{name}: skipped, because {folder} does not exist", flush=True)
            continue
        options = options.format(teacher=run_folder(runs, "teacher"))
        path = f"{folder}:{options}" if options else str(folder)
        systems.append(replace(TranslationSystem.open(path, device), name=name))
        if device.type == "cuda" and name in (GREEDY, *ONE_PASS):
            systems.append(replace(EagerSystem.open(path, device), name=name + EAGER))
        if device.type == "cpu" and name in INT8_ON_CPU:
            path = f"{folder}:{','.join(filter(None, (options, 'precision=int8')))}"
            systems.append(replace(TranslationSystem.open(path, device), name=name + INT8))
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
    from regard.evaluation.benchmark.plot import save_quality_plot

    for path in RESULTS.glob("nat-[cg]pu.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        figure = IMAGES / f"{path.stem}.svg"
        results = [Result.from_dict(row) for row in result["results"]]
        save_quality_plot(results, figure, f"Multi30k en-de on {result['machine']}")
        print(figure)


def check_criteria(results: list[Result]) -> dict[str, Any]:
    """Return and print the quality and speed of the best NAT systems relative to the teacher."""
    scores = {result.name: result.score.value for result in results if result.score and not result.name.endswith(INT8)}
    teacher = max((value for name, value in scores.items() if name.startswith("teacher")), default=0.0)
    if not teacher:
        print("no criteria: the teacher was not measured", flush=True)
        return {}
    one_pass = {name: scores[name] for name in ONE_PASS if name in scores}
    iterative = {name: value for name, value in scores.items() if name.startswith("mask-predict")}
    times = {result.name: result.milliseconds(1) for result in results}
    criteria: dict[str, Any] = {"teacher_bleu": teacher}
    if one_pass:
        best = max(one_pass, key=lambda name: one_pass[name])
        criteria["best_one_pass"] = best
        criteria["best_one_pass_percent_of_teacher_bleu (at least 97)"] = round(100 * one_pass[best] / teacher, 2)
        for suffix in ("", EAGER):
            if GREEDY + suffix in times:
                key = f"best_one_pass_times_faster_at_batch_1{suffix} (on a GPU at least 2.5, on a CPU 5)"
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
    stages = parser.add_subparsers(dest="stage", required=True)
    builtin = stages.add_parser("builtin")
    builtin.add_argument("--out", type=Path, default=Path("runs/nat"))
    timing = stages.add_parser("timing")
    timing.add_argument("data", type=Path, help="folder of the tokenised Multi30k")
    timing.add_argument("runs", type=Path, help="folder of the runs of benchmarks/translation.py")
    timing.add_argument("--device", default="auto")
    timing.add_argument("--seconds", type=float, default=3.0, help="timing of each system and batch size")
    timing.add_argument("--batch", type=int, nargs="+", default=[1, 8, 64, 512], help="batch sizes")
    stages.add_parser("plot")
    arguments = parser.parse_args()
    if arguments.stage == "builtin":
        check_builtin(arguments.out)
    elif arguments.stage == "plot":
        plot_all()
    else:
        device = choose_device(arguments.device)
        measure(arguments.data, arguments.runs, device, arguments.seconds, arguments.batch)


if __name__ == "__main__":
    main()
