"""Faults that the benchmark of confidences makes, and its tables."""

import random

from benchmarks.confidence import drop_name, drop_number, repeat_phrase
from benchmarks.reports.confidence import write_calibration, write_flags
from regard.data.text.readers import Pair

PAIR = Pair("He met Tom on 12 May", "Er traf Tom am 12. Mai")


def test_faults_change_the_reference_only() -> None:
    for fault in (repeat_phrase, drop_number, drop_name):
        for seed in range(20):
            changed = fault(PAIR, random.Random(seed))
            if changed is not None:
                assert changed.source == PAIR.source
                assert changed.target != PAIR.target
    assert "12" not in (drop_number(PAIR, random.Random(0)) or PAIR).target
    assert "Tom" not in (drop_name(PAIR, random.Random(0)) or PAIR).target
    assert drop_number(Pair("12 dogs", "zwölf Hunde"), random.Random(0)) is None


def test_tables_have_a_row_for_each_run() -> None:
    reject = {"0.4": {"listed": 0.25, "wrong_found": 0.5, "right_of_others": 0.75}}
    measured = {"sentences": 1000, "sentence_ece": 0.0301, "token_ece": 0.0091, "right_sentences": 0.585}
    measured |= {"right_tokens": 0.55, "reject": reject}
    flags = {"repetition": {"faults": 60, "recall": 0.9, "unchanged": 70, "false_alarms": 0.0, "precision": 1.0}}
    flags["missing-name"] = {"faults": 3, "recall": 0.0, "unchanged": 9, "false_alarms": 0.0, "precision": None}
    run = {"test": measured, "other": measured, "flags": flags, "versions": {"torch": "2"}, "date": "2026-01-01"}
    result = {"runs": {"a": run}}
    text = write_calibration(result)
    assert "| a | 1,000 | 58.5 % | 0.030 | 55.0 % | 0.009 |" in text
    assert "| a, other text | 0.4 | 25.0 % | 50.0 % | 75.0 % |" in text
    assert "| `repetition` | a | 60 | 90.0 % | 70 | 0.0 % | 100.0 % |" in write_flags(result, "zh")
    assert "missing-name" not in write_flags(result)
    assert text.endswith("a: torch 2, 2026-01-01.")
