"""Scores and plots of classifiers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.evaluation.classification import calibrate, score, wilson_interval
from regard.evaluation.classification_plots import draw_confusion, draw_reliability

CLASSES = ("a", "b", "c")
PROBABILITIES = np.array([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.9, 0.0], [0.5, 0.2, 0.3]])
LABELS = np.array([0, 1, 1, 1, 0])


def test_scores_match_manual_calculation() -> None:
    scores = score(PROBABILITIES, LABELS, CLASSES)
    assert scores.images == 5
    assert scores.accuracy == 80
    assert scores.top5 is None
    assert scores.confusion.tolist() == [[2, 0, 0], [1, 2, 0], [0, 0, 0]]
    assert scores.loss == pytest.approx(-np.log([0.8, 0.3, 0.7, 0.9, 0.5]).mean())
    a, b, c = scores.by_class
    assert (a.images, a.precision, a.recall, a.f1) == pytest.approx((2, 200 / 3, 100, 80))
    assert (b.images, b.precision, b.recall, b.f1) == pytest.approx((3, 100, 200 / 3, 80))
    assert c.images == 0 and np.isnan([c.precision, c.recall, c.f1]).all()
    assert scores.macro_f1 == pytest.approx(80)
    assert scores.mistakes() == [("b", "a", 1)]


def test_top5_is_reported_for_more_than_five_classes() -> None:
    probabilities = np.tile(np.array([0.3, 0.2, 0.15, 0.12, 0.11, 0.07, 0.05]), (3, 1))
    scores = score(probabilities, np.array([0, 4, 5]), tuple("abcdefg"))
    assert scores.top5 == pytest.approx(200 / 3)
    assert scores.accuracy == pytest.approx(100 / 3)


def test_calibration_matches_manual_calculation() -> None:
    found = calibrate(np.array([0.95, 0.95, 0.15, 1.0]), np.array([True, False, False, True]), bins=10)
    assert found.images.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 3]
    assert found.accuracy[9] == pytest.approx(2 / 3)
    assert found.confidence[9] == pytest.approx(2.9 / 3)
    assert found.error == pytest.approx(100 * (1 * 0.15 + 3 * 0.3) / 4)


@given(st.integers(1, 2000), st.data())
def test_interval_contains_the_proportion_and_stays_within_bounds(number: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, number))
    low, high = wilson_interval(hits, number)
    assert 0 <= low <= 100 * hits / number + 1e-9
    assert 100 * hits / number - 1e-9 <= high <= 100


def test_interval_matches_published_value() -> None:
    assert wilson_interval(80, 100) == pytest.approx((71.11, 86.66), abs=0.01)


def test_plots_show_the_scores() -> None:
    scores = score(PROBABILITIES, LABELS, CLASSES)
    axes = draw_confusion(scores).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == list(CLASSES)
    assert {(*text.get_position(), text.get_text()) for text in axes.texts} == {(0, 0, "2"), (0, 1, "1"), (1, 1, "2")}
    upper, lower = draw_reliability(scores).axes
    assert f"{scores.calibration.error:.2f} %" in upper.get_title("left")
    assert sum(bar.get_height() for bar in lower.patches) == 5
