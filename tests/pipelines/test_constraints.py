"""Constraints on translations, as text."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from regard import Constraints, SearchSettings, Tokenizer, Translator
from regard.errors import UserError
from tests.conftest import OBJECTS, SUBJECTS, VERBS, toy_pairs

SENTENCES = [pair.source for pair in toy_pairs()[::20]]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return Translator.load(trained_run)


def test_translation_starts_with_the_prefix(translator: Translator) -> None:
    results = translator.hypotheses(SENTENCES[:5], constraints=Constraints(prefix="昨天"))
    assert all(best[0].text.startswith("昨天") for best in results)


def test_phrases_are_enforced_and_reported(translator: Translator) -> None:
    constraints = Constraints(required=("苹果",), forbidden=("我",))
    for best in translator.hypotheses(["I love apples", SENTENCES[0]], constraints=constraints):
        assert "苹果" in best[0].text and "我" not in best[0].text
        assert best[0].phrases == {"苹果": True, "我": True}
    cut = translator.hypotheses(["I love apples"], SearchSettings(max_length=1), constraints)
    assert cut[0][0].phrases["苹果"] is False


def test_each_text_has_its_own_constraints(translator: Translator) -> None:
    constraints = [Constraints(required=("苹果",)), Constraints(), Constraints(prefix="昨天", forbidden=("书",))]
    texts = ["I love tea"] * 3
    found = [best for best, *_ in translator.hypotheses(texts, SearchSettings(beam=8), constraints)]
    alone = [translator.hypotheses(["I love tea"], SearchSettings(beam=8), one)[0][0] for one in constraints]
    assert [best.text for best in found] == [best.text for best in alone]
    assert [best.phrases for best in found] == [{"苹果": True}, {}, {"书": True}]
    assert "苹果" not in found[1].text and found[2].text.startswith("昨天")


def test_constraints_of_another_number_of_texts_are_rejected(translator: Translator) -> None:
    with pytest.raises(
        UserError, match="constraints: the list has 2, but texts has 1; give one for all, or one for each"
    ):
        translator.hypotheses(["I love tea"], constraints=[Constraints()] * 2)


@pytest.mark.parametrize("phrase", [*SUBJECTS.values(), *VERBS.values(), *OBJECTS.values(), "果", "我们看", "欢苹"])
@pytest.mark.parametrize("beam", [1, 4])
def test_forbidden_phrase_does_not_occur_in_any_tokenisation(translator: Translator, phrase: str, beam: int) -> None:
    settings = SearchSettings(beam=beam, n_best=beam)
    constraints = Constraints(forbidden=(phrase,))
    for best in translator.hypotheses(SENTENCES, settings, constraints):
        assert [one.text for one in best if phrase in one.text] == []
        assert all(one.phrases == {phrase: True} for one in best)


@pytest.mark.parametrize("phrase", ["abab", "b a", "aab", "ä", "汉字"])
def test_automaton_recognises_the_phrase_in_any_tokenisation(phrase: str) -> None:
    tokenizer = Tokenizer.train(["ab aba bab aab ab ä 汉字 汉 字 a b ababab"] * 4, 290)
    (automaton,) = Constraints(forbidden=(phrase,)).to_tokens(tokenizer).forbidden
    last = len(automaton.transitions) - 1
    learned = range(len(Tokenizer.FIXED_TOKENS), len(tokenizer))
    spelled = [*tokenizer.encode_continuation("ä汉字"), *range(4 + 0xC3, 4 + 0xC5), Tokenizer.UNK]
    for tokens in product([*learned, *spelled], repeat=3):
        text = b"".join(tokenizer.token_bytes[token] for token in tokens)
        assert (int(automaton.run(np.array(tokens))) == last) == (phrase.encode() in text)


def test_phrases_are_compared_in_normal_form_c() -> None:
    assert Constraints(required=("e\u0301",)).report("café") == {"e\u0301": True}


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (Constraints(required=("苹果",), forbidden=("苹",)), "'苹' is forbidden, but is part of '苹果'"),
        (Constraints(prefix="我喜欢", forbidden=("我",)), "'我' is forbidden, but is part of '我喜欢'"),
    ],
)
def test_contradicting_constraints_are_rejected(constraints: Constraints, message: str, translator: Translator) -> None:
    with pytest.raises(UserError, match=message):
        translator.hypotheses(["I love apples"], constraints=constraints)


def test_single_string_is_not_a_tuple_of_phrases() -> None:
    with pytest.raises(UserError, match=r"required: give a tuple of phrases, such as \('苹果',\)"):
        Constraints(required="苹果")  # type: ignore[arg-type]
