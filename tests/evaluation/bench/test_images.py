"""`regard bench` of models of images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import UserError
from regard.evaluation.bench.comparison import Race
from regard.evaluation.bench.images import draw_noise, race_images
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.preprocessing import Reading
from tests.conftest import Command


def test_images_a_second_of_two_models_at_each_batch(
    image_run: Path, swin_run: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    answer = command("bench", image_run, swin_run, "--batch", 3, "--seconds", 0, "--out", out, "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "images/s, 3 at once" in answer.out
    assert "3 images of noise" in answer.out
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["timed"] == "from pixels of the model's size, in memory, to probabilities"
    for row in record["results"]:
        (timing,) = row["timings"]
        assert timing["images_per_second"] == pytest.approx(3000 / timing["milliseconds"], rel=1e-3)


def test_noise_is_what_the_model_sees_and_always_the_same(image_run: Path) -> None:
    classifier = Classifier.load(image_run)
    images = draw_noise(4, classifier)
    assert [image.shape for image in images] == [(8, 8, 3)] * 4
    assert np.array_equal(images, draw_noise(4, classifier))
    assert classifier.predict(images).shape == (4, 3)


def test_transformers_gives_the_same_classes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"image": 8, "patch": 4, "width": 16, "layers": 2, "heads": 2, "hidden": 32}
    values = {"classes": ["a", "b", "c"], "size": 8, "channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3}
    model = ViT(ViTConfig.micro(3, **sizes, pooling="class", norm_eps=1e-6))
    torch.nn.init.normal_(model.head.weight)
    Classifier(model, Reading.parse(values, "test")).save(tmp_path)
    ours, theirs = race_images([str(tmp_path)], Race((16,), 0, ("huggingface",))).results
    assert theirs.name == f"{tmp_path} in transformers"
    assert (ours.same, theirs.same) == (1, 1)


def test_what_cannot_be_timed_is_refused(image_run: Path, trained_run: Path, command: Command) -> None:
    with pytest.raises(UserError, match="does not search"):
        race_images([f"{image_run}:beam=2"], Race())
    assert "--peer ctranslate2: has no models of images" in command("bench", image_run, "--peer", "ctranslate2").refusal
    assert (
        "--peer huggingface: transformers' ViT has pooling class"
        in command("bench", image_run, "--peer", "huggingface").refusal
    )
    assert "--src: is of no use with a model that reads images" in command("bench", image_run, "--src", "x").refusal
    assert f"{image_run} reads images, and {trained_run} text" in command("bench", trained_run, image_run).refusal
