"""Translate with a glossary: the share of its terms that translations keep, and BLEU, with and without it.

    python benchmarks/glossary.py DATA OUT [--only NAME ...] [--run NAME=FOLDER ...] [--set group.key=value ...]
    python benchmarks/glossary.py DATA OUT --lines 3000 --set training.steps=300      # a trial on a CPU

DATA contains the folders pydocs-en-zh and tatoeba-en-de, each with train, valid and test as .en and .zh or .de, .xz or
.gz. For each of them a model is trained in OUT, unless --run gives one, and 100 terms are chosen: source words and the
translations that co-occur with them in the training data and occur in the references of the test set. The test set is
translated without a glossary, with the whole glossary, and, as in Dinu et al. (2019), with the terms of each sentence
whose translation its reference has. Writes OUT/glossary.json. Both parts together take about 3 minutes on one H200.
"""

import argparse
import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from harness import environment, save_result

from regard.data.text.glossary import Glossary, find_kept, find_target
from regard.data.text.inflection import is_form_of
from regard.data.text.readers import Pair, read_pairs
from regard.decoding.settings import SearchSettings
from regard.evaluation.metrics import bleu
from regard.ops.dispatch import choose_device
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator
from regard.training.run import run_recipe
from regard.training.tasks.registry import load_recipe

SHARED = ("model.dropout=0.2", "training.valid_sentences=200", "training.checkpoint_every=100000")
CORPORA: dict[str, tuple[str, ...]] = {
    "pydocs-en-zh": ("batch.tokens=8192", "training.steps=2500", "training.validate_every=1250"),
    "tatoeba-en-de": (
        "model.width=512",
        "model.heads=8",
        "model.hidden=1024",
        "tokenizer.size=12000",
        "optim.lr=1.5e-3",
        "batch.tokens=16384",
        "training.steps=3000",
        "training.validate_every=1500",
    ),
}
"""Changes to the default settings."""
BEAM = 5
TERMS = 100
MIN_COUNT = 20
"""Training sentences with a term."""
MIN_PRECISION = 0.7
"""Share of them whose target has the translation of the term."""
FREQUENT_WORDS = 100
MIN_DICE = 0.4
"""Dice coefficient of a term and its translation."""
SAMPLE = 150
"""Number of training sentences of a word in which its translation is sought."""
MIN_SHARE, MAX_LOSS = 0.95, 0.5


class Corpus(NamedTuple):
    name: str
    source: str
    target: str
    train: list[Pair]
    test: list[Pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--run", action="append", default=[], metavar="NAME=FOLDER", help="a trained run of a corpus")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--lines", type=int, help="at most so many training and a tenth of test lines, for a trial")
    arguments = parser.parse_args()
    runs = dict(one.split("=", 1) for one in arguments.run)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "what": f"terms kept and BLEU with and without a glossary of {TERMS} terms, beam {BEAM}",
        "acceptance": {"kept_share": MIN_SHARE, "bleu_loss": MAX_LOSS},
        "rows": [],
    }
    for name in arguments.only:
        corpus = read_corpus(arguments.data, name, arguments.lines)
        started = time.perf_counter()
        glossary = choose_terms(corpus)
        print(f"== {name}: {len(glossary)} terms chosen in {time.perf_counter() - started:.1f} s", flush=True)
        write_glossary(glossary, arguments.out / f"{name}.tsv")
        training = {} if name in runs else train(corpus, arguments.data, arguments.out / name, arguments.changes)
        translator = Translator.load(Path(runs.get(name, arguments.out / name)), device=choose_device("auto"))
        row = {"name": name, "terms": len(glossary), "sentences": len(corpus.test), **training}
        about = environment(choose_device("auto"), "sacrebleu")
        result["rows"].append(row | compare(translator, corpus, glossary) | about)
        save_result(result, arguments.out / "glossary.json")
        print_row(result["rows"][-1])


