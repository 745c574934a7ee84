"""Translation with a glossary."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from regard import Constraints, SearchSettings, Translator
from regard.data.text.glossary import find_target
from regard.data.text.tokenizer import Tokenizer
from regard.errors import UserError
from regard.pipelines.term_automaton import SentenceTerms, TargetAutomaton, _decode
from regard.pipelines.term_search import find_word
from tests.conftest import OBJECTS, SUBJECTS, VERBS, Command, toy_pairs

SOURCES = [pair.source for pair in toy_pairs()[::9]]
OTHERS = dict(zip(OBJECTS, [*list(OBJECTS.values())[1:], next(iter(OBJECTS.values()))], strict=True))
"""The object after each object: translations that the model would not choose."""


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return Translator.load(trained_run)


def test_term_replaces_what_the_model_would_write(translator: Translator) -> None:
    (best,) = translator("I love apples", glossary={"apple": "书"}, n_best=1)
    assert best.text == "我喜欢书" and "1 of 1 terms kept" in repr(best)
    assert [(use.source, use.target, use.kept) for use in best.terms] == [("apples", "书", True)]


def test_other_words_remain_as_they_are(translator: Translator) -> None:
    expected = {
        f"{subject} {verb} {noun}": f"{SUBJECTS[subject]}{VERBS[verb]}{OTHERS[noun]}"
        for subject, verb, noun in product(SUBJECTS, VERBS, OBJECTS)
    }
    found = translator(list(expected), glossary=OTHERS)
    assert all(OTHERS[source.split()[-1]] in text for source, text in zip(expected, found, strict=True))
    assert sum(a == b for a, b in zip(found, expected.values(), strict=True)) >= 0.6 * len(expected)


def test_translations_with_all_terms_are_not_searched_again(translator: Translator) -> None:
    plain, terms = translator.hypotheses(SOURCES), translator(SOURCES, glossary=OBJECTS, n_best=1)
    for (before, *_), (after,) in zip(plain, terms, strict=True):
        assert (after.text, after.score) == (before.text, before.score)
        assert after.terms and all(use.kept for use in after.terms)


def test_result_does_not_depend_on_other_sentences(translator: Translator) -> None:
    together = translator(SOURCES, glossary=OTHERS, n_best=2)
    for source, (best, second) in list(zip(SOURCES, together, strict=True))[::4]:
        alone, other = translator(source, glossary=OTHERS, n_best=2)
        assert (alone.text, other.text) == (best.text, second.text)
        assert alone.score == pytest.approx(best.score, abs=1e-4)


def test_call_overrides_the_glossary_of_the_translator(trained_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("apples\t书\n", encoding="utf-8")
    translator = Translator.load(trained_run, glossary=path)
    assert translator("I love apples") == "我喜欢书"
    assert translator("I love apples", glossary=[("apples", "茶")]) == "我喜欢茶"
    assert translator("I love apples", glossary={}) == "我喜欢苹果"


def test_each_text_has_its_own_glossary_or_the_one_for_all(trained_run: Path) -> None:
    translator = Translator.load(trained_run, glossary={"apples": "茶"})
    texts, book = ["I love apples"] * 3, [("apples", "书")]

    def translate(**glossaries: Any) -> list[str]:
        return [best.text for best, *_ in translator.hypotheses(texts, **glossaries)]

    assert translate() == ["我喜欢茶"] * 3
    assert translate(glossary=book) == ["我喜欢书"] * 3  # a list of pairs is one glossary
    assert translate(glossaries=[book, None, {}]) == ["我喜欢书", "我喜欢茶", "我喜欢苹果"]
    assert translate(glossary=book, glossaries=[None, {}, {"apples": "茶"}]) == ["我喜欢书", "我喜欢苹果", "我喜欢茶"]
    with pytest.raises(UserError, match="glossaries: the list has 1, but texts has 3"):
        translate(glossaries=[book])


def test_terms_of_all_sentences_are_reported(translator: Translator) -> None:
    (best,) = translator("I love apples. You love tea.", glossary={"apple": "苹果", "tea": "不"}, n_best=1)
    assert [use.target for use in best.terms] == ["苹果", "不"]
    assert [len(part.terms) for part in best.parts] == [1, 1]


def test_terms_work_with_prefix_alignments_and_trees(translator: Translator) -> None:
    from regard.data.text.glossary import Glossary

    found = translator.hypotheses(
        ["I love apples"],
        constraints=Constraints(prefix="昨天"),
        alignments=True,
        trees=True,
        glossary=Glossary.of({"apples": "书"}),
    )[0][0]
    assert found.text.startswith("昨天") and "书" in found.text
    assert found.alignment is not None and len(found.alignment) == len(found.tokens) + 1 and found.tree


def test_terms_and_required_phrases_are_both_kept(translator: Translator) -> None:
    texts = ["I love apples", "You buy tea", "We see dogs", "I love apples"]
    constraints = [*(Constraints(required=(phrase,)) for phrase in ("茶", "昨天", "茶")), Constraints()]
    glossary = {"apples": "书", "tea": "不"}
    settings = SearchSettings(beam=6)
    found = [best for best, *_ in translator.hypotheses(texts, settings, constraints, glossary=glossary)]
    assert [best.phrases for best in found] == [{"茶": True}, {"昨天": True}, {"茶": True}, {}]
    assert [[use.kept for use in best.terms] for best in found] == [[True], [True], [], [True]]
    for best, contained in zip(found, ("书茶", ["不", "昨天"], "茶", "书"), strict=True):
        assert all(text in best.text for text in contained)
    for text, one, best in zip(texts, constraints, found, strict=True):
        assert translator.hypotheses([text], settings, one, glossary=glossary)[0][0].text == best.text


@pytest.mark.parametrize(
    ("text", "drops", "word"),
    [
        ("one two, three", {5: 2.0}, "two"),
        ("one two, three", {0: 0.9, 9: 1.1}, "three"),
        ("one two, three", {7: 2.0, 6: 1.1}, "two"),  # a comma and the letter before it
        ("one two, three", {7: 2.0, 6: 0.9}, ""),
        ("one two, three", {5: 0.9}, ""),
        ("我喜欢书", {1: 2.0, 2: 1.0}, "喜欢"),
        ("我喜欢书", {1: 2.2, 2: 1.0}, "喜"),
        ("我喜欢书", {2: 2.0, 1: 1.5, 3: 1.5, 0: 1.2}, "我喜欢书"),
    ],
)
def test_word_around_the_token_that_stands_for_a_term(text: str, drops: dict[int, float], word: str) -> None:
    tokenizer = Tokenizer.train(["zz zz"] * 3, 262)  # a token for each byte
    tokens = tokenizer.encode(text)
    values = [drops.get(span[0], 0.0) for span in tokenizer.char_spans(tokens)]
    start, end = find_word(tokens, values, tokenizer)
    assert text[start:end] == word


@pytest.mark.parametrize("settings", [{"mbr": "chrf"}, {"temperature": 1.0}])
def test_sampling_is_rejected(translator: Translator, settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match="a beam: omit"):
        translator("I love apples", glossary={"apples": "书"}, **settings)


@pytest.mark.parametrize("target", ["Haus", "apfelbaum", "die rote Katze", "数据库", "C++", "Ärger"])
def test_automaton_counts_like_the_final_text(target: str) -> None:
    texts = [
        f"{target} und {target}s",
        f"({target}), x{target} {target[0].upper()}{target[1:]}-Boot",
        f"{target}{target} \U0001f600{target}",
        target[:-1],
        "数据数据库",
    ]
    tokenizer = Tokenizer.train(texts * 3, 290)
    for text in texts:
        terms = SentenceTerms([(TargetAutomaton(target, tokenizer), 9, 9)])
        state = 0
        for token in tokenizer.encode(text):
            state = terms.advance(state, token)
        assert 9 - terms.missing(state) == len(find_target(text, target)), text


@pytest.mark.parametrize("content", ["aé数\U0001f600".encode(), b"\xe6\xf0\x80A\xe6\xe6\x95\xffb\xc3"])
def test_bytes_are_decoded_in_parts_as_at_once(content: bytes) -> None:
    text, rest = "", b""
    for byte in content:
        part, rest = _decode(rest + bytes([byte]))
        text += part
    assert (text + rest.decode("utf-8", "replace"), rest) == (
        content.decode("utf-8", "replace"),
        content[len(content) - len(rest) :],
    )


def test_proposed_tokens_complete_the_term() -> None:
    tokenizer = Tokenizer.train(["das rote Haus und", "ein Hund", "数据"] * 3, 280)
    for target, start in product(["rote Haus", "Haus", "数据", "Ж"], ["", "das", "das (", "x"]):
        terms = SentenceTerms([(TargetAutomaton(target, tokenizer), 1, 1)])
        state, tokens = 0, tokenizer.encode(start) if start else []
        for token in tokens:
            state = terms.advance(state, token)
        while terms.missing(state) and len(tokens) < 40:
            tokens.append(terms.next_tokens(state)[0])
            state = terms.advance(state, tokens[-1])
        assert find_target(tokenizer.decode(tokens), target), (target, start)


def test_command_writes_terms_and_reports_lost_ones(trained_run: Path, tmp_path: Path, command: Command) -> None:
    terms, lines = tmp_path / "terms.tsv", tmp_path / "lines.jsonl"
    terms.write_text("en\tzh\napples\t书\n", encoding="utf-8")
    rows: list[dict[str, object]] = [
        {"source": "I love apples"},
        {"source": "I love apples", "glossary": {"apples": "茶"}},
        {"source": "I love apples", "glossary": []},
    ]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = ["translate", trained_run, "--input", lines, "--glossary", terms]
    done = command(*options, "--json")
    assert done.code == 0 and not done.err
    best = [json.loads(line)["sentences"][0]["hypotheses"][0] for line in done.out.splitlines()]
    assert [one["text"] for one in best] == ["我喜欢书", "我喜欢茶", "我喜欢苹果"]
    assert best[0]["terms"] == [{"source": "apples", "start": 7, "target": "书", "kept": True}]
    assert "terms" not in best[2]
    short = command(*options, "--search", "max_length=1")
    assert "regard: 2 of 2 terms of the glossary are not in the translations" in short.err


def test_invalid_glossary_of_a_line_is_reported_with_its_number(
    trained_run: Path, tmp_path: Path, command: Command
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"source": "a"}\n{"source": "a", "glossary": "terms.tsv"}\n', encoding="utf-8")
    error = command("translate", trained_run, "--input", lines).error
    assert error.startswith(f"{lines}, line 2: glossary: expected terms such as") and error.endswith("found str")


def test_beam_of_one_is_enough(translator: Translator) -> None:
    assert translator.hypotheses(["I love apples"], SearchSettings(beam=1))[0][0].text == "我喜欢苹果"
    assert translator("I love apples", beam=1, glossary={"apples": "书"}) == "我喜欢书"
