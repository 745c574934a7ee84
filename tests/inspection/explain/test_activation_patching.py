"""Activation patching between two sentences."""

import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.explain.activation_patching import patch_activations


@pytest.fixture(scope="module")
def patched(translator: regard.Translator):
    return patch_activations(translator, "I love apples", "I buy apples", "喜欢")


def test_scores_are_those_of_both_sentences(translator: regard.Translator, patched) -> None:
    assert (patched.word, patched.contrast, patched.prefix) == ("喜欢", "买", ["BOS", "我"])
    vocabulary = translator.vocabularies.target
    (love,), (buy,) = (vocabulary.encode_continuation(word) for word in ("喜欢", "买"))
    prefix = vocabulary.encode("我")
    for sentence, score in (("I love apples", patched.score), ("I buy apples", patched.other_score)):
        log_probs = translator.log_probs([translator.vocabularies.source.encode(sentence)], [prefix])[0, 1]
        assert score == pytest.approx(float(log_probs[love] - log_probs[buy]), abs=1e-4)


def test_embedding_of_the_different_word_restores_everything(patched) -> None:
    different = [a != b for a, b in zip(patched.source, patched.other_source, strict=True)]
    assert sum(different) == 1
    assert patched.encoder[0] == pytest.approx([float(each) for each in different], abs=1e-4)


def test_last_decoder_state_restores_everything_and_embeddings_nothing(patched) -> None:
    assert patched.decoder[0] == pytest.approx([0, 0], abs=1e-6)
    assert patched.decoder[-1] == pytest.approx([0, 1], abs=1e-4)


def test_encoder_states_equal_patching_by_hand(translator: regard.Translator, patched) -> None:
    model, vocabularies = translator.model, translator.vocabularies
    outputs = []
    block, position = model.encoder[0], len(patched.source) - 2
    handle = block.register_forward_hook(lambda module, arguments, output: outputs.append(output))
    love, buy = ([*vocabularies.source.encode(f"I {verb} apples"), 2] for verb in ("love", "buy"))
    prefix = torch.tensor([[1, *vocabularies.target.encode("我")]])
    (a,), (b,) = (vocabularies.target.encode_continuation(word) for word in ("喜欢", "买"))
    with torch.no_grad():
        model(torch.tensor([love]), prefix)
        handle.remove()

        def patch(module, arguments, output):
            output = output.clone()
            output[:, position] = outputs[0][:, position]
            return output

        handle = block.register_forward_hook(patch)
        logits = model(torch.tensor([buy]), prefix)[0, -1]
        handle.remove()
    share = (float(logits[a] - logits[b]) - patched.other_score) / (patched.score - patched.other_score)
    assert patched.encoder[1, position] == pytest.approx(share, abs=1e-4)


def test_sentences_that_cannot_be_compared_are_refused(translator: regard.Translator) -> None:
    for other, message in (
        ("I buy apples and tea", "as many tokens"),
        ("I love apples", "are the same"),
        (" ", "blank"),
    ):
        with pytest.raises(UserError, match=message):
            patch_activations(translator, "I love apples", other, "喜欢")


def test_text_shows_both_maps(patched) -> None:
    text = str(patched)
    assert text.startswith("喜欢 rather than 买: +")
    assert text.count("100%") >= 2
