"""Translate real documents with stub translators, and compare their structure as their own libraries read it.

    python benchmarks/documents.py FILE_OR_FOLDER ... [--out documents]

Every file with the suffix of a document is translated by three translators (tests/data/documents/stubs.py): one that
changes nothing, one that reverses the words, which moves tags and destroys placeholders, and one without alignments.
The first must return the same bytes; formats with source and target (.po, XLIFF, TMX) are compared with its result.
Of the others, the structure must be the same (tests/data/documents/structure.py). Of .csv files, the column "text" or
the first one is translated. Writes benchmarks/results/documents.json, and fails if anything differs.
"""

import argparse
import csv
import io
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))  # for tests

from harness import environment, save_result

from regard.data.documents.document import Document
from regard.data.documents.formats import find_format, parse_document
from regard.errors import UserError
from regard.pipelines.translate_document import translate_document
from tests.data.documents.office import members
from tests.data.documents.structure import READERS
from tests.data.documents.stubs import TRANSLATORS

BILINGUAL = {"po", "xliff", "tmx"}
PACKAGES = ("python-docx", "odfdo", "polib", "pysubs2", "webvtt-py", "translate-toolkit", "lxml", "html5lib")


def find_documents(paths: list[Path]) -> Iterator[Path]:
    """Yield the files with the suffix of a document, also those in folders."""
    for path in paths:
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        yield from (one for one in files if find_format(one.name) is not None)


def check(path: Path, format: str) -> Counter[str]:
    """Translate a file with every translator, and count segments and problems."""
    data, counts = path.read_bytes(), Counter[str](files=1)
    column = _column(data) if format == "csv" else None
    read = READERS[path.suffix[1:]] if column is None else partial(_other_columns, column=column)

    def parse() -> Document:
        return parse_document(data, path.name, languages=("en", "zh"), column=column)

    try:
        unchanged, report = translate_document(parse(), TRANSLATORS["identity"])
    except UserError as error:
        print(f"rejected: {error}")
        return counts + Counter(rejected=1)
    counts["segments"] = report.segments
    if format not in BILINGUAL:
        same = members(unchanged) == members(data) if format in ("docx", "odt") else unchanged == data
        counts["equal bytes" if same else "other bytes"] += 1
    expected = read(unchanged)
    for name in ("reverse", "unaligned"):
        translated, report = translate_document(parse(), TRANSLATORS[name])
        same = read(translated) == expected
        counts["equal structure" if same else "other structure"] += 1
        if not same:
            print(f"other structure: {path} ({name})")
        counts["left in the source language"] += sum("markup" in one.reason for one in report.untranslated)
    return counts


def _read_csv(data: bytes) -> list[list[str]]:
    text = data.decode("utf-8-sig")
    dialect = csv.Sniffer().sniff(text.splitlines()[0], delimiters=",;\t|")
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=dialect.delimiter))


def _column(data: bytes) -> str:
    """Return the name or the number of the column to translate."""
    return "text" if "text" in _read_csv(data)[0] else "0"


def _other_columns(data: bytes, column: str) -> list[list[str]]:
    rows = _read_csv(data)
    index = rows[0].index("text") if column == "text" else 0
    return [row[:index] + row[index + 1 :] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--out", default="documents", help="result file")
    arguments = parser.parse_args()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for path in find_documents(arguments.paths):
        format, started = str(find_format(path.name)), time.perf_counter()
        rows[format] += check(path, format)
        if (seconds := time.perf_counter() - started) > 10:
            print(f"slow: {path} ({seconds:.0f} s)")
    listed = [{"format": format, **counts} for format, counts in sorted(rows.items())]
    print("\n".join(map(json.dumps, listed)))
    result: dict[str, Any] = {"rows": listed, **environment("cpu", *PACKAGES)}
    save_result(result, arguments.out)
    if any(counts["other bytes"] or counts["other structure"] for counts in rows.values()):
        sys.exit("some documents differ")


if __name__ == "__main__":
    main()
