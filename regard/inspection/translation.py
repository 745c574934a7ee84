"""A sentence and its translation read once more, as a whole, to see what a translator's attentions do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from regard.decoding.config import DecodingSettings
from regard.errors import UserError
from regard.inspection.probe import WEIGHTS_ONLY, AttentionRecord, Quantity, probe
from regard.inspection.scene import Group, readable_labels
from regard.models.nat import NATransformer
from regard.pipelines.hypothesis import Hypothesis, Round
from regard.pipelines.translator import Translator

MAP_AXES: dict[Group, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("decoder_output", "decoder_input"),
    "cross": ("decoder_output", "source"),
}
"""Which labels stand beside the rows of a group's maps, and which over the columns."""


@dataclass(frozen=True)
class TranslationRecord:
    """What was seen, by the attention's name, and the names of rows and columns."""

    labels: dict[str, list[str]]
    seen: dict[str, AttentionRecord]


@torch.no_grad()
def record_translation(
    translator: Translator,
    sentence: str,
    target: Sequence[int] | None,
    settings: DecodingSettings | None = None,
    names: Collection[str] | None = None,
    record: Collection[Quantity] = WEIGHTS_ONLY,
) -> TranslationRecord:
    """Shows what attentions do while a translation is read.

    Args:
        translator: of one model.
        sentence: anything but blank.
        target: the tokens of the translation; one that writes all at once, which is quick, translates again instead.
        settings: how it searches then; as its folder says unless given.
        names: which attentions, such as "decoder.3.cross"; all unless given.
        record: what to see of them.

    Raises:
        UserError: the sentence is blank, the tokens are none of the model's, or there is no attention of such a name.
    """
    check_not_blank(sentence)
    at_once = isinstance(translator.model, NATransformer)
    with probe(translator.model, names, record=record) as seen:
        if at_once or target is None:
            best = translator.hypotheses([sentence], settings, snapshots=at_once)[0][0]
        else:
            best = _given(translator, sentence, target)
            translator.read([translator.vocabularies.source.encode(sentence)], [target])
    return TranslationRecord(label(best), seen)


def check_not_blank(sentence: str) -> None:
    """Does nothing with words.

    Raises:
        UserError: there are none.
    """
    if not sentence.strip():
        raise UserError("there is nothing to look at in a blank sentence; give some words")


def label(best: Hypothesis) -> dict[str, list[str]]:
    """Names for every row and column: a decoder that writes token by token reads BOS and says END, another masks."""
    last = best.rounds[-1] if best.rounds else None  # may have more places than tokens
    return {
        "source": [*readable_labels(best.source_pieces), "END"],
        "translation": readable_labels(best.labels),
        "decoder_output": readable_labels(best.labels if last is None else last.pieces),
        "decoder_input": ["BOS", *readable_labels(best.pieces)] if last is None else _read_by(last),
    }


def _read_by(last: Round) -> list[str]:
    """What a pass over a canvas read: masks where it wrote, and elsewhere what stands there still."""
    pairs = zip(readable_labels(last.pieces), last.written, strict=True)
    return ["MASK" if written else piece for piece, written in pairs]


def parse_attention_name(name: str) -> tuple[Group, int]:
    """Whose attention it is, and in which layer."""
    side, layer, which = name.split(".")
    group: Group = "cross" if which == "cross" else "encoder" if side == "encoder" else "decoder"
    return group, int(layer)


def _given(translator: Translator, sentence: str, target: Sequence[int]) -> Hypothesis:
    """The given tokens as if they had been found."""
    source, vocabulary = translator.vocabularies.source, translator.vocabularies.target
    longest = translator.model.config.max_length if translator.model.config.positions == "learned" else None
    if not all(0 <= token < len(vocabulary) for token in target):
        raise UserError(f"target: tokens of this model are numbers from 0 to {len(vocabulary) - 1}")
    if longest is not None and len(target) >= longest:
        raise UserError(f"target: {len(target)} tokens are more than the {longest - 1} that this model can read")
    return Hypothesis(
        text=vocabulary.decode(target),
        score=0.0,
        tokens=list(target),
        pieces=vocabulary.tokens(target),
        log_probabilities=[0.0] * (len(target) + 1),
        source_pieces=source.tokens(source.encode(sentence)),
    )
