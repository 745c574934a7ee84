"""Train configurations of Multi30k, and score them by the published protocol: tokenised, lowercased BLEU, beam 5.

    python benchmarks/multi30k.py DATA OUT [--seed 1]                                    # the recipe multi30k-en-de
    python benchmarks/multi30k.py DATA OUT simcut r-drop --seed 1 2 3 --jobs 4 --limit 540 --mps [--test]

DATA contains the tokenised train, val and test_2016_flickr as .en.gz and .de.gz. The configurations are in
multi30k.yaml. Runs are processes side by side on one GPU, in the given order, seed by seed. Each of them writes
OUT/NAME-seedN.json when it is finished: the validation BLEU with every exponent of the length penalty, and with --test
the BLEU on test_2016_flickr with the best one. Runs that are not finished within the limit are reported.

Without configurations, OUT/multi30k-captured-seedN.json or, with --set training.cuda_graph=false,
OUT/multi30k-en-de-seedN.json has the score on test_2016_flickr without a choice on the validation data.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import yaml
from harness import environment, save_result

from regard.data.text.readers import Pair, read_pairs
from regard.decoding.config import SearchSettings
from regard.evaluation.metrics import Score, bleu
from regard.pipelines.translator import Translator
from regard.runtime import choose_device
from regard.training.loop import RunResult
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

CONFIGURATIONS = yaml.safe_load((Path(__file__).parent / "multi30k.yaml").read_text("utf-8"))
ALPHAS = (0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
"""Exponents of the length penalty that validation chooses from; a higher one prefers longer translations."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *CONFIGURATIONS], metavar="NAME")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--limit", type=float, default=86_400, help="seconds for all runs")
    parser.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's multi-process service")
    parser.add_argument("--test", action="store_true", help="score test_2016_flickr too")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.names:
        run_plain_recipe(arguments.data, arguments.out, arguments.seed[0], arguments.changes)
    elif arguments.child:
        run_configuration(arguments)
    else:
        sys.exit(run_side_by_side(arguments))


