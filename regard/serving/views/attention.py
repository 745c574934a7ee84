"""Section "attention": all heads at a glance, and one of them at large."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from regard.decoding.config import DecodingSettings
from regard.errors import UserError
from regard.inspection.maps import distance, entropy
from regard.inspection.probe import check_heads, find_attentions
from regard.inspection.translation import MAP_AXES, parse_attention_name, record_translation
from regard.pipelines.translator import Translator
from regard.serving.views.packet import Array, Precision, pack

GLANCE = 52
"""Rows and columns of a small map, as many as it has pixels on the page."""


def show_attention(translator: Translator, settings: DecodingSettings, asked: dict[str, Any]) -> bytes:
    """A packet of small maps of every attention, (heads + 1, rows, columns), the mean of the heads last.

    Raises:
        UserError: the sentence or its translation cannot be read.
    """
    read = record_translation(translator, asked["text"], asked["target"], settings)
    arrays: dict[str, tuple[Array, Precision]] = {}
    views = []
    for name, seen in read.records.items():
        weights = seen.weights[0].float().cpu()
        whole = F.pad(weights, (0, 0, 0, 0, 0, 1))
        whole[-1] = weights.mean(0)
        arrays[name] = _shrink(whole).numpy(), "u1"
        views.append(_describe(name, weights.numpy()))
    return pack({"labels": read.labels, "views": views}, arrays)


def show_map(translator: Translator, settings: DecodingSettings, asked: dict[str, Any]) -> bytes:
    """A packet with `map`: weights or scores of one head, or of all on average, (rows, columns).

    Raises:
        UserError: the model has no such attention or head, or cannot read the sentence.
    """
    name, head, quantity = asked["name"], asked["head"], asked["quantity"]
    attention = find_attentions(translator.model, [name])[name]
    if head is not None:
        check_heads(name, attention, [head])
    elif quantity == "scores":
        raise UserError("scores of different heads have no common measure, so that there is no mean; choose a head")
    read = record_translation(translator, asked["text"], asked["target"], settings, [name], [quantity])
    maps = getattr(read.records[name], quantity)[0].float()
    one = (maps.mean(0) if head is None else maps[head]).cpu().numpy()
    group, _ = parse_attention_name(name)
    rows, columns = MAP_AXES[group]
    return pack({"rows": read.labels[rows], "columns": read.labels[columns]}, {"map": (one, "u2")})


def _shrink(maps: Tensor) -> Tensor:
    """Maps of at most so many rows and columns; each keeps the strongest of what it stands for."""
    rows, columns = (min(GLANCE, size) for size in maps.shape[1:])
    return F.adaptive_max_pool2d(maps, (rows, columns)) if maps.numel() else maps


def _describe(name: str, weights: Array) -> dict[str, Any]:
    group, layer = parse_attention_name(name)
    shares = not (weights < 0).any()
    return {
        "name": name,
        "group": group,
        "layer": layer,
        "heads": len(weights),
        "entropy": np.round(entropy(weights), 2).tolist() if shares else None,
        "distance": np.round(distance(weights), 2).tolist() if shares and group != "cross" else None,
    }
