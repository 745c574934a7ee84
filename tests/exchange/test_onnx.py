"""Our models in onnxruntime: images at any size of batch, and a decoder with a cache under our own search."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import onnxruntime

from regard.decoding.translator import Translator
from regard.errors import UserError
from regard.exchange.onnx import OnnxPeer, write_onnx
from regard.exchange.verification import compare, sample_sources
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.recognition.classifier import Classifier
from regard.recognition.reading import Reading
from tests.conftest import Command, toy_pairs
from tests.exchange.random_models import random_translator


@pytest.mark.parametrize(
    "model",
    [
        lambda: ViT(ViTConfig(image=32, patch=8, classes=5, width=32, layers=2, heads=4, hidden=48)),
        lambda: Swin(SwinConfig.mini(classes=5, width=24, layers=(2, 1), heads=(2, 4))),
    ],
    ids=["vit", "swin"],
)
def test_images_have_the_same_logits_at_any_batch(model: object, tmp_path: Path, command: Command) -> None:
    torch.manual_seed(0)
    ours = model()  # type: ignore[operator]
    for tensor in ours.parameters():
        torch.nn.init.normal_(tensor, std=0.2)
    reading = Reading(classes=tuple("abcde"), size=32, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    (tmp_path / "run").mkdir()
    Classifier(ours.eval(), reading).save(tmp_path / "run")
    answer = command("export", tmp_path / "run", tmp_path / "onnx", "--to", "onnx")
    assert answer.code == 0, answer.err
    assert "in onnxruntime: batches of 1 and 8 images, logits within" in answer.out
    session = onnxruntime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    for batch in (1, 3, 8):
        images = torch.randn(batch, 3, 32, 32)
        (logits,) = session.run(None, {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(logits), ours(images), atol=1e-4, rtol=0)


@pytest.mark.parametrize("option", ["rotary"])
def test_a_decoder_with_its_cache_writes_the_same_tokens(option: str, tmp_path: Path) -> None:
    ours = random_translator(option)
    (said,) = write_onnx(ours, tmp_path, sample_sources(ours)[:24])
    assert "log-probabilities within" in said


def test_a_trained_model_translates_alike(trained_run: Path, tmp_path: Path, command: Command) -> None:
    answer = command("export", trained_run, tmp_path / "onnx", "--to", "onnx")
    assert answer.code == 0, answer.err
    ours = Translator.load(trained_run)
    sources = sample_sources(ours, [pair.source for pair in toy_pairs()][:100])
    agreement = compare(ours, OnnxPeer(tmp_path / "onnx"), sources)
    assert agreement.same == {"greedy": (100, 100), "beam 4": (100, 100)}
    assert agreement.difference < 1e-4


def test_what_has_no_cache_is_refused(tmp_path: Path) -> None:
    ours = random_translator("post")
    ours.model.config = TransformerConfig.parse(ours.model.config.model_dump() | {"attention": "linear"}, "test")
    with pytest.raises(UserError, match="linear keeps no keys"):
        write_onnx(ours, tmp_path, sample_sources(ours))