def run_side_by_side(arguments: argparse.Namespace) -> int:
    """Start a process for each configuration and seed; return how many of them did not finish."""
    end = time.monotonic() + arguments.limit
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = [(name, seed) for seed in arguments.seed for name in arguments.names]
    further = [word for change in arguments.changes for word in ("--set", change)] + ["--test"] * arguments.test
    threads = str(max(1, len(os.sched_getaffinity(0)) // arguments.jobs))

    def run(name: str, seed: int) -> bool:
        command = [
            sys.executable,
            __file__,
            arguments.data,
            arguments.out,
            name,
            "--seed",
            str(seed),
            "--child",
            *further,
        ]
        with (arguments.out / f"{name}-seed{seed}.log").open("w") as log:
            try:
                seconds = max(0.1, end - time.monotonic())
                limits = os.environ | {"OMP_NUM_THREADS": threads}
                code = subprocess.run(
                    command, stdout=log, stderr=subprocess.STDOUT, timeout=seconds, env=limits, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = -1
        if code:
            lines = Path(log.name).read_text().splitlines()
            print(f"{name}-seed{seed}: {'out of time' if code < 0 else 'failed'}: {lines[-1:]}", flush=True)
        return code == 0

    sharing = multi_process_service(arguments.out / "mps") if arguments.mps else nullcontext()
    with sharing, ThreadPoolExecutor(arguments.jobs) as pool:
        finished = list(pool.map(lambda chosen: run(*chosen), runs))
    return finished.count(False)


@contextmanager
def multi_process_service(folder: Path) -> Iterator[None]:
    """Run the processes started in this context on one GPU at the same time, if the service works here."""
    names = {"CUDA_MPS_PIPE_DIRECTORY": str(folder.absolute()), "CUDA_MPS_LOG_DIRECTORY": str(folder.absolute())}
    folder.mkdir(exist_ok=True)
    check = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=os.environ | names, timeout=20, check=True)
        subprocess.run(check, env=os.environ | names, timeout=60, check=True)
        os.environ |= names
        print("the runs share the GPU by the multi-process service", flush=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no multi-process service: {error}", flush=True)
    try:
        yield
    finally:
        if names.items() <= os.environ.items():
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", timeout=60, check=False)


def run_configuration(arguments: argparse.Namespace) -> None:
    """Train one configuration with one seed, choose the length penalty on the validation data, and write the result."""
    (name,), (seed,), data = arguments.names, arguments.seed, arguments.data
    out = arguments.out / f"{name}-seed{seed}"
    changes = [*CONFIGURATIONS["all"], *CONFIGURATIONS[name].get("set", [])]
    if "first" in CONFIGURATIONS[name]:
        train(data, out / "first", seed, [*changes, *CONFIGURATIONS[name]["first"], *arguments.changes])
        changes += [f"init.from={out / 'first'}", *CONFIGURATIONS[name]["then"]]
    outcome = train(data, out / "run", seed, [*changes, *arguments.changes])
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    valid = list(read_pairs(data / "val.en.gz", data / "val.de.gz"))
    scores = {alpha: translate(translator, valid, alpha)[1] for alpha in ALPHAS}
    alpha = max(scores, key=lambda each: scores[each].value)
    result = {
        "what": f"Multi30k en-de, {name}, tokenised and lowercased, beam 5, length penalty chosen on val",
        "configuration": CONFIGURATIONS[name] | {"all": CONFIGURATIONS["all"], "further": arguments.changes},
        "val": {str(each): round(score.value, 3) for each, score in scores.items()},
        "alpha": alpha,
        **describe(outcome, seed, device),
    }
    if arguments.test:
        pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
        translations, score = translate(translator, pairs, alpha)
        result["score"] = score.as_dict()
        (arguments.out / f"{name}-seed{seed}.de").write_text("".join(f"{line}\n" for line in translations), "utf-8")
    save_result(result, arguments.out / f"{name}-seed{seed}.json")


def run_plain_recipe(data: Path, out: Path, seed: int, changes: Sequence[str]) -> None:
    """Train the recipe and write its score on test_2016_flickr."""
    outcome = train(data, out / "run", seed, changes)
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    translations, score = translate(translator, pairs, 1.0)
    (out / "test.de").write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    print(score)
    result = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased, beam 5, length-normalised score",
        "score": score.as_dict(),
        **describe(outcome, seed, device),
    }
    shown = (f"--set {change}" for change in changes)
    result["command"] = " ".join((f"python benchmarks/multi30k.py DATA OUT --seed {seed}", *shown))
    name = "en-de" if "training.cuda_graph=false" in changes else "captured"
    save_result(result, out / f"multi30k-{name}-seed{seed}.json")


def train(data: Path, out: Path, seed: int, changes: Sequence[str]) -> RunResult:
    """Train the recipe with some changes."""
    files = {"source": "train.en", "target": "train.de", "valid_source": "val.en", "valid_target": "val.de"}
    overrides = {f"data.{key}": str(data / f"{name}.gz") for key, name in files.items()} | {"training.seed": seed}
    return run_recipe(load_recipe(Path("multi30k-en-de"), changes, overrides), out)


def translate(translator: Translator, pairs: Sequence[Pair], alpha: float) -> tuple[list[str], Score]:
    """Translate the sources with beam 5; return the translations and their tokenised BLEU."""
    settings = SearchSettings(beam=5, alpha=alpha)
    found = translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    translations = [hypotheses[0].text for hypotheses in found]
    return translations, bleu(translations, [pair.target for pair in pairs], "none")


def describe(outcome: RunResult, seed: int, device: torch.device) -> dict[str, Any]:
    return {
        "validation": outcome.scores,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        "phases": {name: round(seconds, 1) for name, seconds in outcome.phases.items()},
        "seed": seed,
        **environment(device),
    }


if __name__ == "__main__":
    main()
