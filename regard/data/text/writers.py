"""Writers of parallel text: line files, TSV and JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path

from regard.data.text.readers import Pair, format_suffix


def format_pairs(paths: Sequence[Path], pairs: Sequence[Pair]) -> list[str]:
    """Format pairs as text: one string per line file, or a single one for a .tsv or .jsonl file.

    Line breaks and, in .tsv, tabs become spaces.
    """
    if len(paths) == 2:
        return ["".join([f"{_join_lines(pair[side])}\n" for pair in pairs]) for side in (0, 1)]
    if format_suffix(paths[0]) == ".jsonl":
        return ["".join([json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs])]
    return ["".join(["\t".join(_join_lines(text).replace("\t", " ") for text in pair) + "\n" for pair in pairs])]


def _join_lines(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")
