"""`regard bench` chooses the benchmark by its options and by what the models read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.images.preprocessing import ImagePreprocessing
from regard.evaluation.benchmark import attention
from regard.models.croco import CroCo, CroCoConfig
from regard.models.folder import save_model
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from tests.conftest import Command


@dataclass
class Report:
    """A report of a benchmark that is not run."""

    text: str

    def lines(self) -> list[str]:
        return [self.text]

    def as_dict(self) -> dict[str, Any]:
        return {"text": self.text}


def test_attention_is_timed_for_one_model(
    trained_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def benchmark(run: str, device: torch.device, seconds: float, on_progress: Any) -> Report:
        on_progress("begins")
        return Report(f"{run} {device} {seconds}")

    monkeypatch.setattr(attention, "benchmark_attention", benchmark)
    words = ("bench", trained_run, "--attention", "--seconds", 0.5, "--device", "cpu")
    done = command(*words, "--out", tmp_path / "report.json")
    assert done.out.splitlines()[0] == f"{trained_run} cpu 0.5"
    assert "begins" in done.err
    assert f'"text": "{trained_run} cpu 0.5"' in (tmp_path / "report.json").read_text(encoding="utf-8")
    error = command("bench", trained_run, "other", "--attention").error
    assert error == "other: --attention times the heads of one model; give one run"


def test_inference_of_other_models_is_not_timed(tmp_path: Path, command: Command) -> None:
    sizes = {"patch": 4, "width": 16, "heads": 2, "decoder_width": 16, "decoder_heads": 2}
    save_model(tmp_path, CroCo(CroCoConfig.micro(**sizes)), {})
    error = command("bench", tmp_path).error
    assert error.startswith(f"{tmp_path}: inference of a model that reads ")
    assert error.endswith(" is not timed; use --training")


def test_image_models_are_compared_with_transformers(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("transformers")
    sizes = {"image": 8, "patch": 4, "width": 16, "layers": 1, "heads": 2, "hidden": 32}
    values = {"classes": ["a", "b"], "size": 8, "channels": 3, "mean": [0.5] * 3, "std": [0.2] * 3}
    model = ViT(ViTConfig.micro(2, **sizes, pooling="class", norm_eps=1e-6))
    Classifier(model, ImagePreprocessing.parse(values, "test")).save(tmp_path)
    words = ("--library", "huggingface", "--batch", 1, "--seconds", 0, "--device", "cpu")
    done = command("bench", tmp_path, *words)
    assert done.code == 0, done.err
    assert f"{tmp_path} in transformers" in done.out
    assert "same output" in done.out
