"""Train the Multi30k recipe and score it by the published protocol: tokenised, lowercased BLEU on test_2016_flickr.

    python benchmarks/multi30k.py DATA OUT [--seed 1]

DATA contains the tokenised train, val and test_2016_flickr as .en.gz and .de.gz. Writes OUT/run, the translations as
OUT/test.de, and the result as OUT/multi30k-captured-seedN.json or, with --set training.cuda_graph=false,
OUT/multi30k-en-de-seedN.json.
"""

import argparse
from pathlib import Path

from harness import environment, save_result

from regard.data.text.readers import read_pairs
from regard.decoding.config import SearchSettings
from regard.evaluation.metrics import bleu
from regard.pipelines.translator import Translator
from regard.runtime import choose_device
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    arguments = parser.parse_args()
    data, out = arguments.data, arguments.out
    files = {"source": "train.en", "target": "train.de", "valid_source": "val.en", "valid_target": "val.de"}
    overrides = {f"data.{key}": str(data / f"{name}.gz") for key, name in files.items()} | {
        "training.seed": arguments.seed
    }
    recipe = load_recipe(Path("multi30k-en-de"), arguments.changes, overrides)
    outcome = run_recipe(recipe, out / "run")
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    settings = SearchSettings(beam=5)
    translations = [
        hypotheses[0].text
        for hypotheses in translator.hypotheses([pair.source for pair in pairs], settings, split=False)
    ]
    (out / "test.de").write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    changes = (f"--set {change}" for change in arguments.changes)
    score = bleu(translations, [pair.target for pair in pairs], "none")
    print(score)
    result = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased, beam 5, length-normalised score",
        "score": score.as_dict(),
        "validation": outcome.scores,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        "seed": arguments.seed,
        **environment(device),
        "command": " ".join((f"python benchmarks/multi30k.py DATA OUT --seed {arguments.seed}", *changes)),
    }
    name = "en-de" if recipe.training.cuda_graph is False else "captured"
    save_result(result, out / f"multi30k-{name}-seed{arguments.seed}.json")


if __name__ == "__main__":
    main()
