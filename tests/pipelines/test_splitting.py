"""Texts of several sentences: `Translator` and `regard translate` translate them one by one, and warn of long ones."""

import json
from pathlib import Path

import pytest

import regard
from regard.data.text.readers import read_lines
from tests.conftest import Command

TEXT = "I love apples!  You buy tea\n\nThey want dogs"
SENTENCES = ["I love apples!", "You buy tea", "They want dogs"]
LINE = "I love apples! You buy tea"


@pytest.fixture
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


def test_a_text_is_translated_sentence_by_sentence(translator: regard.Translator) -> None:
    first, second, third = translator(SENTENCES)
    assert translator(TEXT) == f"{first}  {second}\n\n{third}"
    assert translator(f" {TEXT}\n") == f" {first}  {second}\n\n{third}\n"
    assert translator([LINE, "", "You buy tea", " \n"]) == [translator(LINE), "", "你买茶", " \n"]


def test_without_splitting_a_text_is_one_sequence(translator: regard.Translator) -> None:
    whole = translator(TEXT, split=False, n_best=1)[0]
    assert whole.source_subwords == translator.vocabularies.source.tokens(translator.vocabularies.source.encode(TEXT))
    assert whole.text != translator(TEXT)
    assert whole.sentences == (whole,)
    assert translator.hypotheses([TEXT], split=False)[0][0].text == whole.text == translator(TEXT, split=False)


def test_hypotheses_hold_the_sentences_with_alignments(translator: regard.Translator) -> None:
    n_best = translator(TEXT, n_best=3)
    by_sentence = translator(SENTENCES, n_best=3)
    assert len(n_best) == 3
    for rank, hypothesis in enumerate(n_best):
        assert [one.source for one in hypothesis.sentences] == SENTENCES
        assert [one.text for one in hypothesis.sentences] == [found[rank].text for found in by_sentence]
        assert hypothesis.score == pytest.approx(sum(one.score for one in hypothesis.sentences))
        assert hypothesis.source == TEXT
        for one in hypothesis.sentences:
            assert one.alignment is not None
            assert len(one.alignment) == len(one.tokens) + 1
            assert {len(row) for row in one.alignment} == {len(one.source_subwords) + 1}
    (single,) = translator(" You buy tea", n_best=1)
    assert (single.text, single.sentences) == (" 你买茶", (single,))
    assert single.tokens


def test_a_translation_does_not_depend_on_the_other_texts(translator: regard.Translator) -> None:
    texts = [TEXT, "Children see cats and books", LINE, "", "We buy tea\nI see dogs and books and tea"]
    together = translator.hypotheses(texts)
    for text, (best, *_) in zip(texts, together, strict=True):
        (alone, *_) = translator.hypotheses([text])[0]
        assert best.text == alone.text
        assert best.score == pytest.approx(alone.score, abs=1e-4)
    assert [n_best[0].text for n_best in translator.stream(iter(texts))] == [n_best[0].text for n_best in together]


def test_a_prefix_belongs_to_the_first_sentence_and_forbidden_phrases_to_all(translator: regard.Translator) -> None:
    text = "I love apples\nI love apples"
    prefixed = translator.hypotheses([text], constraints=regard.Constraints(prefix="我们"))[0][0]
    first, second = (one.text for one in prefixed.sentences)
    assert first.startswith("我们")
    assert second == "我喜欢苹果"
    forbidden = translator.hypotheses([text], constraints=regard.Constraints(forbidden=("苹果",)))[0][0]
    assert "苹果" not in forbidden.text
    assert forbidden.phrases == {"苹果": True}


def test_a_required_phrase_in_several_sentences_is_rejected(translator: regard.Translator) -> None:
    required = regard.Constraints(required=("苹果",))
    with pytest.raises(regard.UserError, match=r"sentence 2: it has several sentences.*--no-split"):
        translator.hypotheses(["I love apples", LINE], constraints=required)
    assert "苹果" in translator.hypotheses([LINE], constraints=required, split=False)[0][0].text


def test_probe_records_every_sentence(translator: regard.Translator) -> None:
    with regard.probe(translator.model, ["decoder.1.cross"]) as seen:
        translator(TEXT)
    assert len(seen["decoder.1.cross"].weights) == len(SENTENCES)


# Sentences longer than those of the training data


