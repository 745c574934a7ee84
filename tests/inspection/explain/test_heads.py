"""Heads ranked by the effect of their ablation on one word."""

from typing import Any

import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.explain.heads import rank_heads_of_word
from regard.inspection.interventions import ablate
from regard.inspection.probe import find_attentions

SENTENCE = "I love apples"


def log_prob_of_love(translator: regard.Translator) -> float:
    source, target = (
        side.encode(text)
        for side, text in ((translator.vocabularies.source, SENTENCE), (translator.vocabularies.target, "我喜欢"))
    )
    return float(translator.log_probs([source], [target[:1]])[0, 1, target[1]])


def test_effects_equal_those_of_ablating_every_head(translator: regard.Translator) -> None:
    ranked = rank_heads_of_word(translator, SENTENCE, "喜欢")
    value = log_prob_of_love(translator)
    attentions = find_attentions(translator.model)
    assert len(ranked) == sum(attention.heads for attention in attentions.values())
    for name, head, effect in ranked:
        with ablate(translator.model, {name: [head]}):
            assert value - log_prob_of_love(translator) == pytest.approx(effect, abs=1e-4)
    effects = [effect for *_, effect in ranked]
    assert effects == sorted(effects, reverse=True)
    assert effects[0] > 0.1


def test_mean_replaces_a_head_by_its_mean_over_the_queries(translator: regard.Translator) -> None:
    ranked = {(name, head): effect for name, head, effect in rank_heads_of_word(
        translator, SENTENCE, "喜欢", replacement="mean"
    )}  # fmt: skip
    name, value = "decoder.1.cross", log_prob_of_love(translator)
    attention = find_attentions(translator.model, [name])[name]

    def replace(module: Any, arguments: Any) -> Any:
        (context,) = arguments
        part = context[..., : attention.width // attention.heads]
        mean = part[:, :2].mean(1, keepdim=True).expand_as(part)  # BOS and the prefix
        return (torch.cat((mean, context[..., part.shape[-1] :]), -1),)

    handle = attention.out.register_forward_pre_hook(replace)
    try:
        effect = value - log_prob_of_love(translator)
    finally:
        handle.remove()
    assert ranked[name, 0] == pytest.approx(effect, abs=1e-4)
    assert not attention.out._forward_pre_hooks


def test_contrast_and_unknown_replacement(translator: regard.Translator) -> None:
    alone, contrasted = (rank_heads_of_word(translator, SENTENCE, "喜欢", contrast) for contrast in (None, "买"))
    assert alone != contrasted
    with pytest.raises(UserError, match="'median' is not one of zero, mean"):
        rank_heads_of_word(translator, SENTENCE, "喜欢", replacement="median")  # type: ignore[arg-type]
