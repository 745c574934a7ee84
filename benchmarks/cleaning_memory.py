"""Measure the memory and the time of `regard clean` on a large corpus, in a process of its own.

    python benchmarks/cleaning_memory.py train.en.gz train.de.gz [--pairs 5000000] [--work FOLDER]
    python benchmarks/cleaning_memory.py train.en.gz train.de.gz --pairs 1000000 --without-py3langid

The corpus consists of the given pairs, repeated with another name at the end of both sides each time, so that no pair
is a near duplicate of another. Adds a row to benchmarks/results/cleaning-cpu.json, or to the file of --out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice, product
from pathlib import Path

from harness import RESULTS, environment, save_result

from regard.data.text.readers import Pair, language_in_name, read_pairs

ALLOWED_MB = 1000
WITHOUT_PY3LANGID = "import sys; sys.modules['py3langid'] = None; from regard.cli import main; main()"
CONSONANTS, VOWELS = "bdfghklmnprstvz", "aeiou"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--work", type=Path, help="folder for the temporary files, about 1 GB")
    parser.add_argument("--without-py3langid", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "cleaning-cpu.json")
    arguments = parser.parse_args(words)
    pairs = list(read_pairs(arguments.source, arguments.target))
    languages = [language_in_name(path) for path in (arguments.source, arguments.target)]
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        noisy, cleaned = ([Path(folder) / f"{name}.{x}" for x in languages] for name in ("noisy", "clean"))
        with noisy[0].open("w", encoding="utf-8") as source, noisy[1].open("w", encoding="utf-8") as target:
            for pair in islice(vary(pairs), arguments.pairs):
                source.write(f"{pair.source}\n")
                target.write(f"{pair.target}\n")
        megabytes = sum(path.stat().st_size for path in noisy) / 1e6
        options = ["--src", noisy[0], "--tgt", noisy[1], "--out-src", cleaned[0], "--out-tgt", cleaned[1]]
        options += ["--report", Path(folder) / "report.json"]
        program = ["-c", WITHOUT_PY3LANGID] if arguments.without_py3langid else ["-m", "regard"]
        started = time.perf_counter()
        subprocess.run([sys.executable, *program, "clean", *map(str, options)], check=True)
        seconds = time.perf_counter() - started
        report = json.loads((Path(folder) / "report.json").read_text("utf-8"))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = used.ru_utime + used.ru_stime
    row = {
        "pairs": arguments.pairs,
        "py3langid": not arguments.without_py3langid,
        "corpus_mb": round(megabytes),
        "peak_rss_mb": round(used.ru_maxrss / 1024),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "pairs_per_cpu_second": round(arguments.pairs / cpu_seconds),
        "kept": report["kept"],
        "removed": {rule: number for rule, number in report["removed"].items() if number},
        **environment("cpu", "numpy", "py3langid"),
    }
    rows = json.loads(arguments.out.read_text("utf-8"))["rows"] if arguments.out.exists() else []
    rows = [one for one in rows if (one["pairs"], one["py3langid"]) != (row["pairs"], row["py3langid"])]
    what = "regard clean in one process with one thread: memory and CPU time"
    save_result({"what": what, "allowed_mb": ALLOWED_MB, "rows": [*rows, row]}, arguments.out)
    print(json.dumps(row, indent=1))
    assert row["peak_rss_mb"] < ALLOWED_MB, f"{row['peak_rss_mb']} MB"


def vary(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the pairs again and again, each time with another name at the end of both sides."""
    yield from pairs
    for number in count():
        name = next(islice(names(), number, None))
        for source, target in pairs:
            yield Pair(f"{source} {name}", f"{target} {name}")


def names() -> Iterator[str]:
    """Yield different names of six letters."""
    for letters in product(*(CONSONANTS, VOWELS) * 3):
        yield "".join(letters).capitalize()


if __name__ == "__main__":
    main()
