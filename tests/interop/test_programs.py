"""Our models as programs, in onnxruntime and as archives of torch.export: images at any size of batch, and a decoder
with a cache under our own search."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from regard.errors import UserError
from regard.interop.graphs import Call, image_program
from regard.interop.onnx import ONNX, open_onnx
from regard.interop.torch import TORCH, open_archive
from regard.interop.verification import sample_sources
from regard.models.swin import Swin, SwinConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.classifier import Classifier
from regard.pipelines.preprocessing import ImagePreprocessing
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import random_translator

FORMATS: dict[str, tuple[Callable[[Path], Call], str]] = {
    "onnx": (open_onnx, "model.onnx"),
    "torch": (open_archive, "model.pt2"),
}
MODELS = {
    "vit": lambda: ViT(ViTConfig(image=32, patch=8, classes=5, width=32, layers=1, heads=4, hidden=48)),
    "vit-convolutions": lambda: ViT(ViTConfig.micro(5, width=32, layers=1, hidden=48, stem="convolutions")),
    "swin": lambda: Swin(SwinConfig.mini(classes=5, width=16, layers=(1, 2), heads=(2, 4))),
    "swin-of-one-stage": lambda: Swin(SwinConfig.mini(classes=5, width=16, layers=(2,), heads=(2,))),
}
CASES = [("vit", "onnx"), ("vit", "torch"), ("swin", "torch"), ("swin-of-one-stage", "onnx")]
CASES += [("vit-convolutions", "onnx"), ("vit-convolutions", "torch")]


def make_classifier(name: str) -> Classifier:
    torch.manual_seed(0)
    ours = MODELS[name]()
    for tensor in ours.parameters():
        torch.nn.init.normal_(tensor, std=0.2)
    preprocessing = ImagePreprocessing(classes=tuple("abcde"), size=32, channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    return Classifier(ours.eval(), preprocessing)


@pytest.mark.parametrize(("name", "to"), CASES)
def test_images_have_the_same_logits_at_any_batch(name: str, to: str, tmp_path: Path, command: Command) -> None:
    classifier = make_classifier(name)
    (tmp_path / "run").mkdir()
    classifier.save(tmp_path / "run")
    answer = command("export", tmp_path / "run", tmp_path / "out", "--to", to)
    assert answer.code == 0, answer.err
    assert "batches of 1 and 8 images, logits within" in answer.out
    opening, file = FORMATS[to]
    call = opening(tmp_path / "out" / file)
    for batch in (1, 3, 8):
        images = torch.randn(batch, 3, 32, 32)
        (logits,) = call({"images": images})
        torch.testing.assert_close(logits, classifier.model(images), atol=1e-4, rtol=0)


def test_a_trained_model_translates_alike(trained_run: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "sample").write_text("".join(f"{pair.source}\n" for pair in toy_pairs()[:10]), encoding="utf-8")
    answer = command("export", trained_run, tmp_path / "out", "--to", "torch", "--sample", tmp_path / "sample")
    assert answer.code == 0, answer.err
    assert "the same translations (greedy 10 of 10, beam 4 10 of 10); log-probabilities within" in answer.out
    run_without_regard(tmp_path / "out", Translator.load(trained_run))


def run_without_regard(folder: Path, ours: Translator) -> None:
    """Greedy translation by PyTorch alone, in a process that cannot import regard."""
    config = ours.model.config
    source = [*ours.vocabularies.source.encode("I love apples"), config.eos]
    shape = (config.decoder_layers, 1, config.heads, 0, config.width // config.heads)
    program = f"""
import sys
sys.modules["regard"] = None
import torch
encode, step = (torch.export.load(name).module() for name in ("encoder.pt2", "decoder_step.pt2"))
source, token, said = torch.tensor([{source}]), {config.bos}, []
lengths = torch.tensor([{len(source)}])
memory_keys, memory_values = encode(source=source, lengths=lengths)
past_keys = past_values = torch.zeros{shape}
while token != {config.eos} and len(said) < 30:
    logp, past_keys, past_values = step(
        token=torch.tensor([[token]]), past_keys=past_keys, past_values=past_values,
        memory_keys=memory_keys, memory_values=memory_values, lengths=lengths,
    )
    token = int(logp.argmax())
    said.append(token)
print(*said[:-1])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ours.vocabularies.target.decode(map(int, done.stdout.split())) == "我喜欢苹果"


def test_rotary_positions_go_on_from_the_cache(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours = random_translator("rotary", encoder_layers=1, decoder_layers=1)
    (said,) = ONNX.write(ours, tmp_path, sample_sources(ours)[:12])
    assert not [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert re.search(r"the same translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", said), said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("linear", "linear keeps no keys"),
        ("local", "programs take any length"),
        ("routing", "clusters whose sizes a program cannot know"),
    ],
)
def test_attention_that_no_program_has_is_refused(kind: str, said: str, tmp_path: Path) -> None:
    ours = random_translator("post")
    ours.model.config = TransformerConfig.parse(ours.model.config.model_dump() | {"attention": kind}, "test")
    for write in (ONNX.write, TORCH.write):
        with pytest.raises(UserError, match=said):
            write(ours, tmp_path, sample_sources(ours))


def test_learned_positions_that_end_soon(tmp_path: Path) -> None:
    ours = random_translator("pre-learned", max_length=24, encoder_layers=1, decoder_layers=1)
    (said,) = TORCH.write(ours, tmp_path, sample_sources(ours))
    assert re.search(r"the same translations \(greedy [1-9].*, beam 4 [1-9].*\); log-probabilities within", said), said
    assert json.loads((tmp_path / "regard.json").read_text(encoding="utf-8"))["longest"] == 24


def test_an_archive_with_an_operator_of_others_is_refused(tmp_path: Path) -> None:
    from regard.interop.torch import _write

    @torch.library.custom_op("strange::same", mutates_args=())
    def same(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    same.register_fake(torch.empty_like)
    program = image_program(make_classifier("vit"))

    class Strange(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            said: torch.Tensor = same(images)
            return said

    _write(program._replace(module=Strange()), tmp_path / "model.pt2")
    with pytest.raises(UserError, match=r"strange\.same.* is none of PyTorch's"):
        open_archive(tmp_path / "model.pt2")
