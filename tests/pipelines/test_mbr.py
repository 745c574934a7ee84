"""Minimum Bayes risk decoding: utilities equal sacreBLEU's, and results depend on the sentence and the seed only."""

import random
from pathlib import Path

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from regard import SearchSettings, Translator
from regard.errors import UserError
from regard.pipelines.mbr import bleu_matrix, build_utility, chrf_matrix
from tests.conftest import Command

TEXTS = [
    "",
    "a",
    "the cat",
    "the the the the the cat",
    "The cat sat on the mat, and the dog ate 3.5 kg of it!",
    "the dog sat on the mat and the cat ate it",
    "  spaces   at both ends  ",
    "我喜欢苹果。",
    "我们喜欢吃苹果和香蕉",
    "ein \U0001f600 smiley",
]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> Translator:
    return Translator.load(trained_run)


def random_texts(number: int, words: int) -> list[str]:
    generator = random.Random(7)
    return [
        " ".join(generator.choices(["a", "ab", "abc", "b", "ba", "c"], k=generator.randrange(words)))
        for _ in range(number)
    ]


@pytest.mark.parametrize("texts", [TEXTS, random_texts(12, 9), random_texts(3, 60), ["", ""]], ids=len)
def test_chrf_of_all_pairs_equals_sacrebleu(texts: list[str]) -> None:
    expected = [[CHRF().sentence_score(text, [other]).score for other in texts[1:]] for text in texts]
    np.testing.assert_allclose(chrf_matrix(texts, texts[1:]), expected, atol=1e-9)


@pytest.mark.parametrize("texts", [TEXTS, random_texts(12, 9), random_texts(3, 60), ["", ""]], ids=len)
@pytest.mark.parametrize("language", ["de", "zh"])
def test_bleu_of_all_pairs_equals_sacrebleu(texts: list[str], language: str) -> None:
    scorer = BLEU(tokenize="zh" if language == "zh" else "13a", effective_order=True)
    expected = [[scorer.sentence_score(text, [other]).score for other in texts[1:]] for text in texts]
    np.testing.assert_allclose(build_utility("bleu", language)(texts, texts[1:]), expected, atol=1e-9)


def test_utilities_do_not_depend_on_the_other_texts() -> None:
    texts = random_texts(12, 9)
    words = [text.split() for text in texts]
    for i in (0, 5, 11):
        assert chrf_matrix(texts[i : i + 1], texts).tolist() == chrf_matrix(texts, texts)[i : i + 1].tolist()
        assert bleu_matrix(words[i : i + 1], words).tolist() == bleu_matrix(words, words)[i : i + 1].tolist()


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
@pytest.mark.parametrize("beam", [None, 3])
def test_best_candidate_has_the_highest_mean_utility(translator: Translator, metric: str, beam: int | None) -> None:
    text, sampling = "I love red apples", {"temperature": 2.0, "seed": 5}
    samples = [one.text for one in translator(text, n_best=8, **sampling)]
    beams = [one.text for one in translator(text, n_best=beam, beam=beam)] if beam else []
    settings = SearchSettings.parse({"mbr": metric, "samples": 8, "beam": beam, "n_best": 2, **sampling}, "test")
    scorer = CHRF() if metric == "chrf" else BLEU(tokenize="zh", effective_order=True)
    scores = {
        candidate: sum(scorer.sentence_score(candidate, [sample]).score for sample in samples) / len(samples)
        for candidate in [*beams, *samples]
    }
    (found,) = translator.hypotheses([text], settings)
    expected = sorted(scores.items(), key=lambda item: -item[1])[:2]
    assert [one.text for one in found] == [candidate for candidate, _ in expected]
    np.testing.assert_allclose([one.score for one in found], [score for _, score in expected], atol=1e-9)


def test_results_depend_on_the_sentence_and_the_seed_only(translator: Translator) -> None:
    texts = ["I love apples", "We see cats", "I love red apples", "They love cats", "I see"] * 3
    options = {"mbr": "chrf", "samples": 6, "temperature": 3.0, "epsilon": 0.001}
    together = translator(texts, seed=1, **options)
    assert together == [translator(text, seed=1, **options) for text in texts]
    assert together == translator(texts[::-1], seed=1, **options)[::-1]
    assert together != translator(texts, seed=2, **options)


def test_commands_accept_mbr(trained_run: Path, tmp_path: Path, command: Command) -> None:
    plain = command("translate", trained_run, "I love apples", "--search", "mbr", "--search", "samples=4")
    assert (plain.code, plain.out) == (0, "我喜欢苹果\n")
    full = command("translate", trained_run, "I love apples", "--search", "mbr=bleu", "--beam", 2, "--top-p", 0.5)
    assert (full.code, full.out) == (0, "我喜欢苹果\n")
    (tmp_path / "test.en").write_text("I love apples\n")
    (tmp_path / "test.zh").write_text("我喜欢苹果\n")
    files = ("--src", tmp_path / "test.en", "--ref", tmp_path / "test.zh", "--no-save")
    answer = command("evaluate", trained_run, *files, "--search", "mbr", "--search", "samples=4")
    assert answer.code == 0
    assert "BLEU 100.00" in answer.out
    assert "mbr" in answer.out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 5}, "samples requires mbr"),
        ({"mbr": "chrf", "coverage": 0.2}, "groups and coverage require beam search"),
        ({"mbr": "chrf", "samples": 5, "n_best": 9, "beam": 3}, "n_best 9 exceeds the number of candidates"),
        ({"mbr": "meteor"}, "mbr: input should be 'chrf' or 'bleu'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SearchSettings.parse(settings, "test")


def test_trees_need_a_beam(translator: Translator) -> None:
    with pytest.raises(UserError, match="trees need a beam: omit mbr"):
        translator.hypotheses(["I love apples"], SearchSettings(mbr="chrf"), trees=True)


def test_missing_tokenizer_is_reported_before_anything_is_translated(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.pipelines.mbr.tokenisation_for", lambda language: "ja-mecab")
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    with pytest.raises(UserError, match=r"mbr=bleu needs sacreBLEU's tokenizer ja-mecab, .* use mbr=chrf"):
        translator.resolve_settings(SearchSettings(mbr="bleu"))
    translator.resolve_settings(SearchSettings(mbr="chrf"))
