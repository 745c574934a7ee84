"""Record a translator's attention over one sentence and its translation, with labels for the rows and columns."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from regard.errors import UserError
from regard.inspection.attention_scene import Group, Scene, View
from regard.inspection.probe import WEIGHTS_ONLY, AttentionRecord, Quantity, probe
from regard.inspection.words import END, continues_word, readable_labels
from regard.models.nat import NATransformer

MAP_AXES: dict[Group, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("decoder_output", "decoder_input"),
    "cross": ("decoder_output", "source"),
}
"""Names of the row labels and column labels of each group's attention maps."""

Labels = dict[str, list[str]]
"""Token labels: "source", "translation", "decoder_output" and "decoder_input"."""


@dataclass(frozen=True)
class TranslationRecord:
    """Token labels, and the recorded quantities by attention module.

    Attributes:
        pieces: Whether the token of each label continues the word of the label before it.
    """

    labels: Labels
    records: dict[str, AttentionRecord]
    pieces: dict[str, list[bool]]


@torch.no_grad()
def record_translation(
    translator: Any,
    sentence: str,
    target: Sequence[int] | None,
    settings: Any = None,
    names: Collection[str] | None = None,
    record: Collection[Quantity] = WEIGHTS_ONLY,
) -> TranslationRecord:
    """Record the attention of a translator over a sentence and its translation.

    Args:
        translator: A `Translator` with a single model.
        target: Tokens of the translation, read with teacher forcing. None translates the sentence first.
            Non-autoregressive models ignore this and always translate.
        names: Attention modules, such as "decoder.3.cross". Defaults to all.
    """
    check_not_blank(sentence)
    is_nat = isinstance(translator.model, NATransformer)
    with probe(translator.model, names, record=record) as records:
        if is_nat or target is None:
            best = translator.hypotheses([sentence], settings, snapshots=is_nat, split=False)[0][0]
            labels = _hypothesis_labels(translator, best)
            return TranslationRecord(labels, records, _hypothesis_pieces(best, labels))
        check_target(translator, target)
        vocabularies = translator.vocabularies
        source = vocabularies.source.encode(sentence)
        translator.log_probs([source], [target])
    source_tokens, target_tokens = vocabularies.source.tokens(source), vocabularies.target.tokens(target)
    labels = _autoregressive_labels(source_labels(translator, source_tokens), target_tokens)
    return TranslationRecord(labels, records, _autoregressive_pieces(source_tokens, target_tokens, labels))


def translation_scene(
    translator: Any, sentence: str, names: Collection[str] | None = None, settings: Any = None, about: str = ""
) -> Scene:
    """Translate a sentence and return its attention maps as a scene.

    Args:
        translator: A `Translator`; of an ensemble, the first model is shown.
        names: Attention modules, such as "decoder.3.cross". Defaults to all.
    """
    check_not_blank(sentence)
    is_nat = isinstance(translator.model, NATransformer)
    with probe(translator.model, names) as records:
        best = translator.hypotheses([sentence], settings, alignments=True, snapshots=is_nat, split=False)[0][0]
    labels = _hypothesis_labels(translator, best)
    return Scene(
        source=sentence,
        translation=best.text,
        labels=labels,
        alignment=np.array(best.alignment).reshape(len(labels["translation"]), len(labels["source"])),
        probabilities=[math.exp(logp) for logp in best.token_log_probs[: len(labels["translation"])]],
        views=[_view(name, record) for name, record in records.items()],
        about=about,
        warning=best.warning or "",
    )


def check_not_blank(sentence: str) -> None:
    """Raise a `UserError` if a sentence contains no words."""
    if not sentence.strip():
        raise UserError("the sentence is blank; enter some words")


def parse_attention_name(name: str) -> tuple[Group, int]:
    """Return the group and the layer of an attention module of a translation model."""
    stack, layer, module = name.split(".")
    group: Group = "cross" if module == "cross" else "encoder" if stack == "encoder" else "decoder"
    return group, int(layer)


def source_labels(translator: Any, subwords: Sequence[str]) -> list[str]:
    """Return the labels of the source tokens on the axes of attention maps, END included if the model receives it."""
    end = translator.model.config.source_length(subwords) - len(subwords)
    return [*readable_labels(subwords), *["END"] * end]


def _hypothesis_labels(translator: Any, hypothesis: Any) -> Labels:
    """Return the labels of the tokens on every axis of the attention maps."""
    source = source_labels(translator, hypothesis.source_subwords)
    if not hypothesis.iterations:
        return _autoregressive_labels(source, hypothesis.subwords)
    # The NAT target may have more positions than the translation has tokens.
    last = hypothesis.iterations[-1]
    output = readable_labels(last.subwords)
    return {
        "source": source,
        "translation": readable_labels(hypothesis.labels),
        "decoder_output": output,
        "decoder_input": ["MASK" if updated else label for label, updated in zip(output, last.updated, strict=True)],
    }


def _autoregressive_labels(source: Sequence[str], target: Sequence[str]) -> Labels:
    labels = readable_labels(target)
    return {
        "source": list(source),
        "translation": [*labels, "END"],
        "decoder_output": [*labels, "END"],
        "decoder_input": ["BOS", *labels],
    }


def _hypothesis_pieces(hypothesis: Any, labels: Labels) -> dict[str, list[bool]]:
    if not hypothesis.iterations:
        return _autoregressive_pieces(hypothesis.source_subwords, hypothesis.subwords, labels)
    subwords = hypothesis.iterations[-1].subwords
    output = [token != END and piece for token, piece in zip(subwords, continues_word(subwords), strict=True)]
    source = mark_pieces(hypothesis.source_subwords, labels["source"])
    return {"source": source, "decoder_output": output, "decoder_input": output}


def _autoregressive_pieces(source: Sequence[str], target: Sequence[str], labels: Labels) -> dict[str, list[bool]]:
    output = mark_pieces(target, labels["decoder_output"])
    return {
        "source": mark_pieces(source, labels["source"]),
        "decoder_output": output,
        "decoder_input": [False, *output[:-1]],
    }


def mark_pieces(tokens: Sequence[str], labels: Sequence[str]) -> list[bool]:
    """Return for each label whether its token continues a word; labels after the last token, such as END, do not."""
    return [*continues_word(tokens), *[False] * (len(labels) - len(tokens))]


def check_target(translator: Any, target: Sequence[int]) -> None:
    """Raise a `UserError` if the tokens of a translation are unknown to the model or too many for it."""
    config, vocabulary = translator.model.config, translator.vocabularies.target
    if not all(0 <= token < len(vocabulary) for token in target):
        raise UserError(f"target: token ids of this model go from 0 to {len(vocabulary) - 1}")
    limit = config.max_positions
    if limit is not None and len(target) >= limit:
        raise UserError(f"target: {len(target)} tokens exceed this model's limit of {limit - 1}")


def _view(name: str, record: AttentionRecord) -> View:
    group, layer = parse_attention_name(name)
    return View(name, group, layer, record.weights[0].float().cpu().numpy(), *MAP_AXES[group])