def read_corpus(data: Path, name: str, lines: int | None) -> Corpus:
    _, source, target = name.split("-")
    train, test = (
        list(read_pairs(find(data / name, split, source), find(data / name, split, target)))
        for split in ("train", "test")
    )
    return Corpus(name, source, target, train[:lines], test if lines is None else test[: lines // 10])


def find(folder: Path, split: str, language: str) -> Path:
    (path,) = folder.glob(f"{split}.{language}*")
    return path


def train(corpus: Corpus, data: Path, out: Path, changes: Sequence[str]) -> dict[str, Any]:
    folder = data / corpus.name
    files = {
        f"data.{prefix}{side}": str(find(folder, split, code))
        for prefix, split in (("", "train"), ("valid_", "valid"))
        for side, code in (("source", corpus.source), ("target", corpus.target))
    }
    settings = [*SHARED, *CORPORA[corpus.name], *changes]
    overrides = {**files, "data.languages": [corpus.source, corpus.target]}
    latest = {setting.partition("=")[0]: setting for setting in settings}
    outcome = run_recipe(load_recipe(None, list(latest.values()), overrides), out)
    return {"settings": settings, "steps": outcome.steps, "training_seconds": round(outcome.seconds, 1)}


# Terms


def choose_terms(corpus: Corpus) -> Glossary:
    """Return the most frequent source words of the test set with their most associated targets.

    No two of them have the same target, which occurs in a reference of the test set.
    """
    words = [set(split_words(pair.source)) for pair in corpus.train]
    counts = Counter(chain.from_iterable(words))
    frequent = {word for word, _ in counts.most_common(FREQUENT_WORDS)}
    in_test = Counter(word for pair in corpus.test for word in set(split_words(pair.source)))
    candidates = {word for word in in_test if counts[word] >= MIN_COUNT and word not in frequent}
    rows = find_rows(words, candidates, corpus.source)
    totals = Counter(part for pair in corpus.train for part in split_target(pair.target, corpus.target))
    terms: dict[str, str] = {}  # source word by translation
    for word in sorted(candidates, key=lambda word: (-in_test[word], word)):
        if len(terms) == TERMS:
            break
        step = -(-len(rows[word]) // SAMPLE)
        sample = [corpus.train[row] for row in rows[word][::step]]
        target = best_target(sample, len(rows[word]) / len(sample), totals, corpus.target)
        if not target or target in terms:
            continue
        one = Glossary([(word, target)])
        found = [(one.find(pair.source, corpus.source), pair.target) for pair in sample]
        kept = [value for matches, text in found for value in find_kept(text, matches)]
        if kept and sum(kept) >= MIN_PRECISION * len(kept):
            used = any(one.find(s, corpus.source) and find_target(t, target) for s, t in corpus.test)
            terms |= {target: word} if used else {}
    return Glossary([(word, target) for target, word in terms.items()])


def find_rows(texts: Sequence[set[str]], candidates: set[str], language: str) -> dict[str, list[int]]:
    """Return the texts in which each candidate occurs, also in inflected forms, as a glossary finds them."""
    by_start: dict[str, list[str]] = defaultdict(list)
    for candidate in candidates:
        by_start[candidate[:2]].append(candidate)
    terms: dict[str, list[str]] = {}
    for word in set(chain.from_iterable(texts)):
        terms[word] = [term for term in by_start[word[:2]] if is_form_of(word, term, language)]
    rows: dict[str, list[int]] = defaultdict(list)
    for row, words in enumerate(texts):
        for term in {term for word in words for term in terms[word]}:
            rows[term].append(row)
    return rows


def split_words(text: str) -> list[str]:
    """Return the words of an English text that may be terms: in lower case, of four letters or more."""
    return re.findall(r"(?<![\w`*:.])[a-z]{4,}(?![\w`*:])", text)


def split_target(text: str, language: str) -> set[str]:
    """Return what may be a translation: words, in Chinese two to four consecutive Han characters."""
    if language != "zh":
        return set(re.findall(r"[^\W\d_]{3,}", text))
    runs = re.findall("[\u4e00-\u9fff]{2,}", text)
    return {run[i : i + n] for run in runs for n in (2, 3, 4) for i in range(len(run) - n + 1)}


def best_target(sample: list[Pair], weight: float, totals: Counter[str], language: str) -> str:
    """Return the part of the targets with the highest Dice coefficient, the longest of equal ones, if it is enough."""
    together = Counter(part for pair in sample for part in split_target(pair.target, language))
    likely = {part: count for part, count in together.items() if count >= MIN_PRECISION * len(sample)}
    scores = {part: 2 * n * weight / (len(sample) * weight + totals[part]) for part, n in likely.items()}
    best = max(scores, key=lambda part: (round(scores[part], 3), len(part), part), default="")
    return best if scores.get(best, 0.0) >= MIN_DICE else ""


def write_glossary(glossary: Glossary, path: Path) -> None:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in glossary.terms), encoding="utf-8")


# Measurement


def compare(translator: Translator, corpus: Corpus, glossary: Glossary) -> dict[str, Any]:
    """Translate the test set without and with the glossary, and count the kept terms."""
    matches = [glossary.find(pair.source, corpus.source) for pair in corpus.test]
    in_reference = [
        Glossary({match.term for match in found if find_target(pair.target, match.term.target)})
        for pair, found in zip(corpus.test, matches, strict=True)
    ]
    plain, plain_seconds = translate(translator, corpus.test, [Glossary(())] * len(corpus.test))
    row: dict[str, Any] = {"bleu_without": score(plain, corpus), "seconds_without": plain_seconds}
    for name, glossaries in (("all_terms", [glossary] * len(plain)), ("terms_of_reference", in_reference)):
        texts, seconds = translate(translator, corpus.test, glossaries)
        wanted = [one.find(pair.source, corpus.source) for one, pair in zip(glossaries, corpus.test, strict=True)]
        occurrences = sum(map(len, wanted))
        kept_without, kept = (
            sum(sum(find_kept(text, found)) for text, found in zip(result, wanted, strict=True))
            for result in (plain, texts)
        )
        with_terms = score(texts, corpus)
        loss = row["bleu_without"]["value"] - with_terms["value"]
        row[name] = {
            "sentences": sum(map(bool, wanted)),
            "changed_sentences": sum(a != b for a, b in zip(plain, texts, strict=True)),
            "occurrences": occurrences,
            "kept_in_references": sum(
                sum(find_kept(pair.target, found)) for pair, found in zip(corpus.test, wanted, strict=True)
            ),
            "kept_without": kept_without,
            "kept": kept,
            "kept_share_without": round(kept_without / max(1, occurrences), 4),
            "kept_share": round(kept / max(1, occurrences), 4),
            "bleu": with_terms,
            "bleu_loss": round(loss, 2),
            "accepted": occurrences > 0 and kept >= MIN_SHARE * occurrences and loss <= MAX_LOSS,
            "seconds": seconds,
        }
    return row


def translate(translator: Translator, test: Sequence[Pair], glossaries: Sequence[Glossary]) -> tuple[list[str], float]:
    """Translate the test set, each text with its glossary, and return the time in seconds too."""
    started = time.perf_counter()
    sources, settings = [pair.source for pair in test], SearchSettings(beam=BEAM)
    found: list[list[Hypothesis]] = translator.hypotheses(sources, settings, split=False, glossaries=glossaries)
    return [hypotheses[0].text for hypotheses in found], round(time.perf_counter() - started, 1)


def score(texts: Sequence[str], corpus: Corpus) -> dict[str, Any]:
    tokenisation = "zh" if corpus.target == "zh" else "13a"
    return bleu(texts, [pair.target for pair in corpus.test], tokenisation).as_dict()


def print_row(row: dict[str, Any]) -> None:
    print(f"{row['name']}: BLEU {row['bleu_without']['value']:.2f} without glossary, {row['seconds_without']} s")
    for name in ("all_terms", "terms_of_reference"):
        part = row[name]
        print(
            f"  {name}: {part['kept']} of {part['occurrences']} terms kept ({part['kept_share']:.1%}, without glossary "
            f"{part['kept_share_without']:.1%}), BLEU {part['bleu']['value']:.2f} (loss {part['bleu_loss']:.2f}), "
            f"{part['changed_sentences']} sentences changed, {part['seconds']} s, accepted: {part['accepted']}"
        )


if __name__ == "__main__":
    main()
