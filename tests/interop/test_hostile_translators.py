"""Translators from elsewhere: their tokenizers, their tensors and their names, damaged in every way."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from regard.errors import UserError
from regard.interop.huggingface_marian import write_huggingface
from regard.interop.import_model import import_model
from regard.interop.verification import sample_sources
from regard.pipelines.translator import Translator
from tests.interop.random_models import random_translator, tokenizer
from tests.interop.test_hostile_files import comes_in_or_is_refused, cuts, edits, fuzz, mutate, refusal


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.utils.logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("marian") / "theirs"
    folder.mkdir()
    ours = random_translator("post")
    write_huggingface(ours, folder, sample_sources(ours)[:2])
    return folder


@pytest.fixture
def folder(marian: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(marian, tmp_path / "theirs"))


def with_config(**changes: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return apply


def with_tensors(**changes: Tensor | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "model.safetensors"
        named = {name.replace("__", "."): tensor for name, tensor in changes.items()}
        whole = load_file(path) | named
        save_file({name: tensor for name, tensor in whole.items() if tensor is not None}, path)

    return apply


def with_tokenizer(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "tokenizer.json").write_bytes(content) and None


MARIAN = {
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    "tokenizer not UTF-8": (with_tokenizer(b"\xff\xfe{}"), "tokenizer.json"),
    "tokenizer not JSON": (with_tokenizer(b"{"), "tokenizer.json"),
    "tokenizer nested without end": (with_tokenizer(b'{"model":' * 50_000), "tokenizer.json"),
    "tokenizer of nothing": (with_tokenizer(b"{}"), "tokenizer.json"),
    "vocabulary larger than the model": (with_config(vocab_size=10**9, decoder_vocab_size=10**9), "embed_tokens"),
    "width": (with_config(d_model=10**9), "too large for any memory"),
    "layers": (with_config(encoder_layers=10**9), "encoder_layers"),
    "hidden": (with_config(encoder_ffn_dim=2**40, decoder_ffn_dim=2**40), "fc1"),
    "stacks that differ": (with_config(encoder_ffn_dim=3), "encoder_ffn_dim and decoder_ffn_dim differ"),
    "activation": (with_config(activation_function="mish"), "activation_function 'mish'"),
    "scale": (with_config(scale_embedding=False), "scale_embedding is false"),
    "norms": (with_config(normalize_before=True), "normalize_before is true"),
    "start": (with_config(decoder_start_token_id=10**6), "bos 1000000 is not in the vocabulary"),
    "no eos": (with_config(eos_token_id=None), "eos_token_id"),
    "missing": (with_tensors(model__encoder__layers__1__fc2__bias=None), "no tensor model.encoder.layers.1.fc2.bias"),
    "surplus": (with_tensors(model__encoder__layers__7__fc2__bias=torch.ones(2)), "unknown tensor model.encoder.lay"),
    "another shape": (with_tensors(model__decoder__layers__0__fc1__bias=torch.ones(5)), "fc1.bias is [5]"),
    "whole numbers": (with_tensors(model__decoder__layers__0__fc1__bias=torch.ones(48).int()), "torch.int32"),
    "another output": (with_tensors(lm_head__weight=torch.ones(290, 32)), "lm_head.weight is not the decoder's"),
    "other sines": (
        with_tensors(model__encoder__embed_positions__weight=torch.ones(9, 32)),
        "model.encoder.embed_positions.weight is not the table",
    ),
}


@pytest.mark.parametrize("what", MARIAN)
def test_damage_in_a_folder_of_marian_is_named(folder: Path, tmp_path: Path, what: str) -> None:
    damage, said = MARIAN[what]
    damage(folder)
    assert said in refusal(folder, tmp_path)


@fuzz
@given(name=st.sampled_from(["config.json", "tokenizer.json", "model.safetensors"]), edits=edits, cut=cuts)
def test_any_folder_of_marian_comes_in_or_is_refused(
    marian: Path, tmp_path: Path, name: str, edits: list[tuple[int, int, int]], cut: int | None
) -> None:
    folder = tmp_path / "theirs"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(marian, folder)
    (folder / name).write_bytes(mutate((marian / name).read_bytes(), edits, cut))
    comes_in_or_is_refused(folder, tmp_path)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    random_translator("post").save(folder)
    return folder


@fuzz
@given(name=st.sampled_from(["config.json", "tokenizer.json", "model.safetensors"]), edits=edits, cut=cuts)
def test_any_folder_of_our_own_loads_or_is_refused(
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


# nn.Transformer: the module round it has the embeddings

NAMES = {"source": "src.weight", "target": "tgt.weight", "output": "out.weight"}
GIVEN: dict[str, Any] = {"heads": 2, "norm": "post"}


class Surrounding(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.src, self.tgt, self.out = nn.Embedding(vocab, 8), nn.Embedding(vocab, 8), nn.Linear(8, vocab)
        self.inner = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)


def surrounding(**changes: Tensor | None) -> dict[str, Tensor]:
    torch.manual_seed(0)
    whole = dict(Surrounding(len(tokenizer(290))).state_dict())
    whole |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return {name: tensor for name, tensor in whole.items() if tensor is not None}


FIRST = "inner__encoder__layers__0__self_attn__in_proj_weight"
TORCH: dict[str, tuple[dict[str, Tensor | None], dict[str, Any], dict[str, str], str]] = {
    "no heads": ({}, {"norm": "post"}, NAMES, "heads"),
    "heads that do not divide": ({}, {"heads": 3}, NAMES, "width 8 is not divisible by heads 3"),
    "a wrong name": ({}, GIVEN, NAMES | {"target": "tgt.wieght"}, "did you mean tgt.weight?"),
    "a name too few": ({}, GIVEN, {"source": "src.weight"}, "target is missing"),
    "no transformer": ({FIRST: None}, GIVEN, NAMES, "0 tensors whose names end with"),
    "two transformers": ({"b__" + FIRST: torch.ones(24, 8)}, GIVEN, NAMES, "2 tensors whose names end with"),
    "first without dimensions": ({FIRST: torch.tensor(1.0)}, GIVEN, NAMES, "not a table of two dimensions"),
    "embedding without dimensions": ({"src__weight": torch.tensor(1.0)}, GIVEN, NAMES, "source: src.weight is []"),
    "a layer far away": (
        {"inner__encoder__layers__99999__norm1__weight": torch.ones(8)},
        GIVEN,
        NAMES,
        "encoder_layers",
    ),
    "a layer beyond counting": (
        {f"inner__encoder__layers__{'9' * 5000}__norm1__weight": torch.ones(8)},
        GIVEN,
        NAMES,
        "unknown tensor",
    ),
    "missing": ({"inner__decoder__norm__bias": None}, GIVEN, NAMES, "no tensor decoder.norm.bias"),
    "an unknown setting": ({}, GIVEN | {"haeds": 2}, NAMES, "did you mean heads?"),
}


@pytest.mark.parametrize("what", TORCH)
def test_damage_in_an_nn_transformer_is_named(tmp_path: Path, what: str) -> None:
    changes, values, names, said = TORCH[what]
    torch.save(surrounding(**changes), tmp_path / "x.pt")
    assert said in refusal(tmp_path / "x.pt", tmp_path, changes=values, embeddings=names)


def test_an_nn_transformer_comes_in_with_and_without_a_tokenizer(tmp_path: Path) -> None:
    torch.save(surrounding(), tmp_path / "x.pt")
    options = {"changes": GIVEN, "embeddings": NAMES | {"bias": "out.bias"}}
    assert "without a tokenizer" in import_model(tmp_path / "x.pt", tmp_path / "bare", **options)
    tokenizer(290).save(tmp_path / "tokenizer.json")
    import_model(tmp_path / "x.pt", tmp_path / "whole", **options, tokenizer=tmp_path / "tokenizer.json")
    assert isinstance(Translator.load(tmp_path / "whole")("the dog", beam=1), str)
    tokenizer(280).save(tmp_path / "other.json")
    with pytest.raises(UserError, match="the tokenizers have 280 and 280 pieces, but the model 290 and 290 rows"):
        import_model(tmp_path / "x.pt", tmp_path / "third", **options, tokenizer=tmp_path / "other.json")
    assert not (tmp_path / "third").exists()
