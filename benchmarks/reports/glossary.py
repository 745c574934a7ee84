"""Translation with a glossary: benchmarks/glossary.py."""

from .markdown import cite, paragraphs, table
from .results import Result


def write_glossary(result: Result) -> str:
    """Share of the terms kept and BLEU, with all terms and with those that the references contain."""
    rows = [_row(row, part) for row in result["rows"] for part in ("all_terms", "terms_of_reference")]
    return paragraphs(
        table(("test set", "glossary", "terms kept without and with it", "BLEU without and with it"), rows),
        f"{result['rows'][0]['terms']} terms for each test set, beam 5, constraints only. "
        + " ".join(map(_describe, result["rows"])),
    )


def _describe(row: Result) -> str:
    """Cite the measurement of a test set."""
    note = f"; {row['note']}" if "note" in row else ""
    return f"{row['name']}: signature `{row['bleu_without']['signature']}`; {cite(row, 'sacrebleu')}{note}."


def _row(row: Result, part: str) -> tuple[str, ...]:
    found = row[part]
    name = "whole" if part == "all_terms" else "terms whose translation the reference has"
    kept = f"{found['kept_share_without']:.1%}, **{found['kept_share']:.1%}** of {found['occurrences']:,}"
    return row["name"], name, kept, f"{row['bleu_without']['value']:.2f}, **{found['bleu']['value']:.2f}**"
