"""Scores that carry their protocol: metrics, reports, comparisons that refuse what cannot be compared."""

from regard.evaluation.comparison import compare, compare_with_stored, paired_bootstrap
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
    check_scores_writable,
    evaluate,
    fingerprint_model,
    read_reports,
    record,
    tokenisation_warning,
)

__all__ = [
    "Entrant",
    "Metrics",
    "Report",
    "Score",
    "System",
    "bleu",
    "check_scores_writable",
    "check_tokenisation",
    "choose_closest",
    "chrf",
    "compare",
    "compare_with_stored",
    "evaluate",
    "exact_match",
    "fingerprint_model",
    "paired_bootstrap",
    "read_reports",
    "record",
    "ter",
    "tokenisation_for",
    "tokenisation_warning",
]
