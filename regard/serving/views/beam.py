"""Section "beam": how the translation was found: the tree of a beam, or the rounds of writing all at once."""

from __future__ import annotations

import math
from typing import Any

from regard.decoding.config import DecodingSettings, SearchSettings
from regard.inspection.scene import readable_labels
from regard.inspection.translation import check_not_blank
from regard.models.nat import NATransformer
from regard.pipelines.hypothesis import Hypothesis, Node, Round
from regard.pipelines.translator import Translator

DIGITS = 4


def show_beam(translator: Translator, settings: DecodingSettings, asked: dict[str, Any]) -> dict[str, Any]:
    """The tree, or a canvas for every result with its rounds, best first, and the settings in force.

    Raises:
        UserError: the sentence cannot be read, or the search has no beam.
    """
    check_not_blank(asked["text"])
    model, stepwise = translator.model, isinstance(settings, SearchSettings)
    shown = settings if stepwise else settings.changed(n_best=settings.candidates)
    found = translator.hypotheses([asked["text"]], shown, trees=stepwise, snapshots=not stepwise)[0]
    return {
        "text": found[0].text,
        "score": round(found[0].score, DIGITS),
        "settings": {key: value for key, value in settings.resolved().items() if key != "rerank"},
        "length": model.config.length if isinstance(model, NATransformer) else None,
        "tree": [_node(one) for one in found[0].tree or ()],
        "canvases": [_canvas(one) for one in found if one.rounds],
    }


def _node(node: Node) -> dict[str, Any]:
    grown = node.expansion
    numbers = {
        name: round(value, DIGITS) if math.isfinite(value) else None
        for name, value in (("logp", grown.log_probability), ("total", grown.total), ("score", grown.score))
    }
    piece = node.piece if node.piece == "END" else readable_labels([node.piece])[0]
    return {"parent": grown.parent, "step": grown.step, "piece": piece, "fate": grown.fate} | numbers


def _canvas(found: Hypothesis) -> dict[str, Any]:
    rounds = [_round(one) for one in found.rounds or ()]
    return {"text": found.text, "score": round(found.score, DIGITS), "rounds": rounds}


def _round(one: Round) -> dict[str, Any]:
    return {
        "pieces": readable_labels(one.pieces),
        "probabilities": [round(math.exp(logp), DIGITS) for logp in one.log_probabilities],
        "written": one.written,
    }
