"""Translation of a domain: docs/guides/domain.md followed with the strings of Python's documentation."""

from .markdown import begin_sentence, cite, paragraphs, table
from .results import Result


def write_domain(result: Result) -> str:
    """Scores of each training, of translation with a glossary, and of the export."""
    rows = [
        _score_row(f"`{_settings(row['settings'])}`" if row["settings"] else "defaults", row) for row in result["rows"]
    ]
    signatures = (result["rows"][0][metric]["signature"] for metric in ("bleu", "chrf"))
    times = ", ".join(f"{row['training_seconds']:.0f}" for row in result["rows"])
    beside = f" beside {result['beside']}" if "beside" in result else ""
    return paragraphs(
        table(("training", "BLEU", "chrF"), rows),
        f"{begin_sentence(result['what'])}; training took {times} s{beside}; signatures "
        f"{' and '.join(f'`{one}`' for one in signatures)}; {cite(result)}.",
        _write_glossary(result),
        _write_export(result),
    )


def _settings(settings: list[str]) -> str:
    return " ".join(f"--set {one}" for one in settings)


def _score_row(name: str, scores: Result) -> tuple[str, ...]:
    return name, f"{scores['bleu']['value']:.2f}", f"{scores['chrf']['value']:.2f}"


def _write_glossary(result: Result) -> str:
    if "glossary" not in result:
        return ""
    glossary = result["glossary"]
    rows = ((*_score_row(row["name"], row), f"{row['terms']} of {glossary['terms']}") for row in glossary["rows"])
    required = f"{glossary['in_references']} of {glossary['terms']} required translations are in the references"
    return paragraphs(
        f"The run with the best validation, with the translations of {glossary['entries']} terms required and beam 8; "
        f"{glossary['strings']} test strings contain a term, and {required}:",
        table(("translation", "BLEU", "chrF", "required translations"), rows),
    )


def _write_export(result: Result) -> str:
    if "exported" not in result:
        return ""
    exported = result["exported"]
    scores = f"{exported['bleu']['value']:.2f} BLEU, {exported['chrf']['value']:.2f} chrF"
    return (
        f"Exported to CTranslate2 with int8 weights ({exported['size'] / 1e6:.1f} MB): {scores}, beam 5, in "
        f"{exported['seconds']:.0f} s; {cite(exported, 'ctranslate2')}."
    )
