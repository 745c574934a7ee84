"""Models and options that formats of other libraries do not support are rejected with one sentence."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from regard.decoding.settings import SearchSettings
from regard.errors import UserError
from regard.interop import ctranslate2, graphs
from regard.interop.export_model import export_model
from regard.interop.huggingface_marian import choose_kind, describe_marian, read_marian
from regard.interop.huggingface_translation import build_huggingface
from regard.interop.import_model import import_model
from regard.interop.renaming import export_tensors
from regard.interop.timm import to_timm
from regard.models.nat import NATransformerConfig
from regard.models.transformer import TransformerConfig
from regard.models.vit import ViT, ViTConfig
from regard.pipelines.external import TransformersGenerator
from regard.pipelines.translator import Translator
from tests.interop.random_models import random_translator

SIZES = {"source_vocab": 8, "target_vocab": 8, "width": 8, "heads": 2, "hidden": 8}


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (choose_kind, "transformers has no non-autoregressive translation model"),
        (ctranslate2._check_supported, "CTranslate2 has no non-autoregressive models"),
    ],
)
def test_non_autoregressive_models_are_rejected(check: Callable[[object], object], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        check(NATransformerConfig(**SIZES))


def test_models_with_other_attention_have_no_counterpart_in_transformers() -> None:
    with pytest.raises(UserError, match="have full attention, but this model has local"):
        choose_kind(TransformerConfig(**SIZES, attention={"kind": "local"}))


@pytest.mark.parametrize(
    ("to", "quantization", "message"),
    [
        ("tensorrt", None, "--to tensorrt: supported are"),
        ("onnx", "int8", "--quantization is supported for ctranslate2 and argos only, not for onnx"),
    ],
)
def test_unknown_formats_and_quantisations_are_rejected(
    to: str, quantization: str | None, message: str, trained_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        export_model(trained_run, tmp_path / "out", to, quantization)
    assert not (tmp_path / "out").exists()


def test_existing_folders_are_not_replaced(trained_run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists already; choose another folder"):
        export_model(trained_run, tmp_path, "ctranslate2")
    with pytest.raises(UserError, match="exists already; choose another folder"):
        import_model(trained_run, tmp_path)
    assert list(tmp_path.iterdir()) == []


def marian_values(**changes: object) -> dict[str, object]:
    config = TransformerConfig(**SIZES, positions="sinusoidal-halves", output_bias=True)
    return {"model_type": "marian", "vocab_size": 8} | describe_marian(config) | changes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bart"}, "config.json: model_type is 'bart'; supported are marian"),
        ({"scale_embedding": 1}, "config.json: scale_embedding is 1, but must be true or false"),
        ({"scale_embedding": False}, "config.json: scale_embedding is false, but regard always scales"),
        ({"normalize_before": True}, "config.json: normalize_before is true, which is not supported for Marian"),
        ({"decoder_ffn_dim": 9}, "config.json: encoder_ffn_dim and decoder_ffn_dim differ"),
        ({"activation_function": "tanh"}, "config.json: activation_function is 'tanh'; supported are"),
    ],
)
def test_unsupported_configurations_of_marian_are_rejected(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_marian(marian_values(**change), {}, "config.json")


def test_incomplete_weights_cannot_be_exported() -> None:
    config = ViTConfig(image=8, patch=4, width=8, layers=1, heads=2, hidden=8, classes=2)
    tensors = ViT(config).state_dict()
    del tensors["head.bias"]
    with pytest.raises(UserError, match=r"tensor head\.bias is missing; the weights do not belong to a model"):
        to_timm(tensors, config)
    with pytest.raises(UserError, match=r"is missing"):
        export_tensors({}, config, {})


def test_exported_graphs_have_no_coverage_penalty() -> None:
    with pytest.raises(UserError, match="coverage needs attention weights"):
        graphs.GraphState({}).coverage_penalties()


def in_transformers(translator: Translator) -> TransformersGenerator:
    pytest.importorskip("transformers")
    return TransformersGenerator(build_huggingface(translator))


def test_features_that_transformers_lacks_are_rejected() -> None:
    translator = random_translator("halves")
    generator = in_transformers(translator)
    with pytest.raises(UserError, match="does not return log-probabilities of the vocabulary; use the engine regard"):
        generator.log_probs([[5]], [[6]])
    with pytest.raises(UserError, match="does not return attention"):
        generator.run_forward([[5]], [])
    other = Translator(translator.model, translator.vocabularies, generator=generator)
    with pytest.raises(UserError, match="returns one translation per sentence here; omit n_best"):
        other.hypotheses(["the dog"], SearchSettings(beam=2, n_best=2))


@pytest.mark.parametrize("name", ["transformer.other.weight", None])
def test_other_parameter_names_of_transformers_are_rejected(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    missing, unknown = (["model.new.weight"], []) if name is None else ([], [name])
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda *_, **__: (missing, unknown))
    with pytest.raises(UserError, match=f"transformers {transformers.__version__} has other parameter names"):
        build_huggingface(random_translator("halves"))
