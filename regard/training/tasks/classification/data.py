"""The data of a run on images: from what a recipe names to a folder of decoded images, made once, opened ever after.

The folder holds a store each of training and of validation images, the names of the latter, and what they were made
from.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.images.augmentation import measure_normalisation
from regard.data.images.datasets import ImageDataset
from regard.data.images.image_sets import ImageSet, open_images, open_splits
from regard.data.images.store import has_pixels, open_image_store, should_store, stored_names, write_image_store
from regard.data.store import DamagedStoreError
from regard.errors import UserError
from regard.models.folder import recover_folder, replace_folder
from regard.pipelines.preprocessing import ImagePreprocessing
from regard.training.fingerprints import (
    FINGERPRINTS,
    Known,
    check_settings_of_data,
    read_fingerprints,
    write_fingerprints,
)
from regard.training.locks import locked
from regard.training.progress import Progress
from regard.training.sharing import make_shared
from regard.training.tasks.classification.recipe import ClassificationRecipe

SETS = ("train", "valid")
NAMES = "names.json"
FURTHER = {"classes": list, "channels": int, "mean": list, "std": list}


@dataclass(frozen=True)
class ImageRunData:
    """What training reads: images to learn from and to validate with, what the latter are called; what was left out."""

    folder: Path
    train: ImageDataset
    valid: ImageDataset
    names: list[str]
    preprocessing: ImagePreprocessing
    left_out: dict[str, int]


def open_sets(recipe: ClassificationRecipe, progress: Progress | None = None) -> dict[str, ImageSet]:
    """The images to learn from and to validate with.

    Raises:
        UserError: there are no such images, or they do not belong together.
    """
    data = recipe.data
    if data.valid is None:
        splits = open_splits(data.images, data)
        if progress is not None and splits.validation != "given":
            progress.print(
                "no images to validate with: "
                + ("some of each class are held out" if splits.validation == "held out" else "the test images serve")
            )
        return {"train": splits.train, "valid": splits.valid}
    train = _training_images(recipe)
    valid = open_images(data.valid, data.changed(channels=train.channels))
    return {"train": train, "valid": valid.with_classes(train.classes)}


def gather_data(folder: Path, recipe: ClassificationRecipe, progress: Progress, classes: Sequence[str] = ()) -> None:
    """Makes everything into an empty folder, or shares what lies in `data.store`.

    Args:
        folder: where to.
        recipe: what from.
        progress: is told.
        classes: where the images have just these, in whatever order, this is the order.

    Raises:
        UserError: the images cannot be used, or the store was made from other ones or with other settings.
    """
    store = recipe.data.store
    if store is None:
        make_data(folder, recipe, progress, classes)
        return
    make_shared(store, lambda fresh: make_data(fresh, recipe, progress, classes), "images", progress)
    check_settings_of_data(settings_of_data(recipe), read_fingerprints(store)["settings"], store)
    check_images(store, recipe, f"the store {store}")
    for name in (FINGERPRINTS, NAMES):
        shutil.copy(store / name, folder / name)


def make_data(folder: Path, recipe: ClassificationRecipe, progress: Progress, classes: Sequence[str] = ()) -> None:
    """Decodes all images into an empty folder.

    Raises:
        UserError: the images cannot be used.
    """
    sets = open_sets(recipe, progress)
    if set(classes) == set(sets["train"].classes):
        sets = {name: images.with_classes(classes) for name, images in sets.items()}
    left_out = {}
    for name in SETS:
        (folder / name).mkdir()
        left_out[name] = _write(folder / name, sets[name], recipe, progress)
    train = open_image_store(folder / "train", sets["train"])
    (folder / NAMES).write_text(json.dumps(stored_names(folder / "valid", sets["valid"]), ensure_ascii=False))
    measured = measure_normalisation(train)
    known: Known = {
        "files": {name: images.fingerprint() for name, images in sets.items()},
        "settings": settings_of_data(recipe),
        "left_out": left_out,
        "classes": list(train.classes),
        "channels": train.shape[0],
        "mean": list(recipe.data.mean or measured.mean),
        "std": list(recipe.data.std or measured.std),
    }
    write_fingerprints(folder, known)


def check_images(folder: Path, recipe: ClassificationRecipe, owner: str) -> None:
    """Refuses images that are not those from which the data in a folder was made; where they lie is all one.

    Raises:
        UserError: some have changed, come or gone.
    """
    known = read_fingerprints(folder, **FURTHER)
    for name, images in open_sets(recipe).items():
        if set(images.classes) == set(known["classes"]):
            images = images.with_classes(known["classes"])
        if images.fingerprint() != known["files"].get(name):
            where = recipe.data.valid if name == "valid" and recipe.data.valid else recipe.data.images
            raise UserError(
                f"{where}: the images have changed since {owner} began; put them back or choose another --out"
            )


def open_data(folder: Path, recipe: ClassificationRecipe, progress: Progress) -> ImageRunData:
    """Opens what was made; a damaged store is named and made again.

    Raises:
        UserError: the images are not what they were.
    """
    known = read_fingerprints(folder, **FURTHER)
    home = recipe.data.store or folder
    with locked(home, lambda: progress.print(f"waiting for another run that looks after {home}")):
        train, valid = (_open(home / name, name, recipe, known, progress) for name in SETS)
    try:
        names: list[str] = json.loads((folder / NAMES).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / NAMES}: damaged ({error}), so the run cannot go on; begin a new one") from None
    values = {key: known[key] for key in FURTHER} | {"size": train.shape[1], "fit": recipe.data.fit}
    return ImageRunData(folder, train, valid, names, ImagePreprocessing.parse(values, str(folder)), known["left_out"])


def settings_of_data(recipe: ClassificationRecipe) -> Known:
    """The settings that decide about decoded images, as they come back from JSON."""
    data = recipe.data
    values = data.model_dump(mode="json")
    known = {
        f"data.{key}": values[key] for key in ("channels", "columns", "fit", "max_bad", "max_pixels", "mean", "std")
    }
    return known | {"data.size": recipe.resize.size, "data.hold_out": None if data.valid else data.hold_out}


def _training_images(recipe: ClassificationRecipe) -> ImageSet:
    """All images that are there for training, where those for validation lie elsewhere.

    Raises:
        UserError: there are none, or there is nothing to tell apart.
    """
    data = recipe.data
    try:
        images = open_images(data.images, data, "train")
    except UserError:  # no splits there
        images = open_images(data.images, data)
    if len(images.classes) < 2:
        raise UserError(f"{data.images}: only one class, {images.classes[0]}; there must be two")
    return images


def _write(folder: Path, images: ImageSet, recipe: ClassificationRecipe, progress: Progress) -> int:
    store_pixels = should_store(images, recipe.resize, folder)
    counter = progress.counter("decoding", "images")
    return write_image_store(
        folder,
        images,
        recipe.resize,
        max_bad=recipe.data.max_bad,
        store_pixels=store_pixels,
        on_progress=counter,
    )


def _open(folder: Path, name: str, recipe: ClassificationRecipe, known: Known, progress: Progress) -> ImageDataset:
    """A store; one that is damaged is made again from the images, which must be what they were."""
    recover_folder(folder)
    images = None
    try:
        if not has_pixels(folder):
            images = open_sets(recipe)[name].with_classes(known["classes"])
        return open_image_store(folder, images)
    except DamagedStoreError as damage:
        progress.print(f"{folder}: damaged ({damage}), so it is made again")
    images = open_sets(recipe)[name].with_classes(known["classes"])
    if images.fingerprint() != known["files"].get(name):
        raise UserError(f"{folder}: damaged, and the images are not what they were when it was made; begin a new run")
    with replace_folder(folder) as fresh:
        _write(fresh, images, recipe, progress)
    return open_image_store(folder, images)