def test_the_run_states_the_length_of_its_longest_source(
    toy: Path, translator: regard.Translator, tmp_path: Path
) -> None:
    sources = translator.vocabularies.source.encode_batch(list(read_lines(toy / "train.en")))
    assert translator.longest_source == max(map(len, sources))
    translator.save_pretrained(tmp_path / "copy")
    assert regard.Translator.load(tmp_path / "copy").longest_source == translator.longest_source
    config = json.loads((tmp_path / "copy" / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config | {"longest_source": "ten"}), encoding="utf-8")
    with pytest.raises(regard.UserError, match=r"config.json: longest_source: input should be a valid integer"):
        regard.Translator.load(tmp_path / "copy")


def test_a_longer_sentence_gives_a_warning(translator: regard.Translator, caplog: pytest.LogCaptureFixture) -> None:
    known = "I love apples"
    translator.longest_source = len(translator.vocabularies.source.encode(known))
    long = f"{known} and tea"
    tokens = len(translator.vocabularies.source.encode(long))
    expected = f"{tokens} tokens, but the longest training source has {translator.longest_source}"
    assert translator([known, ""]) == ["我喜欢苹果", ""]
    assert caplog.messages == []
    translator([known, f"{known}\n{long}", long])
    (message,) = caplog.messages
    assert message.startswith(f"text 2: {expected}")
    assert message.endswith("(and 1 more)")
    (best,) = translator.hypotheses([f"{known}\n{long}"])[0]
    assert [one.warning is None for one in best.sentences] == [True, False]
    assert best.warning == best.sentences[1].warning
    translator.longest_source = None
    assert translator.hypotheses([long])[0][0].warning is None


def test_a_sentence_beyond_the_positions_is_divided_with_a_warning(translator: regard.Translator) -> None:
    class Limited(regard.Translator):
        max_source_tokens = 6

    limited = Limited(translator.model, translator.vocabularies)
    long = "I love apples and tea and books and dogs"
    (best,) = limited.hypotheses([long])[0]
    assert " ".join(one.source for one in best.sentences) == long
    assert len(best.sentences) > 1
    assert all(len(one.source_subwords) <= 6 for one in best.sentences)
    assert best.warning == "too long for the model, so it was divided; the translation may be incomplete"
    with pytest.raises(regard.UserError, match=r"sentence 1 has \d+ tokens, .* positions end at 6"):
        limited(long, split=False)


# The command line


def test_lines_are_split_unless_told_otherwise(
    trained_run: Path, translator: regard.Translator, command: Command
) -> None:
    stdin = f"{LINE}\n\nYou buy tea\n".encode()
    split, whole = (
        command("translate", trained_run, stdin=stdin),
        command("translate", trained_run, "--no-split", stdin=stdin),
    )
    assert split.out.splitlines() == [translator(LINE), "", "你买茶"]
    assert whole.out.splitlines() == [translator(LINE, split=False), "", "你买茶"]
    assert split.out != whole.out
    assert command("translate", trained_run, "--input", "x", "--server", "http://x", "--no-split").error.startswith(
        "--split has no effect with --server"
    )


def test_json_has_the_n_best_translations_of_each_sentence(
    trained_run: Path, translator: regard.Translator, command: Command
) -> None:
    options = ("--json", "--n-best", 2, "--alignments")
    record = json.loads(command("translate", trained_run, LINE, *options).out)
    assert (record["source"], record["text"]) == (LINE, translator(LINE))
    assert [sentence["source"] for sentence in record["sentences"]] == SENTENCES[:2]
    for sentence in record["sentences"]:
        assert len(sentence["hypotheses"]) == 2
        for hypothesis in sentence["hypotheses"]:
            assert len(hypothesis["alignment"]) == len(hypothesis["subwords"]) + 1
            assert {len(row) for row in hypothesis["alignment"]} == {len(sentence["source_subwords"]) + 1}
    rows = [row.split(" ||| ") for row in command("translate", trained_run, LINE, "--n-best", 2).out.splitlines()]
    scores = [sum(one["hypotheses"][rank]["score"] for one in record["sentences"]) for rank in (0, 1)]
    assert [row[0] for row in rows] == ["1", "1"]
    assert [float(row[2]) for row in rows] == pytest.approx(scores, abs=1e-4)


def test_long_lines_are_reported_on_standard_error_and_in_json(trained_run: Path, command: Command) -> None:
    long = "I love apples " + "and tea " * 40
    answer = command("translate", trained_run, "I love apples", long, "--json", "--search", "max_length=20")
    short, record = map(json.loads, answer.out.splitlines())
    assert answer.err.startswith("regard: line 2: ")
    assert "but the longest training source has" in answer.err
    assert answer.err.count("\n") == 1
    assert "warning" not in short["sentences"][0]
    assert f"regard: line 2: {record['sentences'][0]['warning']}\n" == answer.err
