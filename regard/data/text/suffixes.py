"""What a file's name says about its content: a kind, such as .tsv, with or without a compression behind it."""

from pathlib import Path

COMPRESSIONS = (".gz", ".xz", ".zst")
BOTH_SIDES = (".tsv", ".jsonl", ".parquet")
"""Kinds of file that hold a sentence and its translation together."""


def kind_of(path: Path) -> str:
    """The suffix before a compression, in small letters: ".tsv" of corpus.TSV.gz, "" of a name without one."""
    if path.suffix.lower() in COMPRESSIONS:
        path = path.with_suffix("")
    return path.suffix.lower()
