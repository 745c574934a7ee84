"""The lossless tokenizer: round trips, ids, training, files and added tokens."""

import json
import os
import random
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.data.text.tokenizer import Tokenizer, is_unspaced
from regard.errors import UserError

LINES = [
    "The bike is red.",
    "the old bike stood in the rain, the new bike in the barn",
    "An old man rides the bike 12 times, 3 times in the rain!",
    "Die Übung ist schön, die Übungen sind schöner.",
    "我们在北京骑自行车。",
    "我们在雨中骑车。",
    "a\ttab and  two   spaces; a mark \u2581\u2581 and \u2581\u2581",
    "<eos> <eos> <0x41> <0x41> <pad> <pad>",
] * 3

KINDS: tuple[Any, ...] = ("bpe", "word")
TOKENIZERS = {kind: Tokenizer.train(LINES, 500, kind) for kind in KINDS}
TOKENIZERS["tiny"] = Tokenizer.train(LINES, 261)
EXPORTED = {name: tokenizer.to_tokenizers() for name, tokenizer in TOKENIZERS.items()}

MARKUP = ["<eos>", "<pad> <bos><unk>", "<0x41>", "a<0x00>b", " <eos>", "<eos", "<0x41><0x41>", "<s></s>[UNK][PAD]"]
UNUSUAL = [
    "",
    " ",
    "   ",
    " leading",
    "trailing ",
    "many   spaces    inside  ",
    "\ttab\nnewline\r\nreturn\x0b\x0c\x85\u2028\u2029",
    "\x00\x01\x1b\x7f",
    "\u2581",
    "\u2581bike \u2581 bike\u2581 \u2581\u2581",
    "e\u0301 \u0301 a\u0323\u0301",
    "👩‍👩‍👧‍👦 ❤️ 🇩🇪",
    "\ufeffmark\u200b\u200d\u00a0\u3000",
    "\uffff\U0010ffff\ue000",
    "한국어 ภาษาไทย עִבְרִית",
    "𠀀々〇〆",
]


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


# Round trips


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=400, derandomize=True)
@given(text=st.text())
def test_any_text_survives_a_round_trip_in_nfc(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer.encode(text)) == nfc(text)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=400, derandomize=True)
@given(text=st.text(alphabet="\u2581 <>0x41eosbikéTh.12\t\n我们\u0301\u0323\u07fd"))
def test_text_similar_to_the_training_text_survives_a_round_trip(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer.encode(text)) == nfc(text)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=200, derandomize=True)
@given(
    parts=st.lists(
        st.sampled_from([" ", "  ", "\u3000", "\u200b", "\x00", "\n", "我们", "。", "カ", "ไทย", "bike", "12", "🙂"])
    )
)
def test_text_of_mixed_scripts_survives_a_round_trip(name: str, parts: list[str]) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(parts)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_batch([text]) == [EXPORTED[name].encode(text).ids] == [tokenizer.encode(text)]


@pytest.mark.parametrize("text", UNUSUAL)
def test_unusual_characters_survive_a_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == nfc(text)


@pytest.mark.parametrize("text", MARKUP)
def test_special_tokens_in_text_are_plain_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {Tokenizer.PAD, Tokenizer.BOS, Tokenizer.EOS, Tokenizer.UNK} & set(ids)
    assert 4 + 0x41 not in ids
    assert 4 + 0x00 not in ids


def test_every_character_of_the_basic_plane_survives_a_round_trip(tokenizer: Tokenizer) -> None:
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    texts = [" ".join(characters[start : start + 64]) for start in range(0, len(characters), 64)]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(texts)] == [nfc(text) for text in texts]


