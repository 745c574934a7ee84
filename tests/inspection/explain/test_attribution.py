"""Attribution of words of a translation to source and prefix."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.explain.attribution import Attribution, attribute_word
from regard.inspection.explain.scoring import WordScore
from regard.inspection.explain.target_word import choose_alternative, choose_word
from regard.inspection.words import group_words
from regard.models.nat import NATransformer, NATransformerConfig
from tests.conftest import OBJECTS, SUBJECTS, VERBS

SENTENCE, TRANSLATION = "I love apples and books", "我喜欢苹果和书"
MEANINGS = {chinese: english for part in (SUBJECTS, VERBS, OBJECTS) for english, chinese in part.items()}


def same(one: Attribution, other: Attribution) -> bool:
    """Return whether two attributions are equal bit by bit."""
    fields = (vars(one).items(), vars(other).items())
    return all(np.array_equal(a, b) for (_, a), (_, b) in zip(*fields, strict=True))


def test_attributions_sum_to_the_change_of_the_log_probability(translator: regard.Translator) -> None:
    best = translator.hypotheses([SENTENCE])[0][0]
    assert best.text == TRANSLATION
    for position, log_prob in enumerate(best.token_log_probs, 1):
        found = attribute_word(translator, SENTENCE, position, occlusion=False)
        total = found.source_scores.sum() + found.prefix_scores.sum()
        assert found.score == pytest.approx(log_prob, abs=1e-4)
        assert total == pytest.approx(found.score - found.baseline, rel=0.02, abs=1e-3)
        assert found.completeness_error <= 0.02
        assert (found.start, len(found.prefix)) == (position - 1, position - 1)


def test_contrast_attributes_the_difference_of_the_logits(translator: regard.Translator) -> None:
    found = attribute_word(translator, "I love apples", "喜欢", contrast="买")
    vocabulary = translator.vocabularies.target
    (love,), (buy,) = (vocabulary.encode_continuation(word) for word in ("喜欢", "买"))
    source = [[*translator.vocabularies.source.encode("I love apples"), 2]]
    with torch.no_grad():
        logits = translator.model(torch.tensor(source), torch.tensor([[1, *vocabulary.encode("我")]]))[0, -1]
    assert found.score == pytest.approx(float(logits[love] - logits[buy]), abs=1e-4)
    assert (found.word, found.contrast, found.question) == ("喜欢", "买", "why 喜欢, not 买")
    assert found.completeness_error <= 0.02
    assert found.ranked_source()[0][0] == "love"
    reverse = attribute_word(translator, "I love apples", "喜欢", contrast="看见")
    assert not same(found, reverse)


def test_attribution_is_the_same_alone_and_among_others(translator: regard.Translator, trained_run: Path) -> None:
    alone = attribute_word(regard.Translator.load(trained_run), SENTENCE, "苹果", target=None)
    for sentence, word in (("They want dogs", "要"), ("You see tea and cats and dogs", "茶")):
        attribute_word(translator, sentence, word)
    batch = translator.hypotheses([SENTENCE, "You buy tea", "Children want cats and tea"], split=False)
    among_others = attribute_word(translator, SENTENCE, "苹果", target=batch[0][0].tokens)
    assert same(alone, among_others)


def test_aligned_source_word_is_in_the_top_two(translator: regard.Translator) -> None:
    hits = []
    for subject, verb, thing in zip(SUBJECTS, [*VERBS, "love"], OBJECTS, strict=True):
        sentence = f"{subject} {verb} {thing}"
        for word in (SUBJECTS[subject], VERBS[verb], OBJECTS[thing]):
            ranked = attribute_word(translator, sentence, word, occlusion=False).ranked_source()
            hits.append(MEANINGS[word] in [label for label, _ in ranked[:2]])
    assert len(hits) == 15
    assert sum(hits) >= 12


def test_occlusion_is_the_decrease_of_the_score_without_a_word(translator: regard.Translator) -> None:
    found = attribute_word(translator, "I love apples", "喜欢")
    model, word = translator.model, choose_word(translator, "I love apples", "喜欢")
    score = WordScore(model, word)
    # The padding token in the place of "love" has the vector of the baseline.
    love = word.source.index(translator.vocabularies.source.encode("I love")[-1])
    without = tuple(model.config.pad if i == love else token for i, token in enumerate(word.source))
    with torch.no_grad():
        replaced = WordScore(model, replace(word, source=without))
        decrease = float(score(score.embed()[None]) - replaced(replaced.embed()[None]))
    assert found.source == ["I", "love", "apples"]
    assert found.source_occlusion[1] == pytest.approx(decrease, abs=1e-4)
    assert found.source_occlusion.argmax() == 1
    assert attribute_word(translator, "I love apples", "喜欢", occlusion=False).source_occlusion.size == 0


def test_model_is_not_changed(translator: regard.Translator) -> None:
    model = translator.model
    before = translator("I love apples")
    model.train()
    try:
        in_training = attribute_word(
            translator, SENTENCE, "苹果", target=translator.score(SENTENCE, TRANSLATION).tokens
        )
        assert model.training
    finally:
        model.eval()
    assert same(in_training, attribute_word(translator, SENTENCE, "苹果"))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.source_embedding._forward_hooks
    assert translator("I love apples") == before


def test_words_are_found_by_text_and_by_position(translator: regard.Translator) -> None:
    by_text, by_position = (choose_word(translator, SENTENCE, word) for word in ("苹果", "3"))
    assert by_text == by_position
    assert choose_word(translator, SENTENCE, "END").pieces == (2,)
    several = choose_word(translator, SENTENCE, "喜欢苹果")
    assert (several.start, len(several.pieces), several.label) == (1, 2, "喜欢苹果")
    found = attribute_word(translator, SENTENCE, "喜欢苹果")
    parts = [attribute_word(translator, SENTENCE, word).score for word in ("喜欢", "苹果")]
    assert found.score == pytest.approx(sum(parts), abs=1e-4)
    assert found.prefix == ["我"]


def test_pieces_of_words_are_joined(translator: regard.Translator) -> None:
    vocabulary = translator.vocabularies.source
    for text, words in (
        ("You buy, don't you?", ["You", "buy", ",", "don't", "you", "?"]),
        ("I love apples", ["I", "love", "apples"]),
        ("我喜欢苹果", ["我", "喜欢", "苹果"]),
        ("", []),
    ):
        tokens = vocabulary.encode(text)
        groups = group_words(vocabulary, tokens)
        assert groups.labels == words
        assert sorted(chain(*groups.tokens)) == list(range(len(tokens)))


def test_alternative_follows_the_same_prefix(translator: regard.Translator) -> None:
    word = choose_word(translator, SENTENCE, "苹果")
    pieces, label = choose_alternative(translator, word, "茶")
    assert (pieces, label) == (tuple(translator.vocabularies.target.encode_continuation("茶")), "茶")
    assert choose_alternative(translator, word, "END") == ((2,), "END")


@pytest.mark.parametrize(
    ("word", "contrast", "message"),
    [
        ("狗", None, "'狗' is not in the translation '我喜欢苹果'; give one of its words or positions: 1:我 2:喜欢"),
        ("5", None, "'5' is not in the translation"),
        ("喜欢", "喜欢", "喜欢 is the word itself"),
        ("喜欢", " ", "has no tokens"),
    ],
)
def test_words_that_cannot_be_explained_are_named(
    translator: regard.Translator, word: str, contrast: str | None, message: str
) -> None:
    with pytest.raises(UserError) as error:
        attribute_word(translator, "I love apples", word, contrast)
    assert message in str(error.value)


def test_other_models_are_refused(translator: regard.Translator, trained_run: Path) -> None:
    size = len(translator.vocabularies.target)
    config = NATransformerConfig.tiny(vocab=size, width=16, heads=1)
    with pytest.raises(UserError, match="non-autoregressive"):
        attribute_word(regard.Translator(NATransformer(config), translator.vocabularies), SENTENCE, 1)
    with pytest.raises(UserError, match="ensemble"):
        attribute_word(regard.Translator.load(trained_run, trained_run), SENTENCE, 1)
    with pytest.raises(UserError, match="blank"):
        attribute_word(translator, " ", 1)


def test_table_shows_scores_and_bars(translator: regard.Translator) -> None:
    lines = str(attribute_word(translator, "I love apples", "喜欢")).splitlines()
    assert lines[0].startswith("why 喜欢: log p(喜欢) = -0.")
    assert [name in line for name, line in zip(("I", "love", "apples", "我"), lines[1:], strict=True)] == [True] * 4
    assert lines[1].startswith("  source ")
    assert lines[4].startswith("  prefix ")
    assert "\n".join(lines).count("█" * 20) == 1
