"""Train the demo and check the promise of the README: time, BLEU and exact matches.

    python benchmarks/demo.py

Writes benchmarks/results/demo.json and fails if a bound is missed.
"""

import json
import sys
import tempfile
from pathlib import Path

from harness import environment, save_result

from regard.data.builtin.corpus import load_examples
from regard.evaluation.metrics import bleu, exact_match
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

MAX_SECONDS, MIN_BLEU, MIN_EXACT = 120, 97, 93
EXPECTED = {"I love apples": "我喜欢苹果", "I am human": "我是人类"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_recipe(load_recipe(Path("demo")), Path(folder) / "run")
        translator = Translator.load(Path(folder) / "run")
    examples = load_examples("test")
    references = [example.pair.target for example in examples]
    translations = translator([example.pair.source for example in examples], beam=1, split=False)
    novel = [i for i, example in enumerate(examples) if example.novel]
    score, exact = bleu(translations, references, "zh"), exact_match(translations, references)
    shown = {source: translator(source) for source in EXPECTED}
    result = {
        "what": "demo recipe on the built-in corpus: 1,000 held-out sentences, greedy search",
        "score": score.as_dict(),
        "exact_matches_percent": exact,
        "exact_matches_percent_of_novel_combinations": exact_match(
            [translations[i] for i in novel], [references[i] for i in novel]
        ),
        **shown,
        "training_seconds": round(outcome.seconds, 1),
        **environment(),
    }
    save_result(result, "demo")
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if outcome.seconds > MAX_SECONDS or score.value < MIN_BLEU or exact < MIN_EXACT or shown != EXPECTED:
        sys.exit(f"missed: at most {MAX_SECONDS} s, at least {MIN_BLEU} BLEU and {MIN_EXACT}% exact, {EXPECTED}")


if __name__ == "__main__":
    main()
