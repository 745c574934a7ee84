"""`Scene`: everything that a picture of one sentence shows, as plain text and arrays.

Whoever looks makes a scene (regard/looking); whoever draws takes one (page.py, figure.py). Neither knows the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from regard.inspection.alignment import rank_by_agreement
from regard.inspection.maps import distance, entropy

Group = Literal["encoder", "decoder", "cross"]
Floats = npt.NDArray[np.floating]
_BYTE = re.compile("^<0x(2[1-9A-F]|[3-6][0-9A-F]|7[0-9A-E])>$")
_UNSPEAKABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class View:
    """What one attention looked at.

    Attributes:
        name: of the attention in its model, such as "decoder.3.cross".
        group: whose attention it is: the encoder's or the decoder's to itself, or the one across.
        layer: its number in the stack.
        weights: (H, T, S).
        rows: which of the scene's labels stand beside the rows.
        columns: which stand over the columns.
    """

    name: str
    group: Group
    layer: int
    weights: Floats
    rows: str
    columns: str

    @property
    def entropy(self) -> list[float] | None:
        """How widely each head looks, in bits; None where weights are negative and so no shares."""
        return None if (self.weights < 0).any() else entropy(self.weights).tolist()

    @property
    def distance(self) -> list[float] | None:
        """How many tokens away each head looks; None across, where the two sides count their places apart."""
        return None if self.group == "cross" or (self.weights < 0).any() else distance(self.weights).tolist()


@dataclass(frozen=True)
class Scene:
    """One sentence, its translation, and what every attention looked at meanwhile.

    Attributes:
        source: the sentence.
        translation: what the model made of it.
        labels: names for rows and columns: "source", "translation", and what the views name.
        alignment: how much each token of "translation" looked at each of "source", on average.
        probabilities: of each token of "translation".
        views: one for each attention.
        about: what else to say of it, such as the model's name.
    """

    source: str
    translation: str
    labels: dict[str, list[str]]
    alignment: Floats
    probabilities: list[float]
    views: list[View]
    about: str = ""

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError("a scene without any attention has nothing to show")
        shapes = [(view.name, view.weights.shape[1:], view.rows, view.columns) for view in self.views]
        for name, shape, rows, columns in [*shapes, ("alignment", self.alignment.shape, "translation", "source")]:
            if shape != (len(self.labels[rows]), len(self.labels[columns])):
                raise ValueError(f"{name}: maps of {shape} do not fit the labels {rows} and {columns}")

    def first(self) -> tuple[int, int]:
        """The view and the head to begin with: of those across, if any, the one closest to the mean of all."""
        across = {view.name: view.weights for view in self.views if view.group == "cross"}
        if not across:
            return 0, 0
        best = rank_by_agreement(across)[0]
        return [view.name for view in self.views].index(best.name), best.head


def readable_labels(pieces: Sequence[str]) -> list[str]:
    """Pieces of a tokenizer as labels: without the mark of the space before them, and nothing unspeakable.

    A byte that is a character by itself stands for it.
    """
    spelled = [_BYTE.sub(lambda byte: chr(int(byte[1], 16)), piece) for piece in pieces]
    return [replace_unprintable(piece.removeprefix("▁") or "␣") for piece in spelled]


def replace_unprintable(text: str) -> str:
    """The text with U+FFFD for what cannot be shown, such as control characters."""
    return _UNSPEAKABLE.sub("\N{REPLACEMENT CHARACTER}", text)
