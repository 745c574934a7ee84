"""Calibration: agreement with references, logistic regression, calibration error, and `regard calibrate`."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from regard.errors import UserError
from regard.evaluation.calibration import (
    agrees,
    calibrate,
    calibration_error,
    find_agreement,
    fit_logistic,
    reliability,
)
from regard.pipelines.confidence import Calibration
from regard.pipelines.hypothesis import Hypothesis
from tests.conftest import Command, toy_pairs


def longest_common_subsequence(a: Sequence[int], b: Sequence[int]) -> int:
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            table[i + 1, j + 1] = table[i, j] + 1 if one == other else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


def test_agreement_marks_a_longest_common_subsequence() -> None:
    rng = random.Random(3)
    sides = [[[rng.randrange(5) for _ in range(rng.randrange(12))] for _ in range(150)] for _ in range(2)]
    for marked, translation, reference in zip(find_agreement(*sides), *sides, strict=True):
        assert len(marked) == len(translation)
        assert marked.sum() == longest_common_subsequence(translation, reference)
        rest = iter(reference)
        assert all(token in rest for token, common in zip(translation, marked, strict=True) if common)


def test_agreement_of_a_sentence_counts_both_sides() -> None:
    assert agrees(2, 4, 4)
    assert not agrees(1, 4, 4)
    assert not agrees(2, 2, 8)  # all tokens are right, but most of the reference is missing


def test_fit_recovers_probabilities_and_is_calibrated() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20_000, 2)) * (1.0, 10.0) + (0.0, 5.0)
    probabilities = 1 / (1 + np.exp(-(1.5 * features[:, 0] - 0.2 * (features[:, 1] - 5))))
    labels = rng.random(len(features)) < probabilities
    predicted = fit_logistic(features[:10_000], labels[:10_000], (0.0, 0.0))(features[10_000:])
    assert np.abs(predicted - probabilities[10_000:]).mean() < 0.02
    assert calibration_error(predicted, labels[10_000:]) < 0.02


@pytest.mark.parametrize("value", [True, False])
def test_fit_to_equal_labels_stays_below_certainty(value: bool) -> None:
    features = np.random.default_rng(0).normal(size=(100, 2))
    predicted = fit_logistic(features, np.full(100, value), (0.0, 0.0))(features)
    assert ((predicted > 0.9) & (predicted < 1) if value else (predicted < 0.1) & (predicted > 0)).all()


def test_prior_decides_what_the_data_does_not() -> None:
    """If all sentences of a fit are right, a sentence with far lower probabilities has a lower confidence."""
    usual, unlike = np.full((100, 1), -0.1) + np.random.default_rng(0).normal(size=(100, 1)) * 0.02, np.array([[-3.0]])
    fitted = fit_logistic(usual, np.full(100, True), (4.0,))
    assert fitted(usual).min() > 0.9 and fitted(unlike)[0] < 0.1
    labels = np.random.default_rng(1).random(5000) < 0.5  # data that contradicts the prior
    many = np.random.default_rng(2).normal(size=(5000, 1))
    assert abs(fit_logistic(many, labels, (4.0,)).weights[0]) < 0.1


def test_calibration_error_is_the_distance_of_confidence_and_accuracy() -> None:
    confidences, labels = np.array([0.95, 0.95, 0.15, 0.15]), np.array([True, False, False, False])
    assert calibration_error(confidences, labels) == pytest.approx(0.5 * 0.45 + 0.5 * 0.15)
    assert list(reliability(confidences, labels)) == [(2, pytest.approx(0.15), 0.0), (2, pytest.approx(0.95), 0.5)]
    assert calibration_error(np.array([1.0]), np.array([True])) == 0


def test_error_is_measured_on_sentences_that_were_not_fitted() -> None:
    """Random labels cannot be predicted: confidences are near the share of right sentences, whatever the fit saw."""
    rng = np.random.default_rng(1)
    hypotheses, references = [], []
    for _ in range(60):
        tokens = [int(token) for token in rng.integers(0, 50, 5)]
        log_probs = (-rng.random(6) * 3).tolist()
        hypotheses.append(Hypothesis("a", 0.0, tokens, ["a"] * 5, log_probs, ["b"] * 5, source="b"))
        references.append(tokens if rng.random() < 0.5 else [60] * 5)
    error = calibrate(hypotheses, references, ["a"] * 60).error
    assert (error.sentences, error.tokens) == (60, 300)
    assert error.right_sentences == pytest.approx(error.right_tokens)
    assert 0.02 < error.sentence_ece < 0.3


def test_too_few_sentences_are_rejected() -> None:
    with pytest.raises(UserError, match="3 sentences are too few to calibrate confidence; give 20 or more"):
        calibrate([Hypothesis("a", 0.0)] * 3, [[1]] * 3, ["a"] * 3)


def test_training_calibrates_and_reports_the_error(trained_run: Path) -> None:
    scores = json.loads((trained_run / "best" / "scores.json").read_text(encoding="utf-8"))
    calibration = Calibration.load(trained_run / "best")
    assert scores["confidence"] == calibration.error.model_dump(mode="json")
    assert calibration.error.sentences == 20


def test_calibrate_writes_the_model_folder_and_keeps_its_scores(
    trained_run: Path, tmp_path: Path, command: Command
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run / "best", run)
    (run / "confidence.json").unlink()
    before = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in toy_pairs()[:60]), encoding="utf-8")
    assert "60 sentences" in command("calibrate", run, "--src", pairs, "--beam", 1).out
    assert Calibration.load(run).error.sentences == 60
    after = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    assert after.pop("confidence")["sentences"] == 60
    assert after == {key: value for key, value in before.items() if key != "confidence"}


def test_calibrate_rejects_few_pairs(trained_run: Path, tmp_path: Path, command: Command) -> None:
    pairs = "I love apples\t我喜欢苹果\n" + "\t\n" * 30 + "I love tea\t我喜欢茶\n"
    (tmp_path / "pairs.tsv").write_text(pairs, encoding="utf-8")
    assert "2 pairs with text are too few" in command("calibrate", trained_run, "--src", tmp_path / "pairs.tsv").error
