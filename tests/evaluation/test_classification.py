"""Scores and plots of classifiers."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.data.images.preprocessing import ImagePreprocessing, Pixels
from regard.errors import UserError
from regard.evaluation.classification import Report, bin_by_confidence, evaluate, open_test_set, score, wilson_interval
from regard.evaluation.classification_plots import (
    MAX_COUNTS,
    MAX_NAMES,
    draw_confusion,
    draw_reliability,
    save_plots,
)
from regard.pipelines.classifier import BATCH

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
    found = bin_by_confidence(np.array([0.95, 0.95, 0.15, 1.0]), np.array([True, False, False, True]), bins=10)
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


def test_calibration_error_of_one_image() -> None:
    assert bin_by_confidence(np.array([0.75]), np.array([False])).error == pytest.approx(75)
    assert bin_by_confidence(np.array([]), np.array([], np.bool_)).error == 0


def test_most_frequent_mistakes_come_first() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 1, 2, 2, 2]), np.array([1, 2, 2, 0, 1, 0, 0, 0])
    scores = score(np.eye(3)[predicted], labels, CLASSES)
    assert scores.mistakes() == [("c", "a", 3), ("a", "c", 2), ("a", "b", 1), ("b", "a", 1)]
    assert scores.mistakes(most=1) == [("c", "a", 3)]


# Reports


def report_of(classes: int, mirrored: bool = False) -> Report:
    """Return the report of a classifier that confuses the first class with the second; the last has no images."""
    names = tuple(f"class {i:02}" for i in range(classes))
    labels = np.arange(classes - 1)
    probabilities = np.eye(classes)[[1, *labels[1:]]] * 0.9
    return Report("data", "abc", score(probabilities, labels, names), ["x.png: damaged"], "today", mirrored)


def test_report_lists_the_worst_classes() -> None:
    first, second, header, worst, *rest = report_of(4).lines()
    assert first.startswith("accuracy 66.67 % of 3 images (95 % confidence: ")
    assert second.startswith("loss ") and "macro F1 55.56" in second
    assert header.split() == ["class", "images", "precision", "recall", "F1"]
    assert worst.split() == ["class", "00", "1", "nan", "0.00", "0.00"]
    assert [line.split()[1] for line in rest[:-1]] == ["01", "02", "03"]  # NaN last
    assert rest[-1] == "1 of class class 00 were classified as class 01"
    assert "and 1 classes with higher F1; --json lists all of them" not in rest
    lines = list(report_of(21, mirrored=True).lines())
    assert ", averaged over mirror images (95 %" in lines[0]
    assert "; top-5 accuracy 100.00 %" in lines[0]
    assert lines[-2] == "and 1 classes with higher F1; --json lists all of them"
    assert len(lines) == 3 + 20 + 2
    assert not any("with higher F1" in line for line in report_of(20).lines())


def test_report_as_json_has_the_conditions_and_no_nan() -> None:
    values = report_of(4).as_dict()
    assert values["conditions"] == {"data": "data", "set": "abc", "images": 3}
    assert report_of(4, mirrored=True).as_dict()["conditions"]["mirrored"] is True
    assert (values["date"], values["unreadable"]) == ("today", ["x.png: damaged"])
    assert values["classes"][3] == {"name": "class 03", "images": 0, "precision": None, "recall": None, "f1": None}
    assert sum(part["images"] for part in values["calibration"]) == 3
    assert values["calibration"][13] == {
        "images": 3,
        "confidence": pytest.approx(0.9),
        "accuracy": pytest.approx(2 / 3),
    }
    assert values["confusion"] == [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    json.dumps(values, allow_nan=False)


class BrightnessClassifier:
    """Gives the brightness of the left half of an image as the probability of the second class."""

    classes = ("dark", "light")
    preprocessing = ImagePreprocessing(classes=("dark", "light"), size=4, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)

    def predict(self, images: list[Pixels]) -> np.ndarray:
        light = np.array([image[:, :2].mean() / 255 for image in images])
        return np.stack((1 - light, light), 1)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """Images whose left half is black and whose right half is white, or the other way round, and a damaged one."""
    for name, value in (("dark", 0), ("light", 255)):
        (tmp_path / name).mkdir()
        pixels = np.full((4, 4, 3), 255 - value, np.uint8)
        pixels[:, :2] = value
        for i in range(BATCH):
            Image.fromarray(pixels).save(tmp_path / name / f"{i:03}.png")
    (tmp_path / "dark" / "damaged.png").write_bytes(b"no image")
    return tmp_path


def test_evaluation_skips_unreadable_images_and_mirrors_on_request(halves: Path) -> None:
    classifier: Any = BrightnessClassifier()
    images = open_test_set(halves, classifier)
    progress: list[int] = []
    report = evaluate(classifier, images, "halves", progress.append)
    assert progress == [BATCH, BATCH, 1]
    assert (report.mirrored, report.scores.images, report.scores.accuracy) == (False, 2 * BATCH, 100)
    assert len(report.unreadable) == 1 and "damaged.png" in report.unreadable[0]
    conditions = {"data": "halves", "set": images.fingerprint(), "images": 2 * BATCH}
    assert report.as_dict()["conditions"] == conditions
    mirrored = evaluate(classifier, images, "halves", mirrored=True)
    assert mirrored.mirrored
    assert mirrored.scores.loss == pytest.approx(-np.log(0.5))


def test_images_of_which_none_can_be_read_are_rejected(halves: Path) -> None:
    classifier: Any = BrightnessClassifier()
    images = open_test_set(halves, classifier)
    damaged = [i for i in range(len(images)) if "damaged" in images.name(i)]
    with pytest.raises(UserError, match=r"halves: none of its 1 images can be read, for example .*damaged.png"):
        evaluate(classifier, images.select(damaged), "halves")


def test_test_split_is_preferred_to_the_validation_split(tmp_path: Path) -> None:
    classifier: Any = BrightnessClassifier()
    for count, split in enumerate(("train", "valid", "test"), 1):
        for name in classifier.classes:
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (4, 4)).save(tmp_path / split / name / f"{i}.png")
    assert len(open_test_set(tmp_path, classifier)) == 6
    assert len(open_test_set(tmp_path, classifier, "train")) == 2
    shutil.rmtree(tmp_path / "test")
    assert len(open_test_set(tmp_path, classifier)) == 4
    assert len(open_test_set(tmp_path / "train", classifier)) == 2
    with pytest.raises(UserError, match="no split test; it has train, valid"):
        open_test_set(tmp_path, classifier, "test")
    with pytest.raises(UserError, match="--split best: choose train, valid, test"):
        open_test_set(tmp_path, classifier, "best")


# Plots


def test_confusion_matrix_has_counts_names_and_shares() -> None:
    scores = score(PROBABILITIES, LABELS, CLASSES)
    axes = draw_confusion(scores).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(CLASSES)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(CLASSES)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted class", "true class")
    assert axes.get_title("left") == "accuracy 80.00 % of 5 images"
    assert {(*text.get_position(), text.get_text()) for text in axes.texts} == {(0, 0, "2"), (0, 1, "1"), (1, 1, "2")}
    assert {text.get_text(): text.get_color() for text in axes.texts} == {"2": "white", "1": "black"}
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, 0, 0], [1 / 3, 2 / 3, 0], [0, 0, 0]])


def test_many_classes_have_neither_counts_nor_names() -> None:
    def draw(number: int) -> tuple[int, int]:
        axes = draw_confusion(score(np.eye(number), np.arange(number), tuple(map(str, range(number))))).axes[0]
        return len(axes.texts), len([label for label in axes.get_yticklabels() if label.get_rotation() == 0])

    assert draw(MAX_COUNTS)[0] == MAX_COUNTS
    assert draw(MAX_COUNTS + 1)[0] == 0
    assert draw(MAX_NAMES)[1] == MAX_NAMES
    assert draw(MAX_NAMES + 1)[1] < MAX_NAMES


def test_reliability_diagram_has_a_bar_per_bin() -> None:
    scores = score(PROBABILITIES, LABELS, CLASSES)
    upper, lower = draw_reliability(scores).axes
    assert upper.get_title("left") == f"expected calibration error {scores.calibration.error:.2f} %"
    assert (upper.get_ylabel(), lower.get_ylabel(), lower.get_xlabel()) == ("accuracy", "images", "confidence")
    bins = {round(bar.get_x() * 15): bar.get_height() for bar in lower.patches if bar.get_height()}
    assert bins == {7: 1, 9: 1, 10: 1, 12: 1, 13: 1}  # of the confidences 0.5, 0.6, 0.7, 0.8 and 0.9
    assert all(bar.get_width() == pytest.approx(1 / 15) for bar in (*upper.patches, *lower.patches))
    assert {round(bar.get_x() * 15): bar.get_height() for bar in upper.patches} == {7: 1, 9: 0, 10: 1, 12: 1, 13: 1}
    points, diagonal = upper.lines
    np.testing.assert_allclose(points.get_xydata(), [[0.5, 1], [0.6, 0], [0.7, 1], [0.8, 1], [0.9, 1]])
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]
    assert [text.get_text() for text in upper.get_legend().get_texts()] == [
        "mean confidence of the bin",
        "perfect calibration",
        "accuracy",
    ]
    assert upper.get_xlim() == lower.get_xlim() == (0, 1)


def test_plots_are_saved_in_a_new_folder(tmp_path: Path) -> None:
    scores = score(PROBABILITIES, LABELS, CLASSES)
    paths = save_plots(scores, tmp_path / "new" / "plots")
    assert [path.name for path in paths] == ["confusion.png", "reliability.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.format == "PNG"
    with pytest.raises(UserError, match=r"confusion.png: cannot be written to \(File exists\)"):
        save_plots(scores, paths[0])


def test_plots_are_large_enough_for_their_names() -> None:
    def size(number: int) -> tuple[float, ...]:
        scores = score(np.eye(number), np.arange(number), tuple(map(str, range(number))))
        return tuple(draw_confusion(scores).get_size_inches())

    assert [size(number) for number in (5, 10, 90)] == [pytest.approx((side + 1.5, side)) for side in (4.5, 6.5, 16.0)]
    figure = draw_reliability(score(PROBABILITIES, LABELS, CLASSES))
    assert tuple(figure.get_size_inches()) == (5.5, 6.5)
    upper, lower = figure.axes
    assert upper.get_subplotspec().get_gridspec().get_height_ratios() == (3, 1)
    assert not any(axes.spines[side].get_visible() for axes in (upper, lower) for side in ("top", "right"))
    assert upper.lines[0].get_linestyle() == "None"
    assert upper.patches[0].get_x() == pytest.approx(7 / 15)  # a bar begins where its bin begins
