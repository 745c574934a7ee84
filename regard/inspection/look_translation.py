"""A sentence's translation as a scene: every attention of the model, over the tokens that it read and wrote."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from regard.decoding.config import DecodingSettings
from regard.inspection.probe import AttentionRecord, probe
from regard.inspection.scene import Scene, View
from regard.inspection.translation import MAP_AXES, check_not_blank, label, parse_attention_name
from regard.models.nat import NATransformer
from regard.pipelines.translator import Translator


def translation_scene(
    translator: Translator,
    sentence: str,
    names: Collection[str] | None = None,
    settings: DecodingSettings | None = None,
    about: str = "",
) -> Scene:
    """Translates a sentence and shows what every attention looked at when the translation was read as a whole.

    Args:
        translator: of one model, or of several, of which the first is shown.
        sentence: anything but blank.
        names: which attentions, such as "decoder.3.cross"; all unless given.
        settings: how to search.
        about: what to say of the model.

    Raises:
        UserError: the sentence is blank, or the model has no attention of such a name.
    """
    check_not_blank(sentence)
    at_once = isinstance(translator.model, NATransformer)
    with probe(translator.model, names) as seen:
        best = translator.hypotheses([sentence], settings, alignments=True, snapshots=at_once)[0][0]
    assert best.alignment is not None
    labels = label(best)
    return Scene(
        source=sentence,
        translation=best.text,
        labels=labels,
        alignment=np.array(best.alignment).reshape(len(labels["translation"]), len(labels["source"])),
        probabilities=[math.exp(logp) for logp in best.log_probabilities[: len(labels["translation"])]],
        views=[_view(name, one) for name, one in seen.items()],
        about=about,
    )


def _view(name: str, seen: AttentionRecord) -> View:
    group, layer = parse_attention_name(name)
    return View(name, group, layer, seen.weights[0].float().cpu().numpy(), *MAP_AXES[group])
