"""Our models as packages of Argos Translate: tokenizers as SentencePiece has them, and the same texts out."""

import json
import zipfile
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.text.tokenizer import SPACE_MARK, Tokenizer
from regard.errors import UserError
from regard.interop.argos import ArgosPackage, write_argos
from regard.interop.sentencepiece import to_sentencepiece
from regard.interop.verification import sample_sources
from regard.pipelines.translator import Translator
from tests.conftest import Command, toy_pairs
from tests.interop.random_models import random_translator, tokenizer

NAME = "translate-en_zh-1_0"


@pytest.fixture(scope="module")
def package(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the trained model's package is unpacked."""
    folder = tmp_path_factory.mktemp("argos")
    translator = Translator.load(trained_run)
    said = write_argos(translator, folder, sample_sources(translator), None)
    assert "log-probabilities within" in said[0] and "translations are the same" in said[1]
    with zipfile.ZipFile(folder / f"{NAME}.argosmodel") as packed:
        assert {name.split("/")[0] for name in packed.namelist()} == {NAME}
        packed.extractall(folder)
    return folder / NAME


def test_the_package_holds_what_argos_looks_for(package: Path) -> None:
    about = json.loads((package / "metadata.json").read_text(encoding="utf-8"))
    assert about["from_code"] == "en" and about["from_name"] == "English"
    assert about["to_code"] == "zh" and about["to_name"] == "Chinese"
    assert (package / "sentencepiece.model").is_file() and (package / "model" / "model.bin").is_file()


def test_it_translates_as_ours_does(package: Path, trained_run: Path) -> None:
    texts = [pair.source for pair in toy_pairs()][:60]
    ours = Translator.load(trained_run)(texts, beam=4, alpha=0.2, stop="first")
    assert ArgosPackage(package).translate(texts) == ours
    assert ArgosPackage(package).translate(["I love apples"]) == ["我喜欢苹果"]


TOKENIZERS = {"learned": tokenizer(290), "with-added": tokenizer(290).with_tokens([" QX7", "tall t"])}
TEXTS = st.text(st.sampled_from(" aeiotshrdlnmbkw.,1'QX7é你好\n\t<>0x") | st.characters(exclude_categories=["Cs"]))
CLOSE_TO_THE_VOCABULARY = st.lists(st.sampled_from([*tokenizer(290).vocabulary[260:], " QX7", "tall t"])).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150)
@given(text=TEXTS | CLOSE_TO_THE_VOCABULARY)
def test_sentencepiece_cuts_every_text_as_ours_does(name: str, text: str) -> None:
    import unicodedata

    ours = TOKENIZERS[name]
    theirs = sentencepiece.SentencePieceProcessor(model_proto=to_sentencepiece(ours))
    text = unicodedata.normalize("NFC", text).replace(SPACE_MARK, "").replace("\0", "")
    assert theirs.encode(text) == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))


def test_a_quantised_package_says_how_far_off_it_is(trained_run: Path, tmp_path: Path, command: Command) -> None:
    answer = command("export", trained_run, tmp_path / "out", "--to", "argos", "--quantization", "int8")
    assert answer.code == 0, answer.err
    exact, texts, quantised, _ = answer.out.splitlines()
    assert "log-probabilities within" in exact and "translations are the same" in texts
    assert quantised.startswith("quantised, it gives the same translations in: greedy")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", f"{NAME}.argosmodel"}


def test_two_vocabularies(tmp_path: Path) -> None:
    ours = random_translator("two-vocabularies")
    said = write_argos(ours, tmp_path, sample_sources(ours)[:12], None)
    assert "log-probabilities within" in said[0]


def test_what_argos_cannot_have_is_refused(trained_run: Path, tmp_path: Path, command: Command) -> None:
    ours = random_translator("post")
    with pytest.raises(UserError, match="this model's source is 'source'"):
        write_argos(Translator(ours.model, ours.vocabularies), tmp_path, sample_sources(ours), None)
    short = random_translator("pre-learned", max_length=24)
    with pytest.raises(UserError, match="write 256 tokens, and this one's learned positions end at 24"):
        write_argos(short, tmp_path, sample_sources(short), None)
    with pytest.raises(UserError, match="tokenizer of words"):
        to_sentencepiece(Tokenizer.train(["one two", "one two"], 300, "word"))
    answer = command("export", trained_run, tmp_path / "out", "--to", "argos", "--quantization", "int4")
    assert "none of float32" in answer.error
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_cuts_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.interop import argos

    ours = random_translator("post")
    other = to_sentencepiece(tokenizer(280))
    monkeypatch.setattr(argos, "to_sentencepiece", lambda _: other)
    with pytest.raises(UserError, match=r"cuts .* otherwise, so nothing was written"):
        write_argos(ours, tmp_path, sample_sources(ours), None)
