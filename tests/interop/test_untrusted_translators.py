"""Untrusted translation models: damaged tokenizers, tensors and configs are rejected."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.huggingface_translation import export_huggingface
from regard.interop.import_model import import_model
from regard.interop.verification import sample_sources
from regard.pipelines.translator import Translator
from tests.interop.random_models import random_translator, tokenizer
from tests.interop.test_untrusted_files import assert_imported_or_rejected, cuts, edits, fuzz, mutate, rejection

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("marian") / "foreign"
    folder.mkdir()
    translator = random_translator("post")
    export_huggingface(translator, folder, sample_sources(translator)[:2])
    return folder


@pytest.fixture
def folder(marian: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(marian, tmp_path / "foreign"))


def with_config(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


def with_tensors(**changes: Tensor | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        named = {name.replace("__", "."): tensor for name, tensor in changes.items()}
        tensors = load_file(path) | named
        save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)

    return apply


def with_tokenizer(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "tokenizer.json").write_bytes(content) and None


MARIAN = {
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    "tokenizer not UTF-8": (with_tokenizer(b"\xff\xfe{}"), "tokenizer.json"),
    "tokenizer not JSON": (with_tokenizer(b"{"), "tokenizer.json"),
    "deeply nested tokenizer": (with_tokenizer(b'{"model":' * 50_000), "tokenizer.json"),
    "empty tokenizer": (with_tokenizer(b"{}"), "tokenizer.json"),
    "vocabulary larger than the model": (with_config(vocab_size=10**9, decoder_vocab_size=10**9), "embed_tokens"),
    "width": (with_config(d_model=10**9), "too large for any memory"),
    "layers": (with_config(encoder_layers=10**9), "encoder_layers"),
    "hidden": (with_config(encoder_ffn_dim=2**40, decoder_ffn_dim=2**40), "fc1"),
    "different stacks": (with_config(encoder_ffn_dim=3), "encoder_ffn_dim and decoder_ffn_dim differ"),
    "activation": (with_config(activation_function="mish"), "activation_function is 'mish'"),
    "scale": (with_config(scale_embedding=False), "scale_embedding is false"),
    "norms": (with_config(normalize_before=True), "normalize_before is true"),
    "start": (with_config(decoder_start_token_id=10**6), "bos 1000000 is not in the vocabulary"),
    "no eos": (with_config(eos_token_id=None), "eos_token_id"),
    "missing": (
        with_tensors(model__encoder__layers__1__fc2__bias=None),
        "layers.1.fc2.bias is missing",
    ),
    "unknown": (with_tensors(model__encoder__layers__7__fc2__bias=torch.ones(2)), "unknown tensor model.encoder.lay"),
    "another shape": (with_tensors(model__decoder__layers__0__fc1__bias=torch.ones(5)), "fc1.bias has shape [5]"),
    "integers": (with_tensors(model__decoder__layers__0__fc1__bias=torch.ones(48).int()), "torch.int32"),
    "another output": (with_tensors(lm_head__weight=torch.ones(290, 32)), "lm_head.weight differs from the decoder's"),
    "other positions": (
        with_tensors(model__encoder__embed_positions__weight=torch.ones(9, 32)),
        "model.encoder.embed_positions.weight is not a sinusoidal",
    ),
}


@pytest.mark.parametrize("what", MARIAN)
def test_damage_in_a_marian_folder_is_named(folder: Path, tmp_path: Path, what: str) -> None:
    damage, message = MARIAN[what]
    damage(folder)
    assert message in rejection(folder, tmp_path)


@fuzz
@given(name=st.sampled_from(["config.json", "tokenizer.json", "model.safetensors"]), edits=edits, cut=cuts)
def test_any_folder_of_marian_is_imported_or_rejected(
    marian: Path, tmp_path: Path, name: str, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    folder = tmp_path / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(marian, folder)
    (folder / name).write_bytes(mutate((marian / name).read_bytes(), edits, cut))
    assert_imported_or_rejected(folder, tmp_path)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    random_translator("post").save(folder)
    return folder


@fuzz
@given(name=st.sampled_from(["config.json", "tokenizer.json", "model.safetensors"]), edits=edits, cut=cuts)
def test_any_translator_folder_is_loaded_or_rejected(
    own: Path, tmp_path: Path, name: str, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(own, copy)
    (copy / name).write_bytes(mutate((own / name).read_bytes(), edits, cut))
    try:
        Translator.load(copy)
    except UserError as error:
        assert str(copy) in str(error)


NAMES = {"source": "src.weight", "target": "tgt.weight", "output": "out.weight"}
SETTINGS: dict[str, Any] = {"heads": 2, "norm": "post"}


class TransformerWithEmbeddings(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.src, self.tgt, self.out = nn.Embedding(vocab, 8), nn.Embedding(vocab, 8), nn.Linear(8, vocab)
        self.inner = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)


def torch_weights(**changes: Tensor | None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    tensors = dict(TransformerWithEmbeddings(len(tokenizer(290))).state_dict())
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


FIRST = "inner__encoder__layers__0__self_attn__in_proj_weight"
TORCH: dict[str, tuple[dict[str, Tensor | None], dict[str, Any], dict[str, str], str]] = {
    "no heads": ({}, {"norm": "post"}, NAMES, "heads"),
    "heads that do not divide": ({}, {"heads": 3}, NAMES, "width 8 is not divisible by heads 3"),
    "a wrong name": ({}, SETTINGS, NAMES | {"target": "tgt.wieght"}, "did you mean tgt.weight?"),
    "a name too few": ({}, SETTINGS, {"source": "src.weight"}, "target is missing"),
    "no transformer": ({FIRST: None}, SETTINGS, NAMES, "0 tensors whose names end with"),
    "two transformers": ({"b__" + FIRST: torch.ones(24, 8)}, SETTINGS, NAMES, "2 tensors whose names end with"),
    "first without dimensions": ({FIRST: torch.tensor(1.0)}, SETTINGS, NAMES, "must have 2 dimensions"),
    "embedding without dimensions": (
        {"src__weight": torch.tensor(1.0)},
        SETTINGS,
        NAMES,
        "src.weight has shape []",
    ),
    "a layer far away": (
        {"inner__encoder__layers__99999__norm1__weight": torch.ones(8)},
        SETTINGS,
        NAMES,
        "encoder_layers",
    ),
    "a layer beyond counting": (
        {f"inner__encoder__layers__{'9' * 5000}__norm1__weight": torch.ones(8)},
        SETTINGS,
        NAMES,
        "unknown tensor",
    ),
    "missing": ({"inner__decoder__norm__bias": None}, SETTINGS, NAMES, "tensor decoder.norm.bias is missing"),
    "an unknown setting": ({}, SETTINGS | {"haeds": 2}, NAMES, "did you mean heads?"),
}


@pytest.mark.parametrize("what", TORCH)
def test_damage_in_an_nn_transformer_is_named(tmp_path: Path, what: str) -> None:
    changes, values, names, message = TORCH[what]
    torch.save(torch_weights(**changes), tmp_path / "x.pt")
    assert message in rejection(tmp_path / "x.pt", tmp_path, changes=values, embeddings=names)


def test_nn_transformer_is_imported_with_and_without_a_tokenizer(tmp_path: Path) -> None:
    torch.save(torch_weights(), tmp_path / "x.pt")
    options = {"changes": SETTINGS, "embeddings": NAMES | {"bias": "out.bias"}}
    assert "without a tokenizer" in import_model(tmp_path / "x.pt", tmp_path / "bare", **options)
    tokenizer(290).save(tmp_path / "tokenizer.json")
    import_model(tmp_path / "x.pt", tmp_path / "complete", **options, tokenizer=tmp_path / "tokenizer.json")
    assert isinstance(Translator.load(tmp_path / "complete")("the dog", beam=1), str)
    tokenizer(280).save(tmp_path / "other.json")
    with pytest.raises(UserError, match=r"\(280, 280\) tokens, but the embeddings have \(290, 290\) rows"):
        import_model(tmp_path / "x.pt", tmp_path / "third", **options, tokenizer=tmp_path / "other.json")
    assert not (tmp_path / "third").exists()
