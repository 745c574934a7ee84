"""`regard classify`, and `regard evaluate`, `embed` and `train` with image models."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from regard.data.images.datasets import read_resized
from regard.evaluation.classification import evaluate, open_test_set
from regard.pipelines.classifier import Classifier
from tests.conftest import Command, settings_of
from tests.images import TINY


def test_classes_are_printed_with_probabilities(command: Command, image_run: Path, painted: Path) -> None:
    path = painted / "test" / "red" / "000.png"
    answer = command("classify", image_run, path, "--top", 2)
    (label, sure), (second, rest) = Classifier.load(image_run)(path, top=2)
    assert answer.out == f"{path}  {label} {100 * sure:.1f}%  {second} {100 * rest:.1f}%\n"
    assert (answer.code, answer.err, label) == (0, "", "red")


def test_images_are_given_as_folders_patterns_or_standard_input(
    command: Command, image_run: Path, painted: Path
) -> None:
    blue = sorted((painted / "test" / "blue").iterdir())
    listed = "".join(f"{path}\n" for path in blue).encode()
    for words, stdin in (
        ([painted / "test" / "blue"], b""),
        ([f"{painted}/test/b*/*.png"], b""),
        ([], listed),
    ):
        answer = command("classify", image_run, *words, "--json", "--top", 1, stdin=stdin)
        found = [json.loads(line) for line in answer.out.splitlines()]
        assert [entry["image"] for entry in found] == [str(path) for path in blue]
        assert {entry["classes"][0]["label"] for entry in found} == {"blue"}


def test_table_is_written_atomically(command: Command, image_run: Path, painted: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.csv"
    assert command("classify", image_run, painted / "test", "--out", out).out == ""
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    assert list(rows[0]) == ["image", "label1", "probability1", "label2", "probability2", "label3", "probability3"]
    assert all(Path(row["image"]).parent.name == row["label1"] for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["found.csv"]


def test_unreadable_images_are_reported_and_skipped(
    command: Command, image_run: Path, painted: Path, tmp_path: Path
) -> None:
    (tmp_path / "text.png").write_text("no image")
    good = painted / "test" / "red" / "000.png"
    answer = command("classify", image_run, tmp_path / "text.png", good, tmp_path / "none.png", "--top", 1)
    assert answer.code == 2
    assert answer.out.count("\n") == 1 and answer.out.startswith(str(good))
    first, second, third = answer.err.splitlines()
    assert first == f"regard: {tmp_path}/text.png: a text file, not an image"
    assert second.startswith(f"regard: {tmp_path}/none.png: cannot be read")
    assert third == "regard: 2 of 3 images could not be read and were skipped"


def test_empty_folder_is_reported_and_skipped(command: Command, image_run: Path, painted: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    out, first, last = tmp_path / "found.csv", painted / "test" / "red", painted / "test" / "blue"
    answer = command("classify", image_run, first, tmp_path / "empty", last, "--out", out)
    assert answer.code == 2
    assert f"regard: {tmp_path}/empty: contains no images" in answer.err
    assert answer.err.endswith("regard: 1 of 21 images could not be read and were skipped\n")
    with out.open(newline="") as file:
        assert [Path(row["image"]).parent.name for row in csv.DictReader(file)] == ["red"] * 10 + ["blue"] * 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "x.txt"), "x.txt: the name must end in .csv or .jsonl"),
        (("--out", "x.csv", "--json"), "--json and .csv contradict each other"),
        (("--out", "nowhere/x.csv"), "no file can be written there"),
    ],
)
def test_invalid_output_file_is_rejected(
    words: tuple[str, ...], message: str, command: Command, image_run: Path, painted: Path
) -> None:
    assert message in command("classify", image_run, painted / "test", *words).error


def test_missing_images_are_rejected(command: Command, image_run: Path, tmp_path: Path) -> None:
    assert "no images were given" in command("classify", image_run).error
    answer = command("classify", image_run, tmp_path)
    assert (answer.code, answer.out) == (2, "") and f"regard: {tmp_path}: contains no images" in answer.err


def test_model_of_another_kind_is_rejected_with_the_right_command(
    command: Command, image_run: Path, trained_run: Path, painted: Path, tmp_path: Path
) -> None:
    image = painted / "test" / "red" / "000.png"
    lines = tmp_path / "a.en"
    lines.write_text("I love apples\n")
    assert command("translate", image_run, "I love apples").error.endswith("is an image model; use regard classify")
    assert command("classify", trained_run, image).error.endswith("is a text model; use regard translate")
    assert "is a text model" in command("evaluate", trained_run, "--data", painted).error
    assert "is an image model" in command("evaluate", image_run, "--src", lines, "--ref", lines).error
    out = tmp_path / "x.npy"
    assert "is a text model; give its lines in --input" in command("embed", trained_run, image, "--out", out).error


def test_evaluation_uses_the_test_split(command: Command, image_run: Path, painted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(image_run, run)
    answer = command("evaluate", run, "--data", painted, "--pictures", tmp_path / "pictures")
    assert "of 30 images (95 % confidence: " in answer.out
    for name in ("confusion.png", "reliability.png"):
        with Image.open(tmp_path / "pictures" / name) as picture:
            assert picture.format == "PNG" and min(picture.size) > 100
    as_json = json.loads(command("evaluate", run, "--data", painted, "--json", "--no-save").out)
    assert as_json["accuracy"] == 100 * np.trace(as_json["confusion"]) / 30
    assert [one["name"] for one in as_json["classes"]] == ["blue", "green", "red"]
    kept = json.loads((run / "best" / "scores.json").read_text())
    (entry,) = kept["evaluations"]
    assert entry["accuracy"] == as_json["accuracy"] and entry["conditions"] == as_json["conditions"]
    assert kept["step"] > 0, "the scores of training are kept"
    train = json.loads(command("evaluate", run, "--data", painted, "--split", "train", "--json", "--no-save").out)
    assert train["conditions"]["images"] == 60


def test_predictions_are_averaged_over_mirror_images(command: Command, image_run: Path, painted: Path) -> None:
    answer = command("evaluate", image_run, "--data", painted, "--mirrored", "--no-save")
    assert "of 30 images, averaged over mirror images (95 % confidence: " in answer.out
    classifier = Classifier.load(image_run)
    images = open_test_set(painted, classifier)
    plain, both = (evaluate(classifier, images, "painted", mirrored=mirrored) for mirrored in (False, True))
    assert both.as_dict()["conditions"] == plain.as_dict()["conditions"] | {"mirrored": True}
    pixels = [read_resized(images, i, classifier.preprocessing.resize) for i in range(len(images))]
    mean = (classifier.predict(pixels) + classifier.predict([image[:, ::-1] for image in pixels])) / 2
    right = mean[np.arange(len(images)), images.labels]
    assert both.scores.loss == pytest.approx(-np.log(right).mean(), rel=1e-4)
    assert both.scores.loss != plain.scores.loss


def test_invalid_test_set_is_rejected(command: Command, image_run: Path, painted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(image_run, run)
    for name in ("red", "pink"):
        shutil.copytree(painted / "test" / "red", tmp_path / "set" / name)
    assert (
        "class pink is unknown; the known classes are blue, green, red"
        in command("evaluate", run, "--data", tmp_path / "set").error
    )
    assert "either --src" in command("evaluate", run).error
    assert "--split some: choose" in command("evaluate", run, "--data", painted, "--split", "some").error


def test_evaluation_skips_and_counts_unreadable_images(
    command: Command, image_run: Path, painted: Path, tmp_path: Path
) -> None:
    run, images = tmp_path / "run", tmp_path / "set"
    shutil.copytree(image_run, run)
    shutil.copytree(painted / "test" / "red", images / "red")
    (images / "red" / "bad.png").write_text("")
    (images / "red" / "text.png").write_text("no image")
    answer = command("evaluate", run, "--data", images)
    assert "of 10 images" in answer.out
    first, second, last = answer.err.splitlines()
    assert first.endswith("bad.png: is empty") and second.endswith("text.png: a text file, not an image")
    assert (answer.code, last) == (2, "regard: 2 of 12 images could not be read and were skipped")
    (kept,) = json.loads((run / "best" / "scores.json").read_text())["evaluations"]
    as_json = command("evaluate", run, "--data", images, "--json", "--no-save")
    assert as_json.code == 2
    for report in (kept, json.loads(as_json.out)):
        assert (report["conditions"]["images"], len(report["unreadable"])) == (10, 2)
    for name in ("bad.png", "text.png"):
        (images / "red" / name).unlink()
    whole = command("evaluate", run, "--data", images, "--json", "--no-save")
    assert (whole.code, whole.err, json.loads(whole.out)["unreadable"]) == (0, "", [])


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_features_are_written_with_the_paths_of_the_images(
    suffix: str, command: Command, image_run: Path, painted: Path, tmp_path: Path
) -> None:
    out = tmp_path / f"features{suffix}"
    folder = painted / "test" / "green"
    answer = command("embed", image_run, folder, "--out", out)
    rows = np.load(out) if suffix == ".npy" else safetensors.numpy.load_file(out)["embeddings"]
    paths = sorted(folder.iterdir())
    assert np.allclose(rows, Classifier.load(image_run).embed(paths), atol=1e-6)
    assert (tmp_path / "features.txt").read_text().splitlines() == [str(path) for path in paths]
    assert "embeddings 10 × 16" in answer.out


def test_training_with_options_only(command: Command, painted: Path, tmp_path: Path) -> None:
    settings = settings_of(TINY | {"training.steps": 2, "training.validate_every": 2})
    words = ("train", "--data", painted / "train", "--valid", painted / "test", "--out", tmp_path / "run", *settings)
    answer = command(*words)
    assert "60 training images, 30 for validation" in answer.out
    assert answer.out.endswith(f"next: regard classify {tmp_path / 'run'} IMAGE...\n")
    assert "this run is already finished" in command(*words).out
