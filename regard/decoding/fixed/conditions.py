"""When search goes the fixed way; everything else goes by `search` and a stepper."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.attention import Attention, Full
from regard.decoding.rules import Request
from regard.decoding.search import Trace
from regard.decoding.settings import SearchSettings
from regard.models.transformer import Transformer

WIDEST = 16
"""The most hypotheses a sentence: with more of them, what is masked for each would be most of the work."""


def obstacle(
    models: Sequence[Transformer], requests: Sequence[Request], settings: SearchSettings, trace: Trace | None
) -> str | None:
    """Why these requests cannot be searched the fixed way on this device; None where they can."""
    device = models[0].target_embedding.weight.device
    if device.type != "cuda":
        return f"the model is on a device of type {device.type}, where there is nothing to be recorded"
    return obstacle_anywhere(models, requests, settings, trace)


def obstacle_anywhere(
    models: Sequence[Transformer], requests: Sequence[Request], settings: SearchSettings, trace: Trace | None
) -> str | None:
    """`obstacle` but for the device."""
    if len(models) > 1:
        return "several models vote"
    if trace is not None:
        return "the tree of the beam is asked for"
    if any(request.prefix or request.required or request.forbidden for request in requests):
        return "a prefix, a required or a forbidden phrase is asked for"
    return _obstacle_in_settings(settings) or _obstacle_in_model(models[0])


def _obstacle_in_settings(settings: SearchSettings) -> str | None:
    for name, given in (
        ("sampling", settings.samples),
        ("coverage", settings.coverage > 0),
        ("groups", settings.groups > 1),
        ("no_repeat", settings.no_repeat > 0),
    ):
        if given:
            return f"{name} is asked for"
    return f"the beam is wider than {WIDEST}" if settings.width > WIDEST else None


def _obstacle_in_model(model: Transformer) -> str | None:
    attentions = [module for module in model.decoder.modules() if isinstance(module, Attention)]
    if not all(isinstance(attention.kind, Full) for attention in attentions):
        return f"the model's attention is {model.config.attention.kind}"
    if any(attention.observer is not None or attention.head_factors is not None for attention in attentions):
        return "somebody observes or scales the model's attention"
    if torch.is_autocast_enabled(model.target_embedding.weight.device.type):
        return "autocast makes copies of the weights"
    return None
