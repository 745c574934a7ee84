"""A sentence's translation as a scene: every attention of the model, over the tokens that it read and wrote."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.settings import AnySettings
from regard.decoding.translator import Translator
from regard.errors import UserError
from regard.inspection.probe import Seen, probe
from regard.inspection.scene import Group, Scene, View, readable
from regard.models.parallel import ParallelTransformer


def look_at_translation(
    translator: Translator,
    sentence: str,
    names: Collection[str] | None = None,
    settings: AnySettings | None = None,
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
    if not sentence.strip():
        raise UserError("there is nothing to look at in a blank sentence; give some words")
    at_once = isinstance(translator.model, ParallelTransformer)
    with probe(translator.model, names) as seen:
        best = translator.hypotheses([sentence], settings, alignments=True, snapshots=at_once)[0][0]
    assert best.alignment is not None
    labels = _label(best)
    return Scene(
        source=sentence,
        translation=best.text,
        labels=labels,
        alignment=np.array(best.alignment).reshape(len(labels["translation"]), len(labels["source"])),
        probabilities=[math.exp(logp) for logp in best.log_probabilities[: len(labels["translation"])]],
        views=[_view(name, one) for name, one in seen.items()],
        about=about,
    )


def _label(best: Hypothesis) -> dict[str, list[str]]:
    """Names for every row and column: a decoder that writes token by token reads BOS and says END."""
    canvas = best.rounds[-1].pieces if best.rounds else None  # may have more places than tokens
    return {
        "source": [*readable(best.source_pieces), "END"],
        "translation": readable(best.labels),
        "written": readable(best.labels if canvas is None else canvas),
        "read": ["BOS", *readable(best.pieces)] if canvas is None else readable(canvas),
    }


def _view(name: str, seen: Seen) -> View:
    side, layer, which = name.split(".")
    group: Group = "cross" if which == "cross" else "encoder" if side == "encoder" else "decoder"
    rows, columns = {"encoder": ("source", "source"), "decoder": ("written", "read"), "cross": ("written", "source")}[
        group
    ]
    return View(name, group, int(layer), seen.weights[0].float().cpu().numpy(), rows, columns)
