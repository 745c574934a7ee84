"""Train Multi30k, and score it by the published protocol: tokenised, lowercased BLEU, beam 5.

    python benchmarks/multi30k.py DATA OUT [--seed 1]                                    # the recipe multi30k-en-de
    python benchmarks/multi30k.py DATA OUT simcut r-drop-10 --seed 1 2 3 --jobs 4 --limit 540 --mps [--test]

DATA contains the tokenised train, val and test_2016_flickr as .en.gz and .de.gz. With configurations, this is
`translation.py multi30k`. Without, OUT/multi30k-captured-seedN.json or, with --set training.cuda_graph=false,
OUT/multi30k-en-de-seedN.json has the score on test_2016_flickr without a choice on the validation data.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import translation
from harness import save_result

from regard.ops.dispatch import choose_device
from regard.pipelines.translator import Translator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="configurations of multi30k.yaml")
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--set", action="append", default=[], dest="changes")
    arguments, _ = parser.parse_known_args()
    if arguments.names:
        translation.main(["multi30k", *sys.argv[1:]])
    else:
        run_plain_recipe(arguments.data, arguments.out, arguments.seed[0], arguments.changes)


def run_plain_recipe(data: Path, out: Path, seed: int, changes: Sequence[str]) -> None:
    """Train the recipe and write its score on test_2016_flickr."""
    table = translation.Table.load("multi30k")
    corpora = translation.list_corpora(table, out, "plain", data)
    outcome = translation.train(table, data, "plain", out / "run", seed, changes, corpora)
    device = choose_device("auto")
    translator = Translator.load(out / "run" / "best", device=device)
    translations, score = translation.translate(translator, table.pairs(data, "multi30k", 2), 1.0, "none")
    (out / "test.de").write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    print(score)
    result = {
        "what": "Multi30k en-de, test_2016_flickr, tokenised and lowercased, beam 5, length-normalised score",
        "score": score.as_dict(),
        **translation.describe(outcome, seed, device),
    }
    shown = (f"--set {change}" for change in changes)
    result["command"] = " ".join((f"python benchmarks/multi30k.py DATA OUT --seed {seed}", *shown))
    name = "en-de" if "training.cuda_graph=false" in changes else "captured"
    save_result(result, out / f"multi30k-{name}-seed{seed}.json")


if __name__ == "__main__":
    main()
