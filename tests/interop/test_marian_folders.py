"""Import and export of Marian folders with SentencePiece tokenizers."""

import io
import json
import pickle
import random
import re
import shutil
from pathlib import Path

import pytest
import torch

from regard.data.text.sentencepiece import SentencePieceTokenizer
from regard.data.text.tokenizer import Tokenizer
from regard.decoding.constraints import DecodingRequest
from regard.errors import UserError
from regard.interop.argos import export_argos
from regard.interop.huggingface_marian import BANNED_LOGIT, ban_tokens
from regard.interop.huggingface_tokenizers import from_marian_tokenizer
from regard.interop.huggingface_translation import export_huggingface
from regard.interop.import_model import import_model
from regard.interop.verification import SEARCHES, check_agreement, compare, sample_sources
from regard.pipelines.external import TransformersGenerator
from regard.pipelines.translator import Translator

sentencepiece, transformers = pytest.importorskip("sentencepiece"), pytest.importorskip("transformers")

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


def train_sentencepiece(lines: list[str], size: int, kind: str) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 5), model_writer=model, vocab_size=size, model_type=kind, minloglevel=2,
        hard_vocab_limit=kind == "bpe",
    )  # fmt: skip
    return model.getvalue()


def tokens_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(index) for index in range(processor.get_piece_size())]


def make_folder(folder: Path, kind: str, separate: bool) -> Path:
    """Write a Marian folder with random weights, a shuffled vocabulary and some missing tokens."""
    folder.mkdir()
    source, target = train_sentencepiece(ENGLISH, 60, kind), train_sentencepiece(GERMAN, 64, kind)
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    rng = random.Random(0)

    def assign_ids(tokens: set[str]) -> dict[str, int]:
        kept = sorted(tokens - {"<s>", "</s>", "<unk>", "▁dog"})
        rng.shuffle(kept)
        ordered = ["</s>", "<unk>", ">>deu<<", *kept, "<pad>"]
        return {token: index for index, token in enumerate(ordered)}

    both = set(tokens_of(source)) | set(tokens_of(target))
    ids = assign_ids(both)
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    target_ids = ids
    if separate:
        target_ids = assign_ids(both)
        (folder / "target_vocab.json").write_text(json.dumps(target_ids, ensure_ascii=False), encoding="utf-8")
    options = {"separate_vocabs": True} if separate else {}
    tokenizer_config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"} | options
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    config = transformers.MarianConfig(
        vocab_size=len(ids), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48, activation_function="swish",
        scale_embedding=True, pad_token_id=ids["<pad>"], eos_token_id=0, bos_token_id=0, forced_eos_token_id=None,
        decoder_start_token_id=ids["<pad>"], max_position_embeddings=64,
        share_encoder_decoder_embeddings=not separate, decoder_vocab_size=len(target_ids),
    )  # fmt: skip
    model, weights = transformers.MarianMTModel(config), torch.Generator().manual_seed(0)
    for _, tensor in sorted(model.named_parameters()):
        if tensor.dim() > 1 and tensor.requires_grad:
            torch.nn.init.normal_(tensor, std=0.5, generator=weights)
    model.final_logits_bias.normal_(generator=weights)
    model.final_logits_bias[0, ids["<pad>"]] = 30.0  # would always be generated if it were not banned
    model.final_logits_bias[0, 0] = 7.0
    model.generation_config.bad_words_ids = [[target_ids["<pad>"]]]
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["unigram", "bpe", "separate"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kind = "unigram" if request.param == "separate" else request.param
    return make_folder(tmp_path_factory.mktemp("marian") / "there", kind, request.param == "separate")


@pytest.fixture(scope="module")
def valid_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("marian") / "valid", "unigram", separate=False)


@pytest.fixture(scope="module")
def imported(folder: Path) -> Translator:
    import_model(folder, folder.parent / "back")
    return Translator.load(folder.parent / "back")


def test_texts_are_tokenised_like_in_transformers(folder: Path, imported: Translator) -> None:
    foreign = transformers.MarianTokenizer.from_pretrained(folder)
    source, target = imported.vocabularies.source, imported.vocabularies.target
    for text in SAMPLES:
        if text.startswith(">>xxx"):  # an unknown language code is ordinary text
            assert source.decode(source.encode(text)).endswith("the red tree")
            assert len(source.encode(text)) >= len(foreign(text).input_ids)
            continue
        assert [*source.encode(text), imported.model.config.eos] == foreign(text).input_ids, text
    for text in GERMAN:
        assert [*target.encode(text), imported.model.config.eos] == foreign(text_target=text).input_ids, text
        assert target.decode(target.encode(text)) == foreign.decode(target.encode(text), skip_special_tokens=True)
    assert source.encode_batch(SAMPLES) == [source.encode(text) for text in SAMPLES]


def test_imported_model_agrees_with_transformers(folder: Path, imported: Translator) -> None:
    model, pad = transformers.MarianMTModel.from_pretrained(folder), imported.model.config.pad
    sources = [*imported.vocabularies.source.encode_batch(ENGLISH), *sample_sources(imported)]
    requests = [DecodingRequest(source) for source in sources]
    generator, greedy = TransformersGenerator(model), SEARCHES["greedy"]
    with_bad_words = [beam[0].tokens for beam in generator.generate(requests, greedy)]
    model.final_logits_bias[0, pad] = BANNED_LOGIT  # as imported; bad_words_ids does not change probabilities
    agreement = compare(imported, generator, sources)
    check_agreement(agreement, "the imported model")
    assert all(compared >= 10 for _, compared in agreement.identical.values()), agreement
    assert [beam[0].tokens for beam in generator.generate(requests, greedy)] == with_bad_words
    generated = imported.hypotheses(ENGLISH, greedy)
    assert pad not in {token for (best,) in generated for token in best.tokens}


