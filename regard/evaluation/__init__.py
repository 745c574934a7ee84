"""Evaluation of translations: metrics with their signatures, reports with their conditions, and comparisons."""

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
from regard.evaluation.report import Report, check_scores_writable, read_reports, save_report
from regard.evaluation.system import System, SystemOutput, evaluate, fingerprint_model, tokenisation_warning

__all__ = [
    "Metrics",
    "Report",
    "Score",
    "System",
    "SystemOutput",
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
    "save_report",
    "ter",
    "tokenisation_for",
    "tokenisation_warning",
]
