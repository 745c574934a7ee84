"""Inline annotation of terms in source tokens."""

import pytest

from regard.data.text.annotation import MARKERS, TermAnnotation, encode_with_terms, is_annotated
from regard.data.text.glossary import Glossary
from regard.data.text.readers import Pair
from regard.data.text.tokenizer import Tokenizer

TEXTS = ["I love green apples and tea", "Apples are green", "苹果是绿色的", "我喜欢绿茶"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 4, 330).with_tokens(MARKERS)


@pytest.mark.parametrize("text", ["I love apples, apples", "Apples are tea", "(tea) apples", "tea", "我喜欢苹果"])
def test_other_tokens_are_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    matches = Glossary.of({"apple": "苹果", "tea": "green tea"}).find(text, "en")
    tokens = tokenizer.tokens(encode_with_terms(tokenizer, text, matches))
    rest, inside = [], False
    for token in tokens:
        inside = (inside or token == "<as>") and token != "</term>"
        if not inside and token not in MARKERS:
            rest.append(token)
    assert rest == tokenizer.tokens(tokenizer.encode(text))
    assert tokens.count("<term>") == tokens.count("<as>") == tokens.count("</term>") == len(matches)


def test_translation_has_the_tokens_of_the_target(tokenizer: Tokenizer) -> None:
    matches = Glossary.of({"apple": "green tea"}).find("apples", "en")
    tokens = encode_with_terms(tokenizer, "apples", matches)
    assert tokenizer.decode(tokens) == "<term> apples<as> green tea</term>"
    assert is_annotated(tokenizer) and not is_annotated(Tokenizer.train(TEXTS, 300))


def test_share_of_the_pairs_with_both_sides_is_annotated(tokenizer: Tokenizer) -> None:
    glossary = Glossary.of({"apple": "苹果"})
    annotate = TermAnnotation(glossary, "en", tokenizer, 0.5)
    pairs = [Pair(f"I love apples {i}", f"苹果 {i}") for i in range(200)]
    changed = [annotate(pair, []) != [] for pair in pairs]
    assert 60 < sum(changed) == annotate.count < 140
    assert changed == [TermAnnotation(glossary, "en", tokenizer, 0.5)(pair, []) != [] for pair in pairs]
    everything = TermAnnotation(glossary, "en", tokenizer, 1.0)
    assert everything(Pair("I love apples", "我喜欢"), [7]) == [7]
    assert everything(Pair("I love apples", "苹果"), [7]) != [7]
