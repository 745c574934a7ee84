"""`Classifier`: classifies images with a trained model."""

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.data.images.folders import list_images
from regard.data.images.preprocessing import AnyImage, ImagePreprocessing, Pixels, prefetch
from regard.errors import UserError
from regard.models.card import describe_model, save_pretrained
from regard.models.folder import check_input_type, find_model_folder, load_model, save_model

IMAGES = "images"
"""Key of config.json with the `ImagePreprocessing`."""
BATCH = 64
THREADS = 4
ImageList = list[Any] | tuple[Any, ...]
Vector = NDArray[np.float32]
Ranking = list[tuple[str, float]]
"""Class names with probabilities, most likely first."""
FileResult = tuple[Path, Vector] | UserError
"""An image file and its result, or why it could not be read."""
Item = TypeVar("Item")


class Classifier:
    """Classifies images.

    `classifier(image)` returns the most likely classes of an image, or of every image in a list. `probabilities` and
    `embed` return arrays; `map_files` processes any number of files.

    Args:
        model: An image model with a classification head.
        preprocessing: Preprocessing of its images, and the names of the classes.
    """

    def __init__(self, model: Any, preprocessing: ImagePreprocessing) -> None:
        self.model, self.preprocessing = model, preprocessing
        self._folder: Path | None = None

    def __repr__(self) -> str:
        names = ", ".join(self.classes[:5]) + (", …" if len(self.classes) > 5 else "")
        side = self.preprocessing.size
        return f"Classifier({describe_model(self.model)}, {side}×{side} pixels, {len(self.classes)} classes: {names})"

    @classmethod
    def load(cls, path: str | Path, device: str | torch.device = "cpu") -> "Classifier":
        """Load a model folder, or the best model of a training run.

        Raises:
            UserError: A file is missing or damaged, the files do not belong together, or it is not an image model.
        """
        folder = find_model_folder(Path(path))
        check_input_type(folder, "images")
        model, metadata = load_model(folder, device)
        where = f"{folder / 'config.json'}: {IMAGES}"
        preprocessing = ImagePreprocessing.parse(metadata.get(IMAGES), where)
        stated = (len(preprocessing.classes), preprocessing.channels)
        actual = (model.config.classes, model.config.channels)
        if stated != actual:
            raise UserError(
                f"{where} states {stated[0]} classes and {stated[1]} channels, but the model has {actual[0]} and "
                f"{actual[1]}"
            )
        classifier = cls(model, preprocessing)
        classifier._folder = folder
        return classifier

    @classmethod
    def from_pretrained(cls, path: str | Path, device: str | torch.device = "cpu") -> "Classifier":
        """Load a model folder: `load` under the name that model hubs use. Nothing is downloaded."""
        return cls.load(path, device)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder with a model card (README.md) of the architecture, data and scores.

        Raises:
            UserError: The folder has other content.
        """
        save_pretrained(Path(folder), self.save, self.model, self._folder)

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors to an existing folder."""
        save_model(Path(folder), self.model, {IMAGES: self.preprocessing.model_dump(mode="json")})

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the model's outputs."""
        return self.preprocessing.classes

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @overload
    def __call__(self, images: AnyImage, top: int = 5) -> Ranking: ...

    @overload
    def __call__(self, images: ImageList, top: int = 5) -> list[Ranking]: ...

    def __call__(self, images: AnyImage | ImageList, top: int = 5) -> Ranking | list[Ranking]:
        """Return the most likely classes of an image, or of every image in a list; arrays are (H, W, 3) or (H, W).

        Raises:
            UserError: An image cannot be read; names it.
        """
        if isinstance(images, list | tuple):
            return self.rank(self.probabilities(images), top)
        return self.rank(self.probabilities([images]), top)[0]

    def rank(self, probabilities: NDArray[np.float32], top: int) -> list[Ranking]:
        """Return the most likely classes for each row of probabilities, (images, classes)."""
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : max(1, top)]
        return [
            [(self.classes[i], float(row[i])) for i in best] for row, best in zip(probabilities, order, strict=True)
        ]

    def probabilities(self, images: Sequence[AnyImage]) -> NDArray[np.float32]:
        """Return the probabilities of all classes, (images, classes).

        Raises:
            UserError: An image cannot be read; names it.
        """
        return self._map(images, self.predict, len(self.classes))

    def embed(self, images: Sequence[AnyImage]) -> NDArray[np.float32]:
        """Return the input of the classification head, (images, width).

        Raises:
            UserError: An image cannot be read; names it.
        """
        return self._map(images, self.features, self.model.head.in_features)

    @torch.inference_mode()
    def predict(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        """Return the probabilities of opened images, (images, classes)."""
        self.model.eval()
        logits = self.model(self.preprocessing.normalise(pixels, self.device))
        return _to_numpy(logits.float().softmax(1))

    @torch.inference_mode()
    def features(self, pixels: Sequence[Pixels]) -> NDArray[np.float32]:
        """Return the embeddings of opened images, (images, width)."""
        self.model.eval()
        return _to_numpy(self.model.embed(self.preprocessing.normalise(pixels, self.device)))

    def map_files(
        self, paths: Iterable[Path | UserError], function: Callable[[Sequence[Pixels]], NDArray[np.float32]]
    ) -> Iterator[FileResult]:
        """Apply `predict` or `features` to image files, in order and in bounded memory.

        A result is a row of probabilities, (classes,), or of features, (width,). An unreadable file gives an error in
        place of its result, and so does each error among the paths.
        """
        for batch in open_batches(self.preprocessing.open, paths):
            pixels = [image[1] for image in batch if not isinstance(image, UserError)]
            rows = iter(function(pixels) if pixels else ())
            for image in batch:
                yield image if isinstance(image, UserError) else (image[0], next(rows))

    def _map(self, images: Sequence[AnyImage], function: Any, width: int) -> NDArray[np.float32]:
        opened = prefetch(self.preprocessing.open, images, threads=THREADS, ahead=2 * BATCH)
        results = [np.empty((0, width), np.float32)]
        while batch := list(islice(opened, BATCH)):
            results.append(function(batch))
        return np.concatenate(results)


def open_batches(
    open_image: Callable[[Item], Pixels], items: Iterable[Item | UserError]
) -> Iterator[list[tuple[Item, Pixels] | UserError]]:
    """Yield batches of items with their images, or errors: those among the items, and of images that are unreadable."""

    def open_one(item: Item | UserError) -> tuple[Item, Pixels] | UserError:
        try:
            return item if isinstance(item, UserError) else (item, open_image(item))
        except UserError as error:
            return error

    opened = prefetch(open_one, items, threads=THREADS, ahead=2 * BATCH)
    while batch := list(islice(opened, BATCH)):
        yield batch


def find_images(arguments: Iterable[str]) -> Iterator[Path | UserError]:
    """Yield the image files that arguments name: files, all images below a folder, or matches of a pattern.

    A folder that cannot be read or has no images gives an error in its place.
    """
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            try:
                yield from list_images(path)
            except UserError as error:
                yield error
        elif not path.exists() and glob.has_magic(argument):
            matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            yield from find_images(map(str, matches)) if matches else [path]
        else:
            yield path


def _to_numpy(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.float().cpu().numpy()
    return array