def test_tokenizer_is_saved_pickled_and_loaded(imported: Translator, folder: Path, tmp_path: Path) -> None:
    source = imported.vocabularies.source
    source.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(loaded, SentencePieceTokenizer) and loaded.fingerprint() == source.fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", source.fingerprint())
    assert pickle.loads(pickle.dumps(source)).encode("the tree") == source.encode("the tree")
    assert source.char_spans(source.encode("the tree"))[-1][1] == len("the tree")
    assert source.encode_continuation("the")[-1:] == source.encode("the")[-1:]
    (best,) = imported.hypotheses(["the tree"])[0]
    assert best.source_subwords[0].startswith("▁")
    assert source.kind == "sentencepiece"
    assert source.special_ids == {"pad": source.ids["<pad>"], "bos": source.ids["<pad>"], "eos": source.ids["</s>"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentencepiece": "§"}, r"tokenizer\.json is damaged \(.*\); import it again"),
        ({"ids": None}, r"tokenizer\.json"),
        ({"special": {"pad": "<pad>", "eos": "</s>"}}, r"tokenizer\.json is damaged \(special must name pad, "),
        (
            {"special": {"pad": 0, "bos": 0, "eos": 0, "unk": 0}},
            r"tokenizer\.json is damaged \(special must name pad, ",
        ),
    ],
)
def test_a_damaged_tokenizer_of_a_model_folder_is_rejected(
    imported: Translator, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    imported.vocabularies.source.save(path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Tokenizer.load(path)


def test_identical_tokenizers_are_loaded_once(valid_folder: Path, tmp_path: Path) -> None:
    there = Path(shutil.copytree(valid_folder, tmp_path / "there"))
    source, target = from_marian_tokenizer(there)
    assert (source is target) == ((there / "source.spm").read_bytes() == (there / "target.spm").read_bytes())
    shutil.copy(there / "source.spm", there / "target.spm")
    source, target = from_marian_tokenizer(there)
    assert source is target


def test_no_tokens_can_be_added_to_an_imported_tokenizer(imported: Translator) -> None:
    source = imported.vocabularies.source
    assert source.with_tokens([]) is source
    assert imported.vocabularies.with_tokens([]).source is source
    with pytest.raises(UserError, match="tokens cannot be added to a SentencePiece tokenizer"):
        source.with_tokens(["<ent>"])
    with pytest.raises(UserError, match="this is a SentencePiece tokenizer, which this format does not support"):
        source.to_tokenizers()


def test_banned_tokens_have_the_smallest_logit_and_others_keep_theirs() -> None:
    bias = torch.arange(4.0)[None]
    banned = ban_tokens({"final_logits_bias": bias}, [[0], [3]], "config")["final_logits_bias"]
    assert banned.tolist() == [[BANNED_LOGIT, 1.0, 2.0, BANNED_LOGIT]]
    assert bias.tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert ban_tokens({}, None, "config") == ban_tokens({}, [], "config") == {}
    with pytest.raises(UserError, match="config: tensor final_logits_bias is missing"):
        ban_tokens({}, [[0]], "config")


@pytest.mark.parametrize(
    "banned", [[[4]], [[-1]], [[0, 1]], [[]], [0], 7, "ab", [[True]], [[1.0]], [["1"]], [[0], None]]
)
def test_banned_words_must_be_single_tokens_of_the_vocabulary(banned: object) -> None:
    with pytest.raises(UserError, match=r"config: .* is not a single token of the vocabulary"):
        ban_tokens({"final_logits_bias": torch.zeros(1, 4)}, banned, "config")


def test_imported_model_is_exported_with_the_same_tokenizer(imported: Translator, folder: Path, tmp_path: Path) -> None:
    (summary,) = export_huggingface(imported, tmp_path, imported.vocabularies.source.encode_batch(ENGLISH))
    assert summary.startswith("as MarianMTModel")
    foreign = transformers.MarianTokenizer.from_pretrained(folder)
    exported = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert foreign(SAMPLES).input_ids == exported(SAMPLES).input_ids
    assert foreign(text_target=GERMAN).input_ids == exported(text_target=GERMAN).input_ids


def test_imported_model_is_exported_to_argos(imported: Translator, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    assert imported.languages == ("en", "de")
    summary = export_argos(imported, tmp_path, imported.vocabularies.source.encode_batch(ENGLISH), None)
    assert "log-probabilities within" in summary[0]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("source.spm", b"nonsense", "source.spm: damaged or not a SentencePiece model"),
        ("source.spm", b"", "source.spm: the SentencePiece model is empty"),
        ("target.spm", None, "target.spm: no such file"),
        ("vocab.json", b"[1", "vocab.json: damaged or not JSON"),
        ("vocab.json", b'{"</s>": "0"}', "vocab.json: a vocabulary must be a JSON object"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 2}', "gaps or duplicates"),
        ("vocab.json", b'{"</s>": 0, "<unk>": 1}', "no token <pad>"),
    ],
)
def test_damaged_files_are_rejected(
    valid_folder: Path, name: str, content: bytes | None, reason: str, tmp_path: Path
) -> None:
    there = shutil.copytree(valid_folder, tmp_path / "there")
    (there / name).unlink()
    if content is not None:
        (there / name).write_bytes(content)
    with pytest.raises(UserError, match=reason):
        import_model(there, tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
