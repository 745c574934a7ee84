"""Section "what if": a translation by the model as it is, with some of it changed."""

from __future__ import annotations

from typing import Any

from regard.decoding.config import DecodingSettings
from regard.inspection.interventions import scale_heads, scale_scores
from regard.inspection.probe import find_attentions
from regard.inspection.translation import check_not_blank
from regard.pipelines.translator import Translator
from regard.serving.views.translation import describe


def show_change(translator: Translator, settings: DecodingSettings, asked: dict[str, Any]) -> dict[str, Any]:
    """The best translation while heads count by `factors`, and scores are multiplied by `sharpness`.

    Raises:
        UserError: the sentence cannot be read, or the model has no such head.
    """
    check_not_blank(asked["text"])
    model = translator.model
    factors = {name: {int(head): factor for head, factor in some.items()} for name, some in asked["factors"].items()}
    with scale_heads(model, factors), scale_scores(model, asked["sharpness"]):
        best = translator.hypotheses([asked["text"]], settings)[0][0]
    heads = {name: attention.heads for name, attention in find_attentions(model).items()}
    return {"translation": describe(best), "heads": heads}
