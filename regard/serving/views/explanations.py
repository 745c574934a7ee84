"""Views of a translator that explain a word: attribution, layers read as tokens, heads, activation patching."""

from typing import Any

from regard.decoding.config import DecodingSettings
from regard.inspection.explain.explanation import explain
from regard.inspection.explain.lens import read_layers
from regard.inspection.explain.target_word import translate_tokens
from regard.pipelines.translator import Translator

MAX_POINTS = 1024
"""Number of gradients of an attribution, which bounds the time of a request."""


def view_why(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation of a word of the translation."""
    text, target = request["text"], request["target"]
    options = {"target": target, "settings": settings, "max_points": MAX_POINTS}
    return explain(translator, text, request["word"], request["contrast"], request["against"], **options).to_json()


def view_lens(translator: Translator, settings: DecodingSettings, request: dict[str, Any]) -> dict[str, Any]:
    """Return the states of decoder and encoder, read as tokens."""
    text, target = request["text"], request["target"]
    found = read_layers(
        translator, text, translate_tokens(translator, text, settings) if target is None else target, request["top"]
    )
    encoder = None if found.encoder is None else found.encoder.to_json()
    return {"decoder": found.decoder.to_json(), "encoder": encoder}
