"""`regard bench` with image models."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.images.preprocessing import ImagePreprocessing
from regard.errors import UserError
from regard.evaluation.benchmark.images import ImageSystem, benchmark_classifiers, random_images
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from tests.conftest import Command


def test_report_has_images_per_second_of_every_model(
    image_run: Path, swin_run: Path, command: Command, tmp_path: Path
) -> None:
    out = tmp_path / "bench.json"
    answer = command("bench", image_run, swin_run, "--batch", 3, "--seconds", 0, "--out", out, "--device", "cpu")
    assert answer.code == 0, answer.err
    assert "images/s, batch of 3" in answer.out
    assert "3 random images" in answer.out
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["timed"] == "from resized pixels in memory to probabilities"
    for row in record["results"]:
        (timing,) = row["timings"]
        assert timing["images_per_second"] == pytest.approx(3000 / timing["milliseconds"], rel=1e-3)


def test_random_images_have_the_input_size_and_are_reproducible(image_run: Path) -> None:
    classifier = Classifier.load(image_run)
    images = random_images(4, classifier)
    assert [image.shape for image in images] == [(8, 8, 3)] * 4
    assert np.array_equal(images, random_images(4, classifier))
    assert classifier.predict(images).shape == (4, 3)


def test_transformers_predicts_the_same_classes(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from regard.interop.huggingface_vision import build_huggingface_classifier

    torch.manual_seed(3)
    sizes = {"image": 8, "patch": 4, "width": 16, "layers": 2, "heads": 2, "hidden": 32}
    values = {"classes": ["a", "b", "c"], "size": 8, "channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3}
    model = ViT(ViTConfig.micro(3, **sizes, pooling="class", norm_eps=1e-6))
    torch.nn.init.normal_(model.head.weight)
    Classifier(model, ImagePreprocessing.parse(values, "test")).save(tmp_path)
    ours = ImageSystem.open(str(tmp_path), torch.device("cpu"))
    theirs = ImageSystem.in_transformers(ours, build_huggingface_classifier(ours.classifier))
    results = benchmark_classifiers([ours, theirs], [16], 0, compare=True).results
    assert [result.name for result in results] == [str(tmp_path), f"{tmp_path} in transformers"]
    assert [result.same for result in results] == [1, 1]
    (alone,) = benchmark_classifiers([ours], [2, 1, 2], 0).results
    assert alone.same is None
    assert [timing.batch for timing in alone.timings] == [1, 2]
    assert alone.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_invalid_arguments_are_rejected(image_run: Path, trained_run: Path, command: Command) -> None:
    with pytest.raises(UserError, match="has no search settings"):
        ImageSystem.open(f"{image_run}:beam=2", torch.device("cpu"))

    def refusal(*words: object) -> str:
        return command("bench", *words).error

    assert "--library ctranslate2: has no image models" in refusal(image_run, "--library", "ctranslate2")
    assert "--library huggingface: the ViT of transformers has" in refusal(image_run, "--library", "huggingface")
    assert "--src: has no effect with an image model" in refusal(image_run, "--src", "x")
    assert f"{image_run} reads images, but {trained_run} reads text" in refusal(trained_run, image_run)
