"""`Scene`: the attention maps of one sentence with their labels, independent of models and of drawing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from regard.errors import UserError
from regard.files import replace_text_file
from regard.inspection.alignment import rank_by_agreement
from regard.inspection.maps import distance, entropy

Group = Literal["encoder", "decoder", "cross"]
Floats = npt.NDArray[np.floating]
FORMATS = (".html", ".png", ".svg")


@dataclass(frozen=True)
class View:
    """Attention maps of one attention module.

    Attributes:
        name: Name of the module in the model, such as "decoder.3.cross".
        group: Encoder self-attention, decoder self-attention or cross-attention.
        weights: Attention weights, (H, T, S).
        rows, columns: Keys of the labels in `Scene.labels`.
    """

    name: str
    group: Group
    layer: int
    weights: Floats
    rows: str
    columns: str

    @property
    def entropy(self) -> list[float] | None:
        """Entropy of each head in bits. None if weights are negative, as in linear attention."""
        return None if (self.weights < 0).any() else entropy(self.weights).tolist()

    @property
    def distance(self) -> list[float] | None:
        """Mean attention distance of each head in tokens. None for cross-attention and for negative weights."""
        return None if self.group == "cross" or (self.weights < 0).any() else distance(self.weights).tolist()


@dataclass(frozen=True)
class Scene:
    """A sentence, its translation, and the attention maps between their tokens.

    Attributes:
        labels: Token labels by name: "source", "translation", and those that the views refer to.
        alignment: Cross-attention averaged over heads and layers, ("translation", "source").
        probabilities: Probability of each token of "translation".
        about: Description, such as the name of the model.
        warning: States that the sentence is longer than those of the training data; empty if it is not.
        explanations: Explanations of words of the translation; see `regard.inspection.explain`.
    """

    source: str
    translation: str
    labels: dict[str, list[str]]
    alignment: Floats
    probabilities: list[float]
    views: list[View]
    about: str = ""
    warning: str = ""
    explanations: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.views:
            raise ValueError("a scene needs at least one attention module")
        shapes = [(view.name, view.weights.shape[1:], view.rows, view.columns) for view in self.views]
        for name, shape, rows, columns in [*shapes, ("alignment", self.alignment.shape, "translation", "source")]:
            if shape != (len(self.labels[rows]), len(self.labels[columns])):
                raise ValueError(f"{name}: maps of shape {shape} do not fit the labels {rows} and {columns}")

    def __repr__(self) -> str:
        """Return the sentence and its translation."""
        return f"Scene({self.source!r} → {self.translation!r}, {len(self.views)} attention modules)"

    def _repr_html_(self) -> str:
        """Return the page of the scene in a frame, for a notebook."""
        from regard.inspection.html import render_frame

        return render_frame(self)

    def save(self, out: Path) -> None:
        """Write the scene as a page (.html) or as a figure (.png, .svg); an existing file is replaced atomically."""
        check_output(out)
        if out.suffix.lower() == ".html":
            from regard.inspection.html import render_page

            with replace_text_file(out) as file:
                file.write(render_page(self))
        else:
            from regard.inspection.figure import save_scene_figure  # importing matplotlib takes a second

            save_scene_figure(self, out)

    def initial_head(self) -> tuple[int, int]:
        """Return the view and head to show first: the cross-attention head closest to the mean of all, if any."""
        cross = {view.name: view.weights for view in self.views if view.group == "cross"}
        if not cross:
            return 0, 0
        best = rank_by_agreement(cross)[0]
        return [view.name for view in self.views].index(best.name), best.head


def check_output(out: Path) -> None:
    """Raise a `UserError` if a scene cannot be written to a file, before anything is computed for it."""
    if out.suffix.lower() not in FORMATS:
        raise UserError(f"{out}: the file name must end in {', '.join(FORMATS)}")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give a file name")
    if not out.parent.is_dir():
        raise UserError(f"{out}: folder {out.parent} does not exist")
