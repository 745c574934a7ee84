"""`repr` of public objects: short, and with what a reader at a prompt needs."""

from pathlib import Path

import pytest
import torch
from torch import nn

import regard
from regard.data.text.wordpiece import WordPieceTokenizer
from regard.models.bert import Bert, BertConfig
from regard.pipelines.embedder import Embedder


def test_translator_states_languages_model_and_vocabulary(trained_run: Path) -> None:
    translator = regard.Translator.load(trained_run)
    size = len(translator.vocabularies.source)
    vocabularies = f"Vocabularies(joint, Tokenizer(bpe, {size} tokens))"
    assert repr(translator) == f"Translator(en → zh, Transformer, 0.05 M parameters, cpu, {vocabularies})"
    assert ", ensemble of 2," in repr(regard.Translator.load(trained_run, trained_run))


def test_separate_vocabularies_are_both_shown() -> None:
    first, second = (regard.Tokenizer.train(["a b c"] * 2, size, kind="word") for size in (262, 263))
    assert repr(regard.Vocabularies(first, second)) == f"Vocabularies({first}, {second})"
    assert repr(first) == "Tokenizer(word, 262 tokens)"


def test_classifier_states_model_size_and_classes(image_run: Path) -> None:
    assert repr(regard.Classifier.load(image_run)) == (
        "Classifier(ViT, 0.00 M parameters, cpu, 8×8 pixels, 3 classes: blue, green, red)"
    )


def test_embedder_states_model_and_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WordPieceTokenizer, "__init__", lambda self: None)
    monkeypatch.setattr(WordPieceTokenizer, "__len__", lambda self: 30)
    config = BertConfig(vocab=30, width=8, heads=2, layers=1, hidden=16, max_length=16)
    embedder = Embedder(Bert(config), WordPieceTokenizer())
    assert repr(embedder) == "Embedder(Bert, 0.00 M parameters, cpu, 30 tokens)"


def test_hypothesis_states_text_score_and_size(trained_run: Path) -> None:
    translator = regard.Translator.load(trained_run)
    (hypothesis,) = translator("I love apples", n_best=1)
    assert (
        repr(hypothesis)
        == f"Hypothesis('{hypothesis.text}', score={hypothesis.score:.3f}, {len(hypothesis.tokens)} tokens)"
    )
    (joined,) = translator("I love apples. I see cats.", n_best=1)
    assert repr(joined).endswith(", 2 sentences)")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (regard.Mask(), "Mask()"),
        (regard.Mask(causal=True, window=(2, None)), "Mask(causal=True, window=(2, None))"),
        (regard.Mask(allowed=torch.ones(2, 2, dtype=torch.bool)), "Mask(allowed=(2, 2))"),
        (regard.Mask(keys=regard.Padded.of([3, 2])), "Mask(keys=Padded(lengths=[3, 2], size=3))"),
        (regard.Packed.of([3, 2]), "Packed(lengths=[3, 2], longest=3, size=5)"),
        (regard.Padded.of(range(1, 20)), "Padded(lengths=[1, 2, 3, 4, 5, 6, 7, 8, …], size=19)"),
        (regard.Padded(torch.empty(2, device="meta"), 4), "Padded(lengths=(2,), size=4)"),
        (regard.Sinusoidal(8), "Sinusoidal(8, order=interleaved)"),
        (regard.Learned(16, 8), "Learned(16, 8)"),
        (regard.Diagonal(4, scaled=True), "Diagonal(4, scaled=True)"),
        (regard.Rotary(8), "Rotary(8, base=10000)"),
        (regard.SearchSettings(beam=4), "SearchSettings(beam=4)"),
        (
            regard.TransformerConfig.tiny(vocab=300),
            "TransformerConfig(source_vocab=300, target_vocab=300, width=128, heads=4, encoder_layers=4, "
            "decoder_layers=4, hidden=256, norm='pre')",
        ),
        (regard.ViTConfig(classes=10), "ViTConfig(classes=10)"),
        (regard.Constraints(required=("苹果",)), "Constraints(prefix='', required=('苹果',), forbidden=())"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_layouts_masks_positions_and_settings_are_one_line(value: object, expected: str) -> None:
    assert repr(value) == expected
    assert str(value) == expected


def test_attention_states_width_heads_and_kind() -> None:
    assert "64, heads=4, kind=Full(scale=None, implementation='auto')" in repr(regard.Attention(64, 4))


def test_probed_records_state_shapes_instead_of_values() -> None:
    model = nn.ModuleDict({"self": regard.Attention(8, 2)})
    with regard.probe(model, record=["weights", "q"]) as seen:
        assert repr(seen) == "AttentionRecords()"
        model["self"](torch.randn(1, 3, 8))
    record = "AttentionRecord(heads=[0, 1], calls=1, weights (1, 2, 3, 3), q (1, 2, 3, 4))"
    assert repr(seen) == f"self: {record}"
    assert repr(seen["self"]) == record
