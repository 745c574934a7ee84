"""When search and canvases go the fixed way; everything else goes by `search` and a stepper, or pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regard.attention.core import Full
from regard.attention.multi_head import Attention
from regard.decoding.config import NATSettings, SearchSettings
from regard.decoding.constraints import DecodingRequest
from regard.models.nat import NATransformer
from regard.models.transformer import EncoderDecoder, Transformer
from regard.ops.modules import list_modules

WIDEST = 16
"""The most hypotheses a sentence: with more of them, what is masked for each would be most of the work."""
MAX_ITERATIONS = 16
"""All iterations of mask-predict are one recording: with more of them, it would be long to make."""


def obstacle(
    models: Sequence[Transformer], requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool
) -> str | None:
    """Why these requests cannot be searched the fixed way on this device; None where they can."""
    return _obstacle_in_device(models[0]) or obstacle_anywhere(models, requests, settings, trace)


def obstacle_anywhere(
    models: Sequence[Transformer], requests: Sequence[DecodingRequest], settings: SearchSettings, trace: bool
) -> str | None:
    """`obstacle` but for the device."""
    if len(models) > 1:
        return "several models vote"
    if trace:
        return "the tree of the beam is asked for"
    if any(request.prefix or request.required or request.forbidden for request in requests):
        return "a prefix, a required or a forbidden phrase is asked for"
    return _obstacle_in_settings(settings) or _obstacle_in_model(models[0])


def obstacle_to_canvases(model: NATransformer, settings: NATSettings, trace: bool) -> str | None:
    """Why canvases cannot be filled the fixed way on this device; None where they can."""
    return _obstacle_in_device(model) or obstacle_to_canvases_anywhere(model, settings, trace)


def obstacle_to_canvases_anywhere(model: NATransformer, settings: NATSettings, trace: bool) -> str | None:
    """`obstacle_to_canvases` but for the device."""
    if settings.beam > 1:
        return "prefix search is asked for"
    if (settings.iterations or 1) > MAX_ITERATIONS:
        return f"there are more than {MAX_ITERATIONS} iterations"
    if trace:
        return "snapshots of the iterations are asked for"
    return _obstacle_in_model(model)


def _obstacle_in_device(model: EncoderDecoder) -> str | None:
    kind = model.target_embedding.weight.device.type
    return None if kind == "cuda" else f"the model is on a device of type {kind}, where there is nothing to be recorded"


def _obstacle_in_settings(settings: SearchSettings) -> str | None:
    for name, given in (
        ("sampling", settings.sampling),
        ("coverage", settings.coverage > 0),
        ("groups", settings.groups > 1),
        ("no_repeat", settings.no_repeat > 0),
    ):
        if given:
            return f"{name} is asked for"
    return f"the beam is wider than {WIDEST}" if settings.beam_width > WIDEST else None


def _obstacle_in_model(model: EncoderDecoder) -> str | None:
    attentions = [module for module in list_modules(model) if isinstance(module, Attention)]
    if not all(isinstance(attention.kind, Full) for attention in attentions):
        return f"the model's attention is {model.config.attention.kind}"
    if any(attention.qkv_hook is not None or attention.head_scales is not None for attention in attentions):
        return "somebody observes or scales the model's attention"
    if torch.is_autocast_enabled(model.target_embedding.weight.device.type):
        return "autocast makes copies of the weights"
    return None
