"""Runs the demo's recipe and says whether it keeps the README's promise: time, BLEU and exact matches.

    python benchmarks/demo.py

Writes benchmarks/results/demo.json and exits with an error where a bound is missed.
"""

import datetime
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import torch

from regard.data.builtin.corpus import load_examples
from regard.evaluation import bleu, exact_match
from regard.pipelines.translator import Translator
from regard.training.recipe import Recipe
from regard.training.run import run_recipe

RESULTS = Path(__file__).parent / "results" / "demo.json"
SECONDS, BLEU, EXACT = 120, 97, 93


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_recipe(Recipe.load(Path("demo")), Path(folder) / "run")
        translator = Translator.load(Path(folder) / "run")
    test = load_examples("test")
    references = [example.pair.target for example in test]
    translations = translator([example.pair.source for example in test], beam=1)
    novel = [i for i, example in enumerate(test) if example.novel]
    score = bleu(translations, references, "zh")
    exact = exact_match(translations, references)
    apples = translator("I love apples")
    result = {
        "what": "the demo's recipe on the built-in corpus: 1,000 held-out sentences, greedy search",
        "score": score.as_dict(),
        "exact_matches_percent": exact,
        "exact_matches_percent_of_novel_combinations": exact_match(
            [translations[i] for i in novel], [references[i] for i in novel]
        ),
        "I love apples": apples,
        "training_seconds": round(outcome.seconds, 1),
        "command": "python benchmarks/demo.py",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2, ensure_ascii=False))
    if outcome.seconds > SECONDS or score.value < BLEU or exact < EXACT or apples != "我喜欢苹果":
        sys.exit(f"missed: at most {SECONDS} s, at least {BLEU} BLEU and {EXACT}% exact, 我喜欢苹果")


if __name__ == "__main__":
    main()
