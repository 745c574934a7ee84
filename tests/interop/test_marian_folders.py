"""Marian folders as they are passed on, with SentencePiece's tokenizers: cut, numbered and translated as over there."""

import json
import pickle
import random
import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch

pytest.importorskip("transformers")

import transformers

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.interop.argos import write_argos
from regard.interop.huggingface_marian import NEVER, write_huggingface
from regard.interop.import_model import import_model
from regard.interop.verification import SEARCHES, GeneratorPeer, check, compare
from regard.pipelines.transformers import TransformersGenerator
from regard.pipelines.translator import Translator

ENGLISH = [
    "the small red dog sees a tall tree",
    "a tall man reads the old red book",
    "you and I see the sea, don't you?",
]
GERMAN = ["der kleine rote Hund sieht einen hohen Baum", "ein großer Mann liest das alte Buch", "du und ich, wir sehen"]
SAMPLES = [
    *ENGLISH,
    "I love apples",
    "  two   spaces ",
    "１２ ﬁne … ½",
    "unheard of: Ωmega, 苹果, 😀!",
    ">>deu<< the red tree",
    ">>xxx<< the red tree",
    "e\u0301te\u0301",
    "a\nb\tc",
    "",
]


def train(lines: list[str], size: int, kind: str) -> bytes:
    import io

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5), model_writer=made, vocab_size=size, model_type=kind, minloglevel=2,
        hard_vocab_limit=kind == "bpe",
    )  # fmt: skip
    return made.getvalue()


def words(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def make_folder(folder: Path, kind: str, separate: bool) -> Path:
    """A Marian folder of random weights whose vocabulary is in an order of its own and lacks some pieces."""
    folder.mkdir()
    source, target = train(ENGLISH, 60, kind), train(GERMAN, 64, kind)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    draw = random.Random(0)

    def numbered(pieces: set[str]) -> dict[str, int]:
        kept = sorted(pieces - {"<s>", "</s>", "<unk>", "▁dog"})
        draw.shuffle(kept)
        named = ["</s>", "<unk>", ">>deu<<", *kept, "<pad>"]
        return {piece: number for number, piece in enumerate(named)}

    both = set(words(source)) | set(words(target))
    ids = numbered(both)
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    target_ids = ids
    if separate:
        target_ids = numbered(both)
        (folder / "target_vocab.json").write_text(json.dumps(target_ids, ensure_ascii=False), encoding="utf-8")
    options = {"separate_vocabs": True} if separate else {}
    about = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"} | options
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, activation_function="swish",
        scale_embedding=True, pad_token_id=ids["<pad>"], eos_token_id=0, bos_token_id=0, forced_eos_token_id=None,
        decoder_start_token_id=ids["<pad>"], max_position_embeddings=64,
        share_encoder_decoder_embeddings=not separate, decoder_vocab_size=len(target_ids),
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MarianMTModel(config)
    for tensor in model.parameters():
        if tensor.dim() > 1 and tensor.requires_grad:
            torch.nn.init.normal_(tensor, std=0.5)
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, ids["<pad>"]] = 30.0  # so that it would be said at once if it were not forbidden
    model.final_logits_bias[0, 0] = 7.0
    model.generation_config.bad_words_ids = [[target_ids["<pad>"]]]
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["unigram", "bpe", "separate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = "unigram" if request.param == "separate" else request.param
    return make_folder(tmp_path_factory.mktemp("marian") / "there", kind, request.param == "separate")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("marian") / "whole", "unigram", separate=False)


@pytest.fixture(scope="module")
def imported(folder: Path) -> Translator:
    import_model(folder, folder.parent / "back")
    return Translator.load(folder.parent / "back")


def test_texts_are_cut_and_numbered_as_transformers_does(folder: Path, imported: Translator) -> None:
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    source, target = imported.vocabularies.source, imported.vocabularies.target
    for text in SAMPLES:
        if text.startswith(">>xxx"):  # a language that the model has not: a text like any other
            assert source.decode(source.encode(text)).endswith("the red tree")
            assert len(source.encode(text)) >= len(theirs(text).input_ids)
            continue
        assert [*source.encode(text), imported.model.config.eos] == theirs(text).input_ids, text
    for text in GERMAN:
        assert [*target.encode(text), imported.model.config.eos] == theirs(text_target=text).input_ids, text
        assert target.decode(target.encode(text)) == theirs.decode(target.encode(text), skip_special_tokens=True)
    assert source.encode_batch(SAMPLES) == [source.encode(text) for text in SAMPLES]


def test_imported_model_agrees_with_transformers(folder: Path, imported: Translator) -> None:
    model, pad = transformers.MarianMTModel.from_pretrained(folder), imported.model.config.pad
    sources = imported.vocabularies.source.encode_batch([*ENGLISH, "the sea", "a tree", "red book"])
    with_banned_pad = GeneratorPeer(TransformersGenerator(model)).write(sources, SEARCHES["greedy"])
    model.final_logits_bias[0, pad] = NEVER  # as imported; bad_words_ids changes no probabilities
    agreement = compare(imported, GeneratorPeer(TransformersGenerator(model)), sources)
    check(agreement, "the imported model")
    assert all(ended >= 3 for _, ended in agreement.same.values()), agreement
    assert GeneratorPeer(TransformersGenerator(model)).write(sources, SEARCHES["greedy"]) == with_banned_pad
    generated = imported.hypotheses(ENGLISH, SEARCHES["greedy"])
    assert pad not in {token for (best,) in generated for token in best.tokens}


def test_the_folder_is_whole_and_its_tokenizer_travels(imported: Translator, folder: Path, tmp_path: Path) -> None:
    source = imported.vocabularies.source
    source.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(again, SentencePieceTokenizer) and again.fingerprint() == source.fingerprint()
    assert pickle.loads(pickle.dumps(source)).encode("the tree") == source.encode("the tree")
    assert source.char_spans(source.encode("the tree"))[-1][1] == len("the tree")
    assert source.encode_continuation("the")[-1:] == source.encode("the")[-1:]
    (best,) = imported.hypotheses(["the tree"])[0]
    assert best.source_subwords[0].startswith("▁")
    with pytest.raises(UserError, match="but not be trained"):
        _ = source.kind


def test_they_leave_as_they_came(imported: Translator, folder: Path, tmp_path: Path) -> None:
    (said,) = write_huggingface(imported, tmp_path, imported.vocabularies.source.encode_batch(ENGLISH))
    assert said.startswith("as MarianMTModel")
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(SAMPLES).input_ids == again(SAMPLES).input_ids
    assert theirs(text_target=GERMAN).input_ids == again(text_target=GERMAN).input_ids


def test_argos_takes_them_as_they_are(imported: Translator, tmp_path: Path) -> None:
    assert imported.languages == ("en", "de")
    said = write_argos(imported, tmp_path, imported.vocabularies.source.encode_batch(ENGLISH), None)
    assert "log-probabilities within" in said[0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("source.spm", b"nonsense", "source.spm: damaged or not a SentencePiece model"),
        ("target.spm", None, "target.spm: cannot be read"),
        ("vocab.json", b"[1", "vocab.json: damaged or not JSON"),
        ("vocab.json", b'{"</s>": "0"}', "vocab.json: a vocabulary must be a JSON object"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 2}', "gaps or duplicates"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 1}', "no token <pad>"),
    ],
)
def test_damaged_files_are_refused(whole: Path, name: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    there = shutil.copytree(whole, tmp_path / "there")
    (there / name).unlink()
    if content is not None:
        (there / name).write_bytes(content)
    with pytest.raises(UserError, match=reason):
        import_model(there, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
