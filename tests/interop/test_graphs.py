"""Export to ONNX and torch.export: image models, and encoder and decoder step of translation models."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from regard.data.images.preprocessing import ImagePreprocessing
from regard.errors import UserError
from regard.interop.graphs import GraphCall, image_graph, without_gradients
from regard.interop.onnx import ONNX, load_onnx
from regard.interop.torch import TORCH, load_archive
from regard.interop.verification import sample_sources
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import random_translator
from tests.interop.test_usage import run_snippet

FORMATS: dict[str, tuple[Callable[[Path], GraphCall], str]] = {
    "onnx": (load_onnx, "model.onnx"),
    "torch": (load_archive, "model.pt2"),
}
MODELS = {
    "vit": lambda: ViT(ViTConfig(image=32, patch=8, classes=5, width=32, layers=1, heads=4, hidden=48)),
    "vit-convolutions": lambda: ViT(ViTConfig.micro(5, width=32, layers=1, hidden=48, stem="convolutions")),
    "swin": lambda: Swin(SwinConfig.mini(classes=5, width=16, layers=(1, 2), heads=(2, 4))),
    "swin-one-stage": lambda: Swin(SwinConfig.mini(classes=5, width=16, layers=(2,), heads=(2,))),
}
CASES = [("vit", "onnx"), ("vit", "torch"), ("swin", "torch"), ("swin-one-stage", "onnx")]
CASES += [("vit-convolutions", "onnx"), ("vit-convolutions", "torch")]


def make_classifier(name: str) -> Classifier:
    torch.manual_seed(0)
    model = MODELS[name]()
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.2)
    preprocessing = ImagePreprocessing(classes=tuple("abcde"), size=32, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    return Classifier(model.eval(), preprocessing)


@pytest.mark.parametrize(("name", "to"), CASES)
def test_exported_image_models_have_equal_logits_for_any_batch_size(
    name: str, to: str, tmp_path: Path, command: Command
) -> None:
    classifier = make_classifier(name)
    (tmp_path / "run").mkdir()
    classifier.save(tmp_path / "run")
    answer = command("export", tmp_path / "run", tmp_path / "out", "--to", to)
    assert answer.code == 0, answer.err
    assert "batches of 1 and 8 images, logits within" in answer.out
    load, file = FORMATS[to]
    graph = load(tmp_path / "out" / file)
    for batch in (1, 3, 8):
        images = torch.randn(batch, 3, 32, 32)
        (logits,) = graph({"images": images})
        torch.testing.assert_close(logits, classifier.model(images), atol=1e-4, rtol=0)


def test_exported_translation_model_gives_identical_translations(
    trained_run: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "sample").write_text("".join(f"{pair.source}\n" for pair in toy_pairs()[:10]), encoding="utf-8")
    answer = command("export", trained_run, tmp_path / "out", "--to", "torch", "--sample", tmp_path / "sample")
    assert answer.code == 0, answer.err
    assert "identical translations (greedy 10 of 10, beam 4 10 of 10); log-probabilities within" in answer.out
    assert run_snippet(tmp_path / "out") == Translator.load(trained_run)("I love apples") == "我喜欢苹果"


def test_rotary_positions_continue_from_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    translator = random_translator("rotary", encoder_layers=1, decoder_layers=1)
    (summary,) = ONNX.export_translator(translator, tmp_path, sample_sources(translator)[:12])
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert re.search(r"identical translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", summary), (
        summary
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("linear", "linear attention has no cache"),
        ("local", "depending on their length"),
        ("routing", "clusters of variable size"),
    ],
)
def test_unsupported_attention_is_rejected(kind: str, message: str, tmp_path: Path) -> None:
    translator = random_translator("post")
    config = translator.model.config
    translator.model.config = TransformerConfig.parse(config.model_dump() | {"attention": kind}, "test")
    for graph_format in (ONNX, TORCH):
        with pytest.raises(UserError, match=message):
            graph_format.export_translator(translator, tmp_path, sample_sources(translator))


def test_few_learned_positions_limit_the_length(tmp_path: Path) -> None:
    translator = random_translator("pre-learned", max_length=24, encoder_layers=1, decoder_layers=1)
    (summary,) = TORCH.export_translator(translator, tmp_path, sample_sources(translator))
    assert re.search(r"identical translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", summary), (
        summary
    )
    assert json.loads((tmp_path / "regard.json").read_text(encoding="utf-8"))["longest"] == 24


def test_gradients_are_disabled_only_during_the_export() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    with pytest.raises(KeyError), without_gradients(model):
        assert not any(parameter.requires_grad for parameter in model.parameters())
        assert not torch.is_grad_enabled() and not model.training
        raise KeyError
    assert [parameter.requires_grad for parameter in model.parameters()] == before == [False, False, True, True]
    assert torch.is_grad_enabled()


def test_archive_with_custom_operators_is_rejected(tmp_path: Path) -> None:
    @torch.library.custom_op("custom::copy", mutates_args=())
    def copy(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    copy.register_fake(torch.empty_like)
    spec = image_graph(make_classifier("vit"))

    class WithCustomOperator(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            copied: torch.Tensor = copy(images)
            return copied

    TORCH.save(spec._replace(module=WithCustomOperator()), tmp_path / "model.pt2")
    with pytest.raises(UserError, match=r"custom\.copy.* is not part of PyTorch"):
        load_archive(tmp_path / "model.pt2")
