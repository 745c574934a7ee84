"""Export of non-autoregressive models as graphs of one pass."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from regard.data.text.tokenizer import Vocabularies
from regard.errors import UserError
from regard.interop.export_model import export_model
from regard.interop.nat_graphs import longest_source
from regard.models.nat import NATransformer, NATransformerConfig
from regard.pipelines.translator import Translator
from tests.decoding.test_nat import peaked_model
from tests.interop.random_models import SMALL, tokenizer
from tests.interop.test_usage import run_snippet


def nat_translator(length: str, **changes: object) -> Translator:
    vocabulary = tokenizer(290)
    config = NATransformerConfig.base(len(vocabulary), **SMALL | {"length": length} | changes)
    torch.manual_seed(4)
    model = NATransformer(config)
    for name, tensor in model.named_parameters():
        if tensor.dim() > 1 and "embedding" not in name:
            # Distinct transitions, so that the best path does not lead to the last vertex at once.
            torch.nn.init.normal_(tensor, std=(6 if "transitions" in name else 2) * tensor.shape[1] ** -0.5)
    return Translator(model.eval(), Vocabularies(vocabulary, vocabulary), ("en", "de"))


@pytest.mark.parametrize(
    ("length", "to", "changes"),
    [
        ("ctc", "onnx", {"layer_predictions": True, "upsample_mode": "mask", "upsample_ratio": 2, "decoder_layers": 2}),
        ("end", "torch", {}),
        ("dag", "torch", {"upsample_mode": "mask", "decoder_layers": 2}),
        ("dag", "onnx", {"decoder_layers": 2}),
    ],
)
def test_exported_model_translates_without_regard(
    length: str, to: str, changes: dict[str, object], tmp_path: Path
) -> None:
    translator = nat_translator(length, **{"upsample_ratio": 3, "encoder_layers": 1, "decoder_layers": 1} | changes)
    translator.save_pretrained(tmp_path / "model")
    (summary,) = export_model(tmp_path / "model", tmp_path / "out", to)
    assert "48 sentences: identical translations (one pass 48 of 48); log-probabilities within" in summary
    translation = translator("I love apples")
    assert translation
    assert run_snippet(tmp_path / "out") == translation.strip()


def test_model_with_a_length_classifier_is_rejected(tmp_path: Path) -> None:
    nat_translator("classifier").save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="the target length of this model is predicted, which a graph cannot express"):
        export_model(tmp_path / "model", tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_sources_are_limited_by_the_positions_of_their_targets() -> None:
    assert longest_source(peaked_model("ctc", positions="learned", max_length=24).config) == 10
    assert longest_source(peaked_model("ctc", positions="rotary").config) is None
    assert longest_source(peaked_model("dag", positions="rotary").config) == 681
