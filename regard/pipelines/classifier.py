"""The classifier: images in, names of classes with probabilities out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batching import prefetch
from regard.errors import UserError
from regard.models.folder import check_input_type, find_model_folder, load_model, save_model
from regard.models.pretrained import save_pretrained
from regard.pipelines.preprocessing import AnyImage, ImagePreprocessing

if TYPE_CHECKING:
    from regard.data.images.decoding import Pixels

ABOUT = "images"
"""The key of config.json under which a `ImagePreprocessing` stands."""
Several = list[Any] | tuple[Any, ...]
BATCH = 64
THREADS = 4
Ranked = list[tuple[str, float]]
"""Names of classes with their probabilities, the likeliest first."""


class Classifier:
    """A model that tells images apart, with all that it takes to show it some.

    Args:
        model: of images, with a head.
        preprocessing: what images go through before, and the names of the classes.
    """

    def __init__(self, model: Any, preprocessing: ImagePreprocessing) -> None:
        self.model, self.preprocessing = model, preprocessing
        self._home: Path | None = None

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> Classifier:
        """Loads a model folder, or the best model of a training run.

        Raises:
            UserError: a file is missing or damaged, the files do not belong together, or the model reads no images.
        """
        folder = find_model_folder(Path(path))
        check_input_type(folder, "images")
        model, about = load_model(folder, device)
        preprocessing = ImagePreprocessing.parse(about.get(ABOUT), f"{folder / 'config.json'}: {ABOUT}")
        rows = model.config.classes, model.config.channels
        if rows != (len(preprocessing.classes), preprocessing.channels):
            raise UserError(
                f"{folder / 'config.json'}: names {len(preprocessing.classes)} classes and {preprocessing.channels} "
                f"channels, but the model has {rows[0]} and {rows[1]}"
            )
        loaded = cls(model, preprocessing)
        loaded._home = folder
        return loaded

    @classmethod
    def from_pretrained(cls, path: str | Path, device: str | torch.device = "cpu") -> Classifier:
        """`load`, under the name that it has with model hubs; nothing is fetched from anywhere.

        Raises:
            UserError: as `load` does.
        """
        return cls.load(path, device)

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a model folder with a card, README.md, which tells its architecture, its data and its scores.

        Raises:
            UserError: there is something else in the folder.
        """
        save_pretrained(Path(folder), self.save, self.model, self._home)

    def save(self, folder: str | Path) -> None:
        """Writes everything into a folder that exists."""
        save_model(Path(folder), self.model, {ABOUT: self.preprocessing.model_dump(mode="json")})

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the model's outputs."""
        return self.preprocessing.classes

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @overload
    def __call__(self, images: AnyImage, top: int = 5) -> Ranked: ...

    @overload
    def __call__(self, images: Several, top: int = 5) -> list[Ranked]: ...

    def __call__(self, images: AnyImage | Several, top: int = 5) -> Ranked | list[Ranked]:
        """The likeliest classes of an image, or of each of several.

        Raises:
            UserError: an image is bad; it is named.
        """
        if isinstance(images, list | tuple):
            return self.rank(self.probabilities(images), top)
        return self.rank(self.probabilities([images]), top)[0]

    def rank(self, probabilities: NDArray[np.float32], top: int) -> list[Ranked]:
        """The likeliest classes of each row."""
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : max(1, top)]
        return [
            [(self.classes[i], float(row[i])) for i in best] for row, best in zip(probabilities, order, strict=True)
        ]

    def probabilities(self, images: Sequence[AnyImage]) -> NDArray[np.float32]:
        """Of every class for each image: (images, classes).

        Raises:
            UserError: an image is bad; it is named.
        """
        return self._join(images, self.predict, len(self.classes))

    def embed(self, images: Sequence[AnyImage]) -> NDArray[np.float32]:
        """What the model makes of each image before it chooses a class: (images, width).

        Raises:
            UserError: an image is bad; it is named.
        """
        return self._join(images, self.features, self.model.head.in_features)

    @torch.inference_mode()
    def predict(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        """`probabilities` of images that are opened already."""
        return _array(self.logits(pixels).softmax(1))

    @torch.inference_mode()
    def features(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        """`embed` for images that are opened already."""
        self.model.eval()
        return _array(self.model.embed(self.preprocessing.normalise(pixels, self.device)))

    def logits(self, pixels: Sequence[Pixels]) -> Tensor:
        """What the model says of images that are opened already, (images, classes)."""
        self.model.eval()
        logits: Tensor = self.model(self.preprocessing.normalise(pixels, self.device))
        return logits.float()

    def _join(self, images: Sequence[AnyImage], work: Any, width: int) -> NDArray[np.float32]:
        opened = prefetch(self.preprocessing.open, images, threads=THREADS, ahead=2 * BATCH)
        parts = [work(batch) for batch in _batches(opened)]
        return np.concatenate(parts) if parts else np.empty((0, width), np.float32)


def _batches(pixels: Iterator[Pixels]) -> Iterator[list[Pixels]]:
    while batch := list(islice(pixels, BATCH)):
        yield batch


def _array(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.float().cpu().numpy()
    return array
