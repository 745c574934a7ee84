"""Attribution on the built-in corpus: is the aligned source word among the words with the highest scores?

    python benchmarks/attribution.py RUN [--sentences 200] [--out FILE]

RUN is a translator of the built-in corpus, such as that of `regard demo`. Every content word of its correct
translations of test sentences is attributed to the source; the lexicon of the corpus gives the aligned words. Reported
for each baseline: the share of content words whose aligned word has the highest score or is among the two highest, the
completeness error, and the number of gradients. `occlusion` ranks the words by the effect of replacing them instead.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, format_json, save_result

sys.path.append(str(Path(__file__).parent.parent))  # tools

from regard.data.builtin.corpus import load_examples
from regard.inspection.explain.attribution import attribute_word
from regard.inspection.explain.scoring import BASELINES
from regard.pipelines.translator import Translator
from tools.corpus.alignment import align_content_words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    translator = Translator.load(options.run)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in (*BASELINES, "occlusion")}
    words = list(content_words(translator, options.sentences))
    started = time.perf_counter()
    for sentence, tokens, word, aligned in words:
        for baseline in BASELINES:
            first = baseline == BASELINES[0]
            found = attribute_word(translator, sentence, word, target=tokens, occlusion=first, baseline=baseline)
            facts = {"error": found.completeness_error, "points": found.points}
            measured[baseline].append(facts | ranks(found.source, found.source_scores, aligned))
            if first:
                both = (found.source_scores, found.source_occlusion)
                agreement = {"correlation": float(np.corrcoef(*both)[0, 1])} if len(found.source) > 2 else {}
                measured["occlusion"].append(ranks(found.source, found.source_occlusion, aligned) | agreement)
    result = environment() | {
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "sentences": options.sentences,
        "content_words": len(words),
        "seconds": round(time.perf_counter() - started, 1),
        "same_alone_and_among_others": is_repeatable(translator, words[:5]),
        "results": {name: summarise(rows) for name, rows in measured.items()},
    }
    print(format_json(result["results"]))
    save_result(result, options.out or "attribution")


def content_words(translator: Translator, sentences: int) -> Iterator[tuple[str, list[int], str, list[int]]]:
    """Yield, for content words of correct translations, the sentence, its tokens, the word, and the aligned words."""
    examples = load_examples("test", sentences)
    found = translator.hypotheses([example.pair.source for example in examples], split=False)
    for example, (best, *_) in zip(examples, found, strict=True):
        if best.text != example.pair.target:
            continue
        for index, aligned in align_content_words(example.pair.source, example.words):
            if best.text.count(example.words[index]) == 1:
                yield example.pair.source, best.tokens, example.words[index], aligned


def ranks(labels: list[str], scores: Any, aligned: list[int]) -> dict[str, float]:
    """Return whether an aligned word has the highest score, and whether it is among the two highest."""
    names = [i for i, label in enumerate(labels) if label[0].isalnum()]  # words without punctuation, as in the corpus
    best = np.argsort(-scores, kind="stable")[:2].tolist()
    hits = [index in [names[i] for i in aligned] for index in best]
    return {"top_1": float(hits[0]), "top_2": float(any(hits))}


def summarise(rows: list[dict[str, float]]) -> dict[str, float]:
    columns = {
        key: [row[key] for row in rows if key in row] for key in ("top_1", "top_2", "error", "points", "correlation")
    }
    means = {key: round(statistics.fmean(values), 4) for key, values in columns.items() if values}
    if columns["error"]:
        means["largest_error"] = round(max(columns["error"]), 5)
    return means


def is_repeatable(translator: Translator, words: list[Any]) -> bool:
    """Return whether attributions are equal bit by bit in another order."""

    def attribute(order: list[Any]) -> dict[tuple[str, str], Any]:
        return {(s, word): attribute_word(translator, s, word, target=t).source_scores for s, t, word, _ in order}

    found, reversed_order = attribute(words), attribute(words[::-1])
    return all(np.array_equal(found[key], reversed_order[key]) for key in found)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
