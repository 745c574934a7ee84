"""Mix known noise into a parallel corpus, and measure how much of it `regard clean` finds.

    python benchmarks/noisy_mix.py MIX --train train.en.gz train.de.gz --test val.en.gz val.de.gz \\
        --other train.fr.gz --score test_2016_flickr.en.gz test_2016_flickr.de.gz

MIX/noisy.en and MIX/noisy.de get all pairs of the corpus and noise, in random order; MIX/labels.tsv names the kind of
each pair and the line of the corpus that it was made from, counted from 0. The shares are those of the whole mix: 10 %
copies, 10 % repeats, 5 % misaligned pairs, 5 % in a wrong language, 5 % pairs of the test set. Then the files are
cleaned with the default settings into MIX/clean.en and MIX/clean.de, with MIX/report.html and MIX/report.json, and
MIX/noisy-mix.json states what was found and lost. The files of --score are copied, for benchmarks/cleaning.py.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness import environment, save_result

from regard.data.text.readers import Pair, language_in_name, read_lines, read_pairs

SHARES = {"copy": 0.10, "repeat": 0.10, "misaligned": 0.05, "language": 0.05, "overlap": 0.05}
"""Share of each kind of noise in the mix; the rest are the pairs of the corpus."""


class Labelled(NamedTuple):
    """A pair of the mix: "clean" or the kind of noise, and the index of the pair in the corpus, -1 for test pairs."""

    pair: Pair
    kind: str
    origin: int


def make_mix(
    corpus: Sequence[Pair], test: Sequence[Pair], other: Sequence[str] | None = None, seed: int = 1
) -> list[Labelled]:
    """Return all pairs of the corpus with noise, in random order.

    Args:
        corpus: Clean pairs.
        test: Pairs of which some are put into the mix.
        other: Text in a third language, translations of the sources if there are as many lines; without it, all pairs
            in a wrong language have their sides exchanged.
        seed: Seed of all choices.
    """
    rng = random.Random(seed)
    total = len(corpus) / (1 - sum(SHARES.values()))
    mixed = [Labelled(pair, "clean", origin) for origin, pair in enumerate(corpus)]
    for kind, share in SHARES.items():
        for number in range(round(share * total)):
            origin = rng.randrange(len(corpus))
            pair = corpus[origin]
            if kind == "copy":
                text = pair[number % 2]
                made = Pair(text, vary(text, rng) if rng.random() < 0.5 else text)
            elif kind == "repeat":
                made = Pair(*(vary(text, rng) for text in pair)) if rng.random() < 0.5 else pair
            elif kind == "misaligned":
                target = rng.choice(corpus).target
                while target == pair.target:
                    target = rng.choice(corpus).target
                made = Pair(pair.source, target)
            elif kind == "language" and other and number % 2:
                made = Pair(pair.source, other[origin] if len(other) == len(corpus) else rng.choice(other))
            elif kind == "language":
                made = Pair(pair.target, pair.source)
            else:
                origin, made = -1, rng.choice(test)
            mixed.append(Labelled(made, kind, origin))
    rng.shuffle(mixed)
    return mixed


def vary(text: str, rng: random.Random) -> str:
    """Return a text with other case, punctuation or spaces."""
    changes = [
        lambda: text.upper(),
        lambda: text.rstrip(".!?。 ") + rng.choice([" !", "...", ""]),
        lambda: text.replace(" ", "  ", 1) + " ",
        lambda: f"- {text}",
    ]
    return rng.choice(changes)()


def measure(mixed: Sequence[Labelled], kept: Sequence[bool]) -> dict[str, Any]:
    """Return the share of the noise that was removed, by kind, and the share of clean pairs that was lost.

    Of a pair and its repeats, one may stay, whichever comes first. Pairs that the corpus itself contains several times
    count once, and test pairs that it contains count as noise.
    """
    groups: dict[tuple[str, Pair], list[bool]] = defaultdict(list)
    texts = {one.origin: one.pair for one in mixed if one.kind == "clean"}
    tests = {text for one in mixed if one.kind == "overlap" for text in one.pair}
    noise, found = Counter[str](), Counter[str]()
    for one, stays in zip(mixed, kept, strict=True):
        if one.kind in ("clean", "repeat"):
            groups[one.kind, texts[one.origin]].append(stays)
        else:
            noise[one.kind] += 1
            found[one.kind] += not stays
    clean = lost = contained = 0
    for pair in texts.values():
        members = groups.pop(("clean", pair), None)
        if members is None:  # the corpus contains the pair several times
            continue
        repeats = groups.pop(("repeat", pair), [])
        if not tests.isdisjoint(pair):
            contained += 1
            continue
        clean += 1
        lost += not any(members + repeats)
        noise["repeat"] += len(repeats)
        found["repeat"] += min(len(repeats), (members + repeats).count(False))
    by_kind = {
        kind: {"made": noise[kind], "found": found[kind], "share": found[kind] / max(1, noise[kind])} for kind in SHARES
    }
    return {
        "noise": {"made": noise.total(), "found": found.total(), "share": found.total() / max(1, noise.total())},
        "by_kind": by_kind,
        "clean": {"distinct": clean, "lost": lost, "share": lost / clean, "not_counted_in_test": contained},
    }


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mix", type=Path)
    parser.add_argument("--train", type=Path, nargs=2, required=True)
    parser.add_argument("--test", type=Path, nargs=2, required=True)
    parser.add_argument("--other", type=Path, help="text in a third language")
    parser.add_argument("--score", type=Path, nargs=2, help="test set of the benchmark, which is not in the mix")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="changes", help="threshold, as for regard clean")
    arguments = parser.parse_args(words)
    corpus, test = list(read_pairs(*arguments.train)), list(read_pairs(*arguments.test))
    other = list(read_lines(arguments.other)) if arguments.other else None
    mixed = make_mix(corpus, test, other, arguments.seed)
    languages = [language_in_name(path) for path in arguments.train]
    arguments.mix.mkdir(parents=True, exist_ok=True)
    write_pairs(arguments.mix, "noisy", languages, [one.pair for one in mixed])
    write_pairs(arguments.mix, "excluded", languages, test)
    if arguments.score:
        write_pairs(arguments.mix, "score", languages, list(read_pairs(*arguments.score)))
    rows = "".join(f"{one.kind}\t{one.origin}\n" for one in mixed)
    (arguments.mix / "labels.tsv").write_text(rows, encoding="utf-8")
    started = time.perf_counter()
    kept = clean(arguments.mix, languages, arguments.changes)
    result = {
        "what": f"noise mixed into {len(corpus):,} pairs {'-'.join(languages)}, found by regard clean",
        "pairs": len(mixed),
        "seconds": round(time.perf_counter() - started, 1),
        **measure(mixed, kept),
        **environment("cpu", "numpy"),
    }
    save_result(result, arguments.mix / "noisy-mix.json")
    print((arguments.mix / "noisy-mix.json").read_text("utf-8"))


def write_pairs(folder: Path, name: str, languages: Sequence[str], pairs: Sequence[Pair]) -> None:
    for side, language in enumerate(languages):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{language}").write_text(text, encoding="utf-8")


def clean(folder: Path, languages: Sequence[str], changes: Sequence[str]) -> list[bool]:
    """Run `regard clean`; return which pairs were kept."""
    noisy, cleaned, excluded = ([folder / f"{name}.{x}" for x in languages] for name in ("noisy", "clean", "excluded"))
    reports = [folder / f"report.{suffix}" for suffix in ("html", "json")]
    for path in (*cleaned, *reports):
        path.unlink(missing_ok=True)
    words = ["--src", noisy[0], "--tgt", noisy[1], "--out-src", cleaned[0], "--out-tgt", cleaned[1]]
    words += [word for path in excluded for word in ("--exclude", path)]
    words += [word for path in reports for word in ("--report", path)]
    words += [word for change in changes for word in ("--set", change)]
    subprocess.run([sys.executable, "-m", "regard", "clean", *map(str, words)], check=True)
    return align(list(read_pairs(*noisy)), list(read_pairs(*cleaned)))


def align(pairs: Sequence[Pair], kept: Sequence[Pair]) -> list[bool]:
    """Return which pairs are among the kept ones, of which the order is the same."""
    result, position = [], 0
    for pair in pairs:
        found = position < len(kept) and kept[position] == pair
        position += found
        result.append(found)
    assert position == len(kept), "the order of the pairs has changed"
    return result


if __name__ == "__main__":
    main()
