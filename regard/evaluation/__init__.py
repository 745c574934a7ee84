"""Scores that carry their protocol: metrics, reports, comparisons that refuse what cannot be compared."""

from regard.evaluation.comparison import compare, compare_by_resampling, compare_with_any
from regard.evaluation.metrics import (
    Metrics,
    Score,
    bleu,
    check_tokenisation,
    choose_closest,
    chrf,
    exact_match,
    ter,
    tokenisation_for,
)
from regard.evaluation.report import (
    Entrant,
    Report,
    System,
    check_recordable,
    doubt_references,
    evaluate,
    fingerprint_model,
    read_reports,
    record,
)

__all__ = [
    "Entrant",
    "Metrics",
    "Report",
    "Score",
    "System",
    "bleu",
    "check_recordable",
    "check_tokenisation",
    "choose_closest",
    "chrf",
    "compare",
    "compare_by_resampling",
    "compare_with_any",
    "doubt_references",
    "evaluate",
    "exact_match",
    "fingerprint_model",
    "read_reports",
    "record",
    "ter",
    "tokenisation_for",
]
