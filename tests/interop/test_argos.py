"""Packages for Argos Translate, and SentencePiece models of regard tokenizers."""

import json
import math
import unicodedata
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.subwords import SPACE_MARK
from regard.data.text.tokenizer import Tokenizer, Vocabularies, is_unspaced
from regard.errors import UserError
from regard.interop.argos import (
    SEARCH,
    ArgosPackage,
    _compare_texts,
    _package_score,
    _sentencepiece_tokens,
    export_argos,
)
from regard.interop.sentencepiece import to_sentencepiece
from regard.interop.verification import sample_sources
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import random_translator, tokenizer

pytest.importorskip("ctranslate2")
sentencepiece = pytest.importorskip("sentencepiece")

NAME = "translate-en_zh-1_0"


@pytest.fixture(scope="module")
def package(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked package of a trained model."""
    folder = tmp_path_factory.mktemp("argos")
    translator = Translator.load(trained_run)
    summary = export_argos(translator, folder, sample_sources(translator), None)
    assert "log-probabilities within" in summary[0] and "identical" in summary[1]
    with zipfile.ZipFile(folder / f"{NAME}.argosmodel") as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {NAME}
        archive.extractall(folder)
    return folder / NAME


def test_package_contains_metadata_tokenizer_and_model(package: Path) -> None:
    metadata = json.loads((package / "metadata.json").read_text(encoding="utf-8"))
    assert metadata["from_code"] == "en" and metadata["from_name"] == "English"
    assert metadata["to_code"] == "zh" and metadata["to_name"] == "Chinese"
    assert (package / "sentencepiece.model").is_file() and (package / "model" / "model.bin").is_file()


def translate(folder: Path, texts: list[str]) -> list[str]:
    package = ArgosPackage(folder)
    return [package.decode(tokens) for tokens in package.generate(texts)]


def test_package_translates_like_the_regard_model(package: Path, trained_run: Path) -> None:
    texts = [pair.source for pair in toy_pairs()][:60]
    expected = Translator.load(trained_run)(texts, beam=4, alpha=0.2, stop="first", min_length=1)
    assert translate(package, texts) == expected
    assert translate(package, ["I love apples"]) == ["我喜欢苹果"]


TOKENIZERS = {"learned": tokenizer(290), "with-added": tokenizer(290).with_tokens([" QX7", "tall t"])}
TEXTS = st.text(st.sampled_from(" aeiotshrdlnmbkw.,1'QX7é你好\n\t<>0x") | st.characters(exclude_categories=["Cs"]))
NEAR_VOCABULARY = st.lists(st.sampled_from([*tokenizer(290).vocabulary[260:], " QX7", "tall t"])).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150)
@given(text=TEXTS | NEAR_VOCABULARY)
def test_sentencepiece_model_tokenises_any_text_identically(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    text = unicodedata.normalize("NFC", text).replace(SPACE_MARK, "").replace("\0", "")
    model = to_sentencepiece(tokenizer, leading_space=not is_unspaced(text))
    converted = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = tokenizer.encode(text)
    assert converted.encode(text) == ids
    assert converted.decode(ids) == tokenizer.decode(ids)


def test_differences_of_a_quantised_package_are_reported(trained_run: Path, tmp_path: Path, command: Command) -> None:
    answer = command("export", trained_run, tmp_path / "out", "--to", "argos", "--quantization", "int8")
    assert answer.code == 0, answer.err
    exact, texts, quantised, _ = answer.out.splitlines()
    assert "log-probabilities within" in exact and "identical" in texts
    assert quantised.startswith("quantised: identical translations (greedy")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", f"{NAME}.argosmodel"}


def test_models_with_two_vocabularies_are_exported(tmp_path: Path) -> None:
    translator = random_translator("two-vocabularies")
    summary = export_argos(translator, tmp_path, sample_sources(translator)[:12], None)
    assert "log-probabilities within" in summary[0]


def test_models_that_translate_text_without_spaces_are_exported(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["我们在雨中骑车。", "I love apples"] * 3, 290)
    model = random_translator("post", source_vocab=len(tokenizer), target_vocab=len(tokenizer)).model
    translator = Translator(model, Vocabularies(tokenizer, tokenizer), ("zh-CN", "en"))
    texts = ["我们骑车。", "“雨”在3月。", "I love apples"]
    summary = export_argos(translator, tmp_path, sample_sources(translator, texts), None)
    assert "log-probabilities within" in summary[0] and "identical" in summary[1]
    with zipfile.ZipFile(tmp_path / "translate-zh-CN_en-1_0.argosmodel") as archive:
        archive.extractall(tmp_path)
    package = ArgosPackage(tmp_path / "translate-zh-CN_en-1_0")
    assert package.tokenizer.encode(texts[:2]) == tokenizer.encode_batch(texts[:2])
    with pytest.raises(UserError, match="no sentence of the sample starts in a script of zh-CN"):
        export_argos(translator, tmp_path, sample_sources(translator, texts[2:]), None)


def test_unsupported_models_are_rejected(trained_run: Path, tmp_path: Path, command: Command) -> None:
    translator = random_translator("post")
    without_languages = Translator(translator.model, translator.vocabularies)
    with pytest.raises(UserError, match="source language of this model is 'source'"):
        export_argos(without_languages, tmp_path, sample_sources(translator), None)
    short = random_translator("pre-learned", max_length=24)
    with pytest.raises(UserError, match="up to 256 tokens, but this model has 24 learned positions"):
        export_argos(short, tmp_path, sample_sources(short), None)
    with pytest.raises(UserError, match="word-level tokenizer"):
        to_sentencepiece(Tokenizer.train(["one two", "one two"], 300, "word"))
    answer = command("export", trained_run, tmp_path / "out", "--to", "argos", "--quantization", "int4")
    assert "not one of float32" in answer.error
    assert list(tmp_path.iterdir()) == []


def test_different_tokenisation_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator, other = random_translator("post"), to_sentencepiece(tokenizer(280))
    monkeypatch.setattr("regard.interop.argos.to_sentencepiece", lambda *_: other)
    with pytest.raises(UserError, match=r"tokenises .* differently, so nothing was written"):
        export_argos(translator, tmp_path, sample_sources(translator), None)


class OtherPackage(ArgosPackage):
    """Returns given tokens, and the same text for all of them."""

    def __init__(self, tokens: list[list[str]]) -> None:
        self.tokens = tokens

    def generate(self, texts: Sequence[str]) -> list[list[str]]:
        return self.tokens

    def decode(self, tokens: Sequence[str]) -> str:
        return "another text"


def test_other_texts_are_accepted_only_with_equal_scores(trained_run: Path) -> None:
    translator = Translator.load(trained_run)
    texts = ["I love apples", "You buy tea"]
    encoded = translator.vocabularies.source.encode_batch(texts)
    beams = translator.hypotheses(texts, SEARCH.changed(n_best=4), split=False)
    vocabulary = _sentencepiece_tokens(translator)[1]
    best, worst = ([[vocabulary[token] for token in beam[rank].tokens] for beam in beams] for rank in (0, -1))
    summary = _compare_texts(translator, OtherPackage(best), texts, encoded)
    assert summary.endswith(": 0 of 2 identical and 2 with equal scores")
    with pytest.raises(UserError, match="translates to 'another text', but the regard model to '我喜欢苹果'"):
        _compare_texts(translator, OtherPackage(worst), texts, encoded)


def test_scores_of_the_package_exclude_the_end_of_an_empty_translation() -> None:
    hypothesis = Hypothesis("a b", -1.5, tokens=[7, 8])
    expected = -1.5 + math.log(2) / SEARCH.length_normaliser(3.0)
    assert _package_score(hypothesis, math.log(0.5)) == pytest.approx(expected)
    assert math.isfinite(_package_score(hypothesis, 0.0))
