"""Train on a noisy and on the cleaned corpus, and score both on the same test set.

    python benchmarks/noisy_mix.py MIX --train train.en.gz train.de.gz --test val.en.gz val.de.gz \\
        --other train.fr.gz --score test_2016_flickr.en.gz test_2016_flickr.de.gz
    python benchmarks/cleaning.py MIX OUT --seed 1 2 3 --jobs 6 --limit 540 --mps

The first command needs no GPU. Run it with the tokenised texts of Multi30k (multi30k/tok), and take the folder MIX,
about 10 MB, to the machine with the GPU, which needs the core dependencies of regard but not py3langid. The second
command trains a model for each data set and seed, as processes side by side, with the recipe multi30k-en-de.
Runs are validated once, at their end, so that the test pairs in the noisy data do not influence the choice of a model.
The models translate MIX/score.en with beam 5. Writes OUT/NAME-seedN.json and OUT/cleaning.json with all scores, which
it also prints. The same command continues.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import environment, save_result
from side_by_side import Job, run_jobs

from regard.data.text.readers import read_pairs
from regard.decoding.settings import SearchSettings
from regard.evaluation.metrics import bleu
from regard.ops.dispatch import choose_device
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

RECIPE = "multi30k-en-de"
SETTINGS = (
    "model.width=256",
    "model.hidden=512",
    "optim.lr=3e-3",
    "training.steps=5600",
    "training.validate_every=5600",
    "training.checkpoint_every=100000",
)
"""Changes to the recipe, those of benchmarks/configurations/multi30k.yaml with a single validation."""
DATA = ("noisy", "clean")


def main(words: Sequence[str] | None = None) -> None:
    arguments = parse(words)
    if arguments.child:
        train(arguments, arguments.child, arguments.seed[0])
        return
    given = list(sys.argv[1:] if words is None else words)
    jobs = [
        Job(f"{name}-seed{seed}", (__file__, *given, "--child", name, "--seed", str(seed)))
        for seed in arguments.seed
        for name in DATA
    ]
    failed = run_jobs(jobs, arguments.out, arguments.jobs, arguments.limit, arguments.mps)
    save_result(summarise(arguments), arguments.out / "cleaning.json")
    print((arguments.out / "cleaning.json").read_text("utf-8"))
    sys.exit(failed)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mix", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--languages", nargs=2, default=["en", "de"])
    parser.add_argument("--seed", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--tokenize", default="none", help="sacreBLEU tokenizer; none for tokenised text")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--limit", type=float, default=86_400, help="seconds for all runs")
    parser.add_argument("--mps", action="store_true", help="share the GPU by NVIDIA's multi-process service")
    parser.add_argument("--child", choices=DATA, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def train(arguments: argparse.Namespace, name: str, seed: int) -> None:
    """Train on one of the corpora, and write the score of the last model on the test set."""
    mix, out, run = arguments.mix, arguments.out, arguments.out / f"{name}-seed{seed}"
    source, target = arguments.languages
    files = {"source": f"{name}.{source}", "target": f"{name}.{target}"}
    files |= {"valid_source": f"excluded.{source}", "valid_target": f"excluded.{target}"}
    given: dict[str, Any] = {f"data.{key}": str(mix / file) for key, file in files.items()}
    given |= {"data.languages": list(arguments.languages), "training.seed": seed}
    outcome = run_recipe(load_recipe(Path(RECIPE), [*SETTINGS, *arguments.changes], given), run)
    device = choose_device("auto")
    translator = Translator.load(run / "best", device=device)
    test = list(read_pairs(mix / f"score.{source}", mix / f"score.{target}"))
    found = translator.hypotheses([pair.source for pair in test], SearchSettings(beam=5), split=False)
    translations = [hypotheses[0].text.replace("\n", " ") for hypotheses in found]
    (out / f"{name}-seed{seed}.{target}").write_text("".join(f"{line}\n" for line in translations), "utf-8")
    score = bleu(translations, [pair.target for pair in test], arguments.tokenize)
    result = {
        "data": name,
        "seed": seed,
        "pairs": sum(1 for _ in read_pairs(mix / files["source"], mix / files["target"])),
        "score": score.as_dict(),
        "copies": sum(pair.source == line for pair, line in zip(test, translations, strict=True)),
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        **environment(device),
    }
    save_result(result, out / f"{name}-seed{seed}.json")


def summarise(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the scores of all finished runs and their means."""
    paths = [arguments.out / f"{name}-seed{seed}.json" for name in DATA for seed in arguments.seed]
    rows = [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]
    about = {key: rows[0].pop(key) for key in ("machine", "versions", "date")} if rows else {}
    for row in rows:
        for key in ("machine", "versions", "date", "command"):
            row.pop(key, None)
    scores = {name: [row["score"]["value"] for row in rows if row["data"] == name] for name in DATA}
    means = {name: round(statistics.mean(values), 2) for name, values in scores.items() if values}
    mix = json.loads((arguments.mix / "noisy-mix.json").read_text("utf-8"))
    return {
        "what": "BLEU of models trained on noisy and on cleaned data, beam 5",
        "means": means,
        "difference": round(means["clean"] - means["noisy"], 2) if len(means) == len(DATA) else None,
        "rows": rows,
        "mix": {key: mix[key] for key in ("pairs", "noise", "by_kind", "clean")},
        "settings": [f"recipe {RECIPE}", *SETTINGS, *arguments.changes],
        **about,
        "command": environment()["command"],
    }


if __name__ == "__main__":
    main()
