"""Section "translate": the best translations of a sentence, and what each of their tokens looked at."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from regard.decoding.config import DecodingSettings
from regard.inspection.scene import readable_labels
from regard.inspection.translation import check_not_blank
from regard.pipelines.hypothesis import Hypothesis
from regard.pipelines.translator import Translator
from regard.serving.views.packet import Array, Precision, pack

DIGITS = 4


def show_translation(translator: Translator, settings: DecodingSettings, asked: dict[str, Any]) -> bytes:
    """A packet with the labels of the source, and hypotheses, best first; `alignment0` is that of the best.

    There are no alignments where the engine does not show its attention.

    Raises:
        UserError: the sentence cannot be read.
    """
    check_not_blank(asked["text"])
    seen = translator.generator.has_attention
    found = translator.hypotheses([asked["text"]], settings, alignments=seen)[0]
    source = [*readable_labels(found[0].source_pieces), "END"]
    arrays: dict[str, tuple[Array, Precision]] = {}
    for number, one in enumerate(found if seen else ()):
        weights = np.array(one.alignment, float).reshape(len(one.labels), len(source))
        arrays[f"alignment{number}"] = weights, "u2"
    return pack({"source": source, "hypotheses": [describe(one) for one in found]}, arrays)


def describe(one: Hypothesis) -> dict[str, Any]:
    """A hypothesis as JSON."""
    return {
        "text": one.text,
        "score": round(one.score, DIGITS),
        "tokens": one.tokens,
        "labels": readable_labels(one.labels),
        "probabilities": [round(math.exp(logp), DIGITS) for logp in one.log_probabilities[: len(one.labels)]],
    }
