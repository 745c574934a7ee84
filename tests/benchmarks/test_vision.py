"""benchmarks/vision.py and the formatting of its results."""

import json

from benchmarks import harness, vision


def test_results_contain_the_training_log() -> None:
    entries = [
        {"step": 500, "seconds": 7.116, "images": 128000, "loss": 2.12224919, "lr": 0.00099948408},
        {"step": 500, "seconds": 7.2, "images": 128000, "validation": {"loss": 1.5, "accuracy": 50.0}},
        {"step": 510, "seconds": 8.0, "images": 130560, "loss": 1.94757146, "lr": 1.1610107e-08},
    ]
    assert vision.shorten_log(entries) == [[500, 7.1, 2.1222, 0.0009995], [510, 8.0, 1.9476, 1.161e-08]]


def test_json_has_lists_of_numbers_on_one_line() -> None:
    log = [[500, 7.1, 2.1222, 0.0009995], [510, 8.0, 1.9476, 1.161e-08]]
    result = {"what": "[ a, b ]", "names": ["c", "d"], "none": [], "checks": [{"interval": [1.0, 2.5]}], "log": log}
    text = harness.format_json(result)
    assert json.loads(text) == result
    assert "\n  [500, 7.1, 2.1222, 0.0009995],\n" in text
