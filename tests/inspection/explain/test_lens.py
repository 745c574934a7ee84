"""States of all layers, read as tokens."""

import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.explain.lens import read_layers

SENTENCE = "I love apples"


def test_last_layer_gives_the_probabilities_of_the_model(translator: regard.Translator) -> None:
    best = translator.hypotheses([SENTENCE])[0][0]
    lens = read_layers(translator, SENTENCE, top=4).decoder
    layers = len(translator.model.decoder) + 1
    assert lens.labels == ["我", "喜欢", "苹果", "END"]
    assert lens.probabilities.shape == (layers, 4, 4)
    source = translator.vocabularies.source.encode(SENTENCE)
    expected = translator.log_probs([source], [best.tokens])[0].exp()
    assert lens.probabilities[-1] == pytest.approx(expected.topk(4, -1).values.numpy(), abs=1e-5)
    assert lens.chosen[-1] == pytest.approx(torch.tensor(best.token_log_probs).exp().numpy(), abs=1e-4)
    assert lens.ranks[-1].tolist() == [1, 1, 1, 1]
    assert [tokens[0] for tokens in lens.tokens[-1]] == lens.labels
    assert lens.next_tokens(1)[0] == ("喜欢", pytest.approx(float(lens.chosen[-1, 1])))


def test_first_layer_is_the_embedding_of_the_token_read_before(translator: regard.Translator) -> None:
    model = translator.model
    target = translator.vocabularies.target.encode("我喜欢苹果")
    lens = read_layers(translator, SENTENCE, target).decoder
    tokens = torch.tensor([[1, *target]])
    with torch.no_grad():
        x = model.target_embedding(tokens, torch.arange(4)[None], 4)
        expected = model.logits(model.decoder_norm(x))[0].softmax(-1)
    assert lens.probabilities[0] == pytest.approx(expected.topk(5, -1).values.numpy(), abs=1e-5)


def test_encoder_states_are_read_with_a_shared_vocabulary(translator: regard.Translator) -> None:
    encoder = read_layers(translator, SENTENCE).encoder
    assert encoder is not None
    assert encoder.labels[-1] == "END"
    assert encoder.probabilities.shape[:2] == (len(translator.model.encoder) + 1, len(encoder.labels))
    assert encoder.ranks[0].tolist() == [1] * len(encoder.labels)  # the embedding is read as the token itself
    config = translator.model.config.changed(tie="target")
    untied = regard.Translator(regard.Transformer(config), translator.vocabularies)
    assert read_layers(untied, SENTENCE, target=[5, 6]).encoder is None


def test_number_of_tokens_is_checked(translator: regard.Translator) -> None:
    with pytest.raises(UserError, match="choose 1 to"):
        read_layers(translator, SENTENCE, top=0)
