"""Trains the Multi30k recipe and scores it by the published protocol: tokenised, lowercased BLEU on test_2016_flickr.

    python benchmarks/multi30k.py DATA OUT [--seed 1]

DATA holds train, val and test_2016_flickr as .en.gz and .de.gz in the tokenised form. Writes OUT/run, the translations
as OUT/test.de, and score, signature, time, machine and versions as OUT/multi30k-en-de-seedN.json, or, with --set
training.cuda_graph=true, as OUT/multi30k-recorded-seedN.json.
"""

import argparse
import datetime
import json
import platform
from pathlib import Path

import torch

from regard.data.text.readers import read_pairs
from regard.decoding.search import SearchSettings
from regard.evaluation import bleu
from regard.pipelines.translator import Translator
from regard.runtime import choose_device
from regard.training.recipe import Recipe
from regard.training.run import run_recipe


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="changes")
    arguments = parser.parse_args()
    data, out = arguments.data, arguments.out
    files = {"source": "train.en", "target": "train.de", "valid_source": "val.en", "valid_target": "val.de"}
    given = {f"data.{key}": str(data / f"{name}.gz") for key, name in files.items()} | {"training.seed": arguments.seed}
    recipe = Recipe.load(Path("multi30k-en-de"), arguments.changes, given)
    outcome = run_recipe(recipe, out / "run")
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    pairs = list(read_pairs(data / "test_2016_flickr.en.gz", data / "test_2016_flickr.de.gz"))
    settings = SearchSettings(beam=5)
    translations = [found[0].text for found in translator.hypotheses([pair.source for pair in pairs], settings)]
    (out / "test.de").write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    changes = (f"--set {change}" for change in arguments.changes)
    score = bleu(translations, [pair.target for pair in pairs], "none")
    print(score)
    result = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased, beam 5, score divided by length",
        "score": score.as_dict(),
        "validation": outcome.scores,
        "best_step": outcome.best_step,
        "steps": outcome.steps,
        "training_seconds": round(outcome.seconds, 1),
        "seed": arguments.seed,
        "command": " ".join((f"python benchmarks/multi30k.py DATA OUT --seed {arguments.seed}", *changes)),
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    name = "recorded" if recipe.training.cuda_graph else "en-de"
    path = out / f"multi30k-{name}-seed{arguments.seed}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
