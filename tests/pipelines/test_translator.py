"""`Translator` with a trained autoregressive model."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import regard
from regard.data.builtin.corpus import load_pairs
from regard.data.text.tokenizer import Vocabularies
from regard.decoding.autoregressive import EnsembleStepper, TransformerStepper, search_tokens
from regard.decoding.constraints import DecodingRequest
from regard.decoding.stepper import TokenHypothesis

SENTENCES = [pair.source for pair in load_pairs("test", 24)]


@pytest.fixture(scope="module")
def translator(trained_run: Path) -> regard.Translator:
    return regard.Translator.load(trained_run)


def test_string_gives_a_string_and_list_gives_a_list(translator: regard.Translator) -> None:
    assert translator("I love apples") == "我喜欢苹果"
    assert translator(["I love apples", "", " \t"]) == ["我喜欢苹果", "", " \t"]
    assert translator([]) == []


def test_score_equals_that_of_search(translator: regard.Translator) -> None:
    wu = {"length_penalty": "wu", "alpha": 0.6}
    for options in ({}, wu, {"beam": 1, "length_penalty": "none"}, {"beam": 3, "coverage": 0.4}):
        settings = regard.SearchSettings.parse(options, "test")
        hypotheses = [best[0] for best in translator.hypotheses(SENTENCES, settings)]
        sources = translator.vocabularies.source.encode_batch(SENTENCES)
        scored = translator.score_tokens(sources, [one.tokens for one in hypotheses], settings)
        for one, other in zip(hypotheses, scored, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-3)


def test_hypotheses_are_sorted_and_alignments_sum_to_one(translator: regard.Translator) -> None:
    for best in translator(SENTENCES[:4], beam=4, n_best=3):
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
        for one in best:
            assert one.alignment is not None
            assert len(one.alignment) == len(one.tokens) + 1
            assert all(len(row) == len(one.source_subwords) + 1 for row in one.alignment)
            assert all(sum(row) == pytest.approx(1, abs=1e-4) for row in one.alignment)


def test_stream_reads_one_window_at_a_time(translator: regard.Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.pipelines.translator.WINDOW", 5)
    lines_read = 0

    def lines() -> object:
        nonlocal lines_read
        for line in SENTENCES:
            lines_read += 1
            yield line

    stream = translator.stream(lines())  # type: ignore[arg-type]
    first = next(stream)
    assert lines_read == 5
    assert [first[0].text, *(best[0].text for best in stream)] == translator(SENTENCES)


def test_ensemble_of_a_model_with_itself_equals_the_model(trained_run: Path, translator: regard.Translator) -> None:
    twice = regard.Translator.load(trained_run, trained_run)
    actual, expected = twice.hypotheses(SENTENCES[:6]), translator.hypotheses(SENTENCES[:6])
    assert [best[0].text for best in actual] == [best[0].text for best in expected]
    assert [best[0].score for best in actual] == pytest.approx([best[0].score for best in expected], abs=1e-4)


def test_ensemble_averages_probabilities(translator: regard.Translator) -> None:
    torch.manual_seed(0)
    other = regard.Transformer(translator.model.config).eval()
    both = regard.Translator(translator.model, translator.vocabularies, others=[other])
    alone = regard.Translator(other, translator.vocabularies)
    source, target = [translator.vocabularies.source.encode("I love apples")], [[300, 301]]
    mean = (translator.log_probs(source, target).exp() + alone.log_probs(source, target).exp()) / 2
    assert torch.allclose(both.log_probs(source, target).exp(), mean, atol=1e-6)


def test_ensemble_with_different_tokenizers_is_rejected(
    trained_run: Path, translator: regard.Translator, tmp_path: Path
) -> None:
    other = regard.Tokenizer.train(["other words"], len(translator.vocabularies.source))
    config = translator.model.config.changed(source_vocab=len(other), target_vocab=len(other))
    regard.Translator(regard.Transformer(config), Vocabularies(other, other)).save(tmp_path)
    with pytest.raises(regard.UserError, match="tokenizer differs"):
        regard.Translator.load(trained_run, tmp_path)


def test_tree_contains_the_subwords_of_the_beam(translator: regard.Translator) -> None:
    best = translator.hypotheses(["I love apples"], regard.SearchSettings(beam=3), trees=True)[0][0]
    assert best.tree is not None
    kept = [node.subword for node in best.tree if node.node.outcome == "kept"]
    assert set(best.subwords) <= set(kept)
    assert any(node.subword == "END" and node.node.outcome == "ended" for node in best.tree)


def test_coverage_penalty_lowers_scores(translator: regard.Translator) -> None:
    stepper = TransformerStepper(translator.model, coverage=True)
    sources = translator.vocabularies.source.encode_batch(SENTENCES[:4])
    plain = search_tokens(stepper, sources, regard.SearchSettings(beam=3))
    covered = search_tokens(stepper, sources, regard.SearchSettings(beam=3, coverage=0.2))
    for one, other in zip(plain, covered, strict=True):
        assert other[0].score < max(found.score for found in one) + 1e-9


def test_sampling_with_a_trace_is_rejected(translator: regard.Translator) -> None:
    stepper = TransformerStepper(translator.model)
    with pytest.raises(regard.UserError, match="need a beam"):
        search_tokens(stepper, [[300]], regard.SearchSettings(temperature=1.0), trace=True)


def test_translation_restores_training_mode(translator: regard.Translator) -> None:
    translator.model.train()
    translator("I love apples")
    assert translator.model.training
    translator.model.eval()


@pytest.mark.parametrize(
    "text",
    [
        "<b>Bold</b> &amp; <a href='x'>link</a> <eos> <0x41> <pad>",
        "3.14 is not 3,14; 1,000,000 $ 50 %",
        "  two  spaces\tand a tab  ",
        "naïve café 😀 汉字 ▁ \u200b",
        "line\u2028separator\x0bvertical\x85next",
    ],
)
def test_text_that_the_model_copies_is_unchanged(
    translator: regard.Translator, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def copy_source(stepper: object, requests: list[DecodingRequest], *_: object) -> list[list[TokenHypothesis]]:
        return [[TokenHypothesis(list(request.source), 0.0, [])] for request in requests]

    monkeypatch.setattr("regard.decoding.autoregressive.search_tokens", copy_source)
    assert translator([text, "", text]) == [text, "", text]


def test_prepared_weights_are_updated_after_an_optimizer_step(translator: regard.Translator) -> None:
    model = copy.deepcopy(translator.model)
    ours = regard.Translator(model, translator.vocabularies)
    ours("I love apples")
    before = ours.embed(["I love apples"])[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    sum(p.square().sum() for p in model.parameters()).backward()
    optimizer.step()
    fresh = regard.Translator(copy.deepcopy(model), translator.vocabularies)
    after = ours.embed(["I love apples"])[0]
    torch.testing.assert_close(after, fresh.embed(["I love apples"])[0])
    assert not torch.allclose(after, before, atol=1e-2)
    used, unused = (one.hypotheses(SENTENCES[:2])[0][0] for one in (ours, fresh))
    assert used.tokens == unused.tokens
    assert used.score == pytest.approx(unused.score, abs=1e-5)


def test_ensemble_stepper_averages_probabilities(translator: regard.Translator) -> None:
    torch.manual_seed(0)
    other = regard.Transformer(translator.model.config).eval()
    steppers = [TransformerStepper(model) for model in (translator.model, other)]
    source, token = [[300, 301]], torch.tensor([1])
    with torch.inference_mode():
        alone = [stepper.step(token, stepper.start(source, 1)).exp() for stepper in steppers]
        both = EnsembleStepper(steppers)
        together = both.step(token, both.start(source, 1)).exp()
    assert torch.allclose(together, (alone[0] + alone[1]) / 2, atol=1e-6)


def test_score_of_two_strings_is_one_hypothesis(translator: regard.Translator) -> None:
    one = translator.score("I love apples", "我喜欢苹果")
    assert one == translator.score(["I love apples"], ["我喜欢苹果"])[0]
    with pytest.raises(regard.UserError, match="list of texts"):
        translator.embed("I love apples")


def test_text_is_not_scored_with_a_list_or_a_list_of_another_length(translator: regard.Translator) -> None:
    for source, target in (("I love apples", ["我喜欢苹果"]), (["I love apples"], "我喜欢苹果")):
        with pytest.raises(regard.UserError, match="score takes a text and its translation, or a list of each"):
            translator.score(source, target)
    with pytest.raises(regard.UserError, match="2 sources cannot be scored with 1 translations"):
        translator.score(SENTENCES[:2], ["我喜欢苹果"])


@pytest.mark.parametrize("copies", [1, 3])
def test_cached_steps_of_reordered_hypotheses_equal_the_full_forward_pass(
    translator: regard.Translator, copies: int
) -> None:
    stepper = TransformerStepper(translator.model)
    sources = [[300, 301, 302], [303]]
    rng = torch.Generator().manual_seed(copies)
    with torch.inference_mode():
        state = stepper.start(sources, copies)
        tokens = [[stepper.bos] for _ in range(2 * copies)]
        for _ in range(5):
            log_probs = stepper.step(torch.tensor([row[-1] for row in tokens]), state)
            whole = translator.log_probs([sources[i // copies] for i in range(2 * copies)], [row[1:] for row in tokens])
            assert torch.allclose(log_probs, whole[:, len(tokens[0]) - 1], atol=1e-4)
            order = torch.cat([torch.randint(copies, (copies,), generator=rng) + first for first in (0, copies)])
            state = state.select(order)
            words = torch.randint(260, 300, (2 * copies,), generator=rng).tolist()
            tokens = [[*tokens[i], word] for i, word in zip(order.tolist(), words, strict=True)]