@settings(max_examples=200, derandomize=True)
@given(ids=st.lists(st.integers(0, len(TOKENIZERS["bpe"]) - 1)))
def test_any_ids_decode_to_valid_text(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["bpe"]
    text = tokenizer.decode(ids)
    assert tokenizer.decode(tokenizer.encode(text)) == nfc(text)


# Ids and tokens


def test_special_tokens_and_bytes_have_the_first_ids(tokenizer: Tokenizer) -> None:
    fixed = tokenizer.tokens(range(260))
    assert tuple(fixed[:4]) == Tokenizer.SPECIAL_TOKENS == ("<pad>", "<bos>", "<eos>", "<unk>")
    assert (fixed[4], fixed[4 + 0x41], fixed[259]) == ("<0x00>", "<0x41>", "<0xFF>")
    assert (Tokenizer.PAD, Tokenizer.BOS, Tokenizer.EOS, Tokenizer.UNK) == (0, 1, 2, 3)


def test_a_space_is_displayed_at_the_start_of_its_word(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokens(tokenizer.encode("the bike.")) == ["▁the", "▁bike", "."]


def test_a_literal_space_mark_is_encoded_as_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokens(tokenizer.encode("bike\u2581")) == ["▁bike", "<0xE2>", "<0x96>", "<0x81>"]


def test_an_unseen_character_is_encoded_as_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.tokens(tokenizer.encode("bike€"))[1:] == ["<0xE2>", "<0x82>", "<0xAC>"]


def test_every_digit_is_a_token() -> None:
    tokenizer = Tokenizer.train(["1999 1999 1999"] * 9, 400)
    assert tokenizer.tokens(tokenizer.encode("1999")) == ["▁1", "9", "9", "9"]


def test_an_unknown_word_is_encoded_as_characters() -> None:
    tokenizer = TOKENIZERS["word"]
    assert tokenizer.tokens(tokenizer.encode("bikes, bi€")) == [*"▁bikes", ",", *"▁bi", "<0xE2>", "<0x82>", "<0xAC>"]


def test_every_han_character_is_a_word() -> None:
    tokenizer = TOKENIZERS["word"]
    assert tokenizer.tokens(tokenizer.encode("我们骑bike")) == ["我", "们", "骑", *"bike"]
    assert tokenizer.tokens(tokenizer.encode("bike 我们")) == ["▁bike", "▁", "我", "们"]


@pytest.mark.parametrize(
    "text", ["我们骑车。", "“我们”", "3月", "GDP增长了。", "我们 is we", "ひらがな", "ラーメン", "ภาษาไทย"]
)
def test_text_without_spaces_gets_no_leading_space(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert is_unspaced(text)
    assert ids == tokenizer.encode_continuation(text)
    assert b"".join(tokenizer.token_bytes[index] for index in ids).decode() == text


@pytest.mark.parametrize("text", ["the 我们", "한국어", "3", "“the”", "", " 我们", "\u3000我们", "the\n我们", "\t我们"])
def test_other_text_gets_a_leading_space(tokenizer: Tokenizer, text: str) -> None:
    assert not is_unspaced(text)
    assert tokenizer.encode(text) == tokenizer.encode_continuation(f" {text}" if text else "")


def test_a_leading_space_is_removed_from_generated_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_continuation(" 我们")
    assert tokenizer.decode(ids) == "我们"
    assert tokenizer.char_spans(ids)[-1][1] == len("我们")


def test_the_space_is_in_the_vocabulary_of_text_without_spaces() -> None:
    tokenizer = Tokenizer.train(["我们在雨中骑车。"] * 3, 280)
    assert tokenizer.tokens(tokenizer.encode("x"))[0] == "▁"
    assert "▁" in tokenizer.tokens(tokenizer.encode("我们 我们"))


def test_words_seen_once_are_not_in_the_vocabulary() -> None:
    tokenizer = Tokenizer.train(["again again", "once"], 400, "word")
    learned = tokenizer.tokens(range(260, len(tokenizer)))
    assert "▁again" in learned
    assert "▁once" not in learned


def test_special_tokens_are_skipped_in_decoding(tokenizer: Tokenizer) -> None:
    ids = [Tokenizer.BOS, *tokenizer.encode("the bike"), Tokenizer.EOS, Tokenizer.PAD, Tokenizer.PAD]
    assert tokenizer.decode(ids) == "the bike"


def test_stray_bytes_decode_to_the_replacement_character(tokenizer: Tokenizer) -> None:
    lead, stray = 4 + 0xE2, 4 + 0x81
    ids = [*tokenizer.encode("the"), lead, *tokenizer.encode("bike"), stray]
    assert tokenizer.decode(ids) == "the\ufffd bike\ufffd"


@pytest.mark.parametrize("index", [-1, 500])
def test_an_id_outside_the_vocabulary_is_rejected(index: int) -> None:
    with pytest.raises(ValueError, match=f"id {index} "):
        TOKENIZERS["bpe"].decode([index])


def test_a_batch_is_encoded_like_its_texts(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.text.tokenizer.BATCH", 5)
    texts = [*LINES, *MARKUP, *UNUSUAL]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


def test_a_lone_surrogate_is_rejected_with_its_position(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"the text.*U\+D83D.*position 3"):
        tokenizer.encode("abc\ud83d")
    with pytest.raises(UserError, match=r"text 1 of the batch.*U\+DC00.*position 0"):
        tokenizer.encode_batch(["fine", "\udc00"])
    with pytest.raises(UserError, match=r"line 2 of the training text.*position 1"):
        Tokenizer.train(["fine", "a\udc00"], 300)


# Training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [261, 262, 263, 270, 300, 340])
def test_the_vocabulary_has_the_requested_size(kind: Any, size: int) -> None:
    assert len(Tokenizer.train(LINES, size, kind)) == size


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_text_gives_a_smaller_vocabulary(kind: Any) -> None:
    tokenizer = Tokenizer.train(["x"], 1000, kind)
    assert tokenizer.tokens(range(260, len(tokenizer))) == ["▁"]
    assert tokenizer.decode(tokenizer.encode("x y")) == "x y"


@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_too_small_is_rejected_with_the_minimum(kind: Any) -> None:
    with pytest.raises(UserError, match=r"size 260 .*need 261"):
        Tokenizer.train(LINES, 260, kind)


@pytest.mark.parametrize("lines", [[], [""], ["", "  ", "\t"]])
@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_training_text_is_rejected(lines: list[str], kind: Any) -> None:
    with pytest.raises(UserError, match="training text of the tokenizer is empty"):
        Tokenizer.train(lines, 300, kind)


def test_an_unknown_kind_is_rejected() -> None:
    kind: Any = "unigram"
    with pytest.raises(UserError, match=r'"unigram".*"bpe" or "word"'):
        Tokenizer.train(LINES, 300, kind)


def test_the_lines_may_come_from_a_generator() -> None:
    assert Tokenizer.train((line for line in LINES), 500).fingerprint() == TOKENIZERS["bpe"].fingerprint()


def test_merges_do_not_skip_a_rare_character() -> None:
    # "q" and "z" would be neighbours only if the rare characters between them were removed.
    tokenizer = Tokenizer.train([f"q{chr(0x400 + n)}z" for n in range(50)], 300)
    assert "qz" not in tokenizer.tokens(range(len(tokenizer)))


def test_very_long_words_are_split() -> None:
    # Training on an unsplit word of this length would take minutes.
    tokenizer = Tokenizer.train(["x" * 500_000], 280)
    assert max(map(len, tokenizer.tokens(range(len(tokenizer))))) <= 200
    assert tokenizer.decode(tokenizer.encode("x" * 1000)) == "x" * 1000


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_same_result_in_every_process(kind: str) -> None:
    # Many characters, pairs and words are equally frequent, so that a dependence on hash order would be visible.
    program = (
        "import random, sys; from regard.data.text.tokenizer import Tokenizer; draw = random.Random(0).choices; "
        "lines = [''.join(draw([chr(c) for c in range(0x4E00, 0x4F00)] + list('abcdefgh    '), k=60)) "
        "for _ in range(300)]; "
        f"print(Tokenizer.train(lines, 500, {kind!r})._backend.to_str())"
    )
    root = Path(regard.__file__).parents[1]
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, cwd=root, capture_output=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_training_does_not_depend_on_the_order_of_the_lines() -> None:
    shuffled = random.Random(1).sample(LINES, len(LINES))
    assert Tokenizer.train(shuffled, 500).fingerprint() == TOKENIZERS["bpe"].fingerprint()


# Files


def test_a_saved_tokenizer_is_loaded_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    texts = [*LINES, *MARKUP, *UNUSUAL]
    assert loaded.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert len(loaded) == len(tokenizer)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    again = tmp_path / "again.json"
    loaded.save(again)
    assert again.read_bytes() == path.read_bytes()


def test_different_tokenizers_have_different_fingerprints() -> None:
    fingerprints = {tokenizer.fingerprint() for tokenizer in TOKENIZERS.values()}
    assert len(fingerprints) == len(TOKENIZERS)
    assert all(len(fingerprint) == 16 for fingerprint in fingerprints)


def test_a_missing_file_is_rejected_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.json: no such file; give the path of a saved tokenizer"):
        Tokenizer.load(tmp_path / "missing.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"version": "1.0", "model": 3}'])
def test_a_damaged_file_is_rejected_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged\.json(:| is) damaged"):
        Tokenizer.load(path)


def test_a_truncated_file_is_rejected_with_its_name(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    tokenizer.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"cut\.json is damaged"):
        Tokenizer.load(path)


def change_saved(tokenizer: Tokenizer, path: Path, change: Any) -> Path:
    tokenizer.save(path)
    state = json.loads(path.read_text(encoding="utf-8"))
    change(state)
    path.write_text(json.dumps(state), encoding="utf-8")
    return path


def test_other_special_ids_are_rejected_with_the_name(tmp_path: Path) -> None:
    def exchange(state: Any) -> None:
        state["model"]["vocab"].update({"<bos>": 2, "<eos>": 1})

    path = change_saved(TOKENIZERS["word"], tmp_path / "other.json", exchange)
    with pytest.raises(UserError, match=r"other\.json: the id of <bos> is 2, but must be 1"):
        Tokenizer.load(path)


def test_ids_with_a_gap_are_rejected_with_the_name(tmp_path: Path) -> None:
    def leave_gap(state: Any) -> None:
        state["model"]["vocab"]["extra"] = 9999

    path = change_saved(TOKENIZERS["word"], tmp_path / "gap.json", leave_gap)
    with pytest.raises(UserError, match=r"gap\.json: the ids"):
        Tokenizer.load(path)


def test_a_file_with_special_tokens_in_the_text_is_rejected_with_its_name(tmp_path: Path) -> None:
    def add_special(state: Any) -> None:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        state["added_tokens"] = [{"id": 2, "content": "<eos>", "special": True, **flags}]

    path = change_saved(TOKENIZERS["bpe"], tmp_path / "added.json", add_special)
    with pytest.raises(UserError, match=r"added\.json contains a tokenizer that changes text"):
        Tokenizer.load(path)


CHANGING = {
    "no normaliser": lambda state: state.pop("normalizer"),
    "other normaliser": lambda state: state.update(normalizer={"type": "Lowercase"}),
    "truncation": lambda state: state.update(
        truncation={"direction": "Right", "max_length": 99, "strategy": "LongestFirst", "stride": 0}
    ),
    "padding": lambda state: state.update(
        padding={"strategy": {"Fixed": 5}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
        | {"pad_type_id": 0, "pad_token": "<pad>"}
    ),
    "special tokens around the text": lambda state: state.update(
        post_processor={"type": "BertProcessing", "sep": ["<eos>", 2], "cls": ["<bos>", 1]}
    ),
    "no bytes": lambda state: state["model"].update(byte_fallback=False),
    "contradicting rules": lambda state: state["model"].update(byte_fallback=False, unk_token="<none>"),
    "word list": lambda state: state.update(
        model={"type": "WordLevel", "vocab": state["model"]["vocab"], "unk_token": "<unk>"}
    ),
}


@pytest.mark.parametrize("change", CHANGING)
def test_a_file_of_a_lossy_tokenizer_is_rejected_with_its_name(change: str, tmp_path: Path) -> None:
    path = change_saved(TOKENIZERS["bpe"], tmp_path / "lossy.json", CHANGING[change])
    with pytest.raises(UserError, match=r"lossy\.json contains a tokenizer that changes text; train it with regard"):
        Tokenizer.load(path)


def test_a_file_with_a_prefix_of_subwords_is_rejected_before_the_library_panics(tmp_path: Path) -> None:
    def change(state: Any) -> None:
        state["model"]["continuing_subword_prefix"] = "longer than all tokens"

    path = change_saved(TOKENIZERS["bpe"], tmp_path / "prefix.json", change)
    with pytest.raises(UserError, match=r"prefix\.json is damaged .*\(continuing_subword_prefix is not"):
        Tokenizer.load(path)


def test_an_unwritable_path_is_rejected_with_its_name(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent.tokenizer\.json cannot be written"):
        tokenizer.save(tmp_path / "absent" / "tokenizer.json")


# Added tokens


NEW = ["<ent>", " Zoë", "苹果汁", "<ent", "a b", "🜚"]


@pytest.fixture(params=KINDS)
def extended(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param].with_tokens(NEW)


def test_added_tokens_have_the_last_ids_and_are_not_split(extended: Tokenizer) -> None:
    old = len(extended) - len(NEW)
    for number, token in enumerate(NEW):
        assert extended.encode_continuation(token) == [old + number]
        assert extended.encode_continuation(f"x{token}y").count(old + number) == 1
    assert extended.tokens([old, old + 1]) == ["<ent>", "▁Zoë"]
    assert extended.tokens(extended.encode("Zoë <ent> Zoë"))[0] == "▁Zoë"


@given(parts=st.lists(st.one_of(st.text(max_size=8), st.sampled_from(NEW)), max_size=8))
def test_text_with_added_tokens_survives_a_round_trip(parts: list[str]) -> None:
    text = "".join(parts)
    for kind in KINDS:
        tokenizer = TOKENIZERS[kind].with_tokens(NEW)
        assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)
        (batched,) = tokenizer.encode_batch([text])
        assert batched == tokenizer.encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_text_without_added_tokens_is_encoded_as_before(kind: str, extended: Tokenizer) -> None:
    texts = [text for text in [*LINES, *MARKUP, *UNUSUAL] if not any(token in f" {text}" for token in NEW)]
    assert len(texts) > 10
    old = TOKENIZERS[kind]
    assert old.with_tokens(NEW).encode_batch(texts) == old.encode_batch(texts)


def test_a_saved_tokenizer_keeps_its_added_tokens(extended: Tokenizer, tmp_path: Path) -> None:
    extended.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    text = "a <ent> and Zoë<ent>"
    assert loaded.encode(text) == extended.encode(text)
    assert loaded.fingerprint() == extended.fingerprint()
    again = loaded.with_tokens(["<more>"])
    assert again.encode_continuation("<more>") == [len(extended)]
    assert again.encode(text) == extended.encode(text)


def test_added_tokens_change_the_fingerprint() -> None:
    tokenizer = TOKENIZERS["bpe"]
    fingerprints = {
        t.fingerprint() for t in (tokenizer, tokenizer.with_tokens(["<a>"]), tokenizer.with_tokens(["<b>"]))
    }
    assert len(fingerprints) == 3
    assert tokenizer.with_tokens([]).fingerprint() == tokenizer.fingerprint()


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("", "blank"),
        (" \u3000", "blank"),
        ("a\nb", "control character"),
        ("a\tb", "control character"),
        ("\x7f", "control character"),
        ("a\u2028b", "control character"),
        ("▁a", "stands for a space"),
        ("<eos>", "already"),
        ("<0x41>", "already"),
        ("a\udc00", "lone surrogate"),
    ],
)
def test_invalid_added_tokens_are_rejected(token: str, problem: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=problem):
        tokenizer.with_tokens(["<fine>", token])


def test_an_existing_token_cannot_be_added(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="'<a>' is given twice"):
        tokenizer.with_tokens(["<a>", "<a>"])
    with pytest.raises(UserError, match="already"):
        tokenizer.with_tokens(["<a>"]).with_tokens(["<a>"])
    word = next(token for token in tokenizer.tokens(range(260, len(tokenizer))) if token.startswith("▁") and token[1:])
    with pytest.raises(UserError, match="already"):  # within a sentence, it is spelled with a space
        tokenizer.with_tokens([word[1:]])


@pytest.mark.parametrize("flag", ["single_word", "lstrip", "rstrip", "normalized", "special"])
def test_a_file_whose_added_tokens_match_more_than_themselves_is_rejected(flag: str, tmp_path: Path) -> None:
    def change(state: Any) -> None:
        state["added_tokens"][0][flag] = True

    path = change_saved(TOKENIZERS["bpe"].with_tokens(["<x>"]), tmp_path / "added.json", change)
    with pytest.raises(UserError, match=r"added\.json contains a tokenizer that changes text"):
        Tokenizer.load(path)


def test_a_file_that_changes_text_is_rejected_with_its_name(tmp_path: Path) -> None:
    def lowercase(state: Any) -> None:
        state["normalizer"] = {"type": "Lowercase"}

    def remove(state: Any) -> None:
        del state["normalizer"]

    for change in (lowercase, remove):
        path = change_saved(TOKENIZERS["bpe"], tmp_path / "lower.json", change)
        with pytest.raises(UserError, match=r"lower\.json contains a tokenizer that changes text"):
            Tokenizer.load(path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_read_from_the_model(kind: str) -> None:
    assert TOKENIZERS[kind].kind == TOKENIZERS[kind].with_tokens(["<x>"]).kind == kind


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@given(text=st.text() | st.sampled_from(UNUSUAL + LINES))
def test_spans_cover_the_text_in_order(name: str, text: str) -> None:
    tokenizer, text = TOKENIZERS[name], nfc(text)
    ids = tokenizer.encode(text)
    spans = tokenizer.char_spans(ids)
    assert len(spans) == len(ids)
    assert {position for a, b in spans for position in range(a, b)} == set(range(len(text)))
    assert spans == sorted(spans)
    for (a, b), token in zip(spans, tokenizer.tokens(ids), strict=True):
        if not token.startswith("<0x"):
            assert text[a:b].replace(" ", "\u2581") == (token if b - a == len(token) else token[1:])


@given(ids=st.lists(st.integers(0, len(TOKENIZERS["bpe"]) - 1)))
def test_spans_of_any_ids_stay_within_the_text(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["bpe"]
    longest = len(tokenizer.decode(ids))
    assert all(0 <= a <= b <= longest for a, b in tokenizer.char_spans(ids))


def test_word_ids_number_the_words_separated_by_white_space() -> None:
    tokenizer = Tokenizer.train(["don't stop", "naïve 练习"] * 3, 330, "bpe")
    for text in ("don't stop", "  don't\u3000 stop!?  naïve\t练习 ", "Ünknown 🙂x", "x", "a\u0301 b"):
        ids = tokenizer.encode(text)
        ids_by_word: dict[int, list[int]] = {}
        for index, word in zip(ids, tokenizer.word_ids(ids), strict=True):
            ids_by_word.setdefault(word, []).append(index)
        white_space = ids_by_word.pop(-1, [])
        assert not tokenizer.decode(white_space).strip()
        assert sorted(ids_by_word) == list(range(len(ids_by_word)))
        words = [tokenizer.decode(ids).strip() for _, ids in sorted(ids_by_word.items())]
        assert words == tokenizer.decode(ids).split()
    assert tokenizer.word_ids([]) == []


def test_token_of_a_language_precedes_every_text() -> None:
    tokenizer = Tokenizer.train(["one two"] * 3, 270).with_tokens([">>de<<", ">>zh-Hant<<"])
    assert tokenizer.languages == ["de", "zh-Hant"]
    german = tokenizer.with_language("de")
    assert german.encode("one") == [tokenizer.vocabulary.index(">>de<<"), *tokenizer.encode("one")]
    assert german.encode(">>zh-Hant<< one") == tokenizer.encode(">>zh-Hant<< one")
    with pytest.raises(UserError, match="the vocabulary has no token >>fr<<, which would select the target language"):
        tokenizer.with_language("fr")
