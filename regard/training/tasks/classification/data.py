"""Data of a classification run: decoded training and validation images, prepared once in a folder.

The folder contains one store each of training and validation images, the names of the latter, and the fingerprints of
everything that they were made from.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.images.augmentation import measure_normalisation
from regard.data.images.datasets import ImageDataset
from regard.data.images.image_sets import ImageSet, open_images, open_splits
from regard.data.images.image_store import has_pixels, open_image_store, should_store, stored_names, write_image_store
from regard.data.images.preprocessing import ImagePreprocessing
from regard.errors import UserError
from regard.files import read_json
from regard.training.prepared_data import (
    FINGERPRINTS,
    Fingerprints,
    lock_folder,
    make_shared_store,
    open_or_recreate,
    read_fingerprints,
    write_fingerprints,
)
from regard.training.progress import Progress
from regard.training.tasks.classification.recipe import ClassificationRecipe

SETS = ("train", "valid")
NAMES = "names.json"
MAX_ENLARGEMENT = 2
"""Images are enlarged to more than this multiple of their size only if `data.size` is set."""
MIN_GRID = 7
"""Minimum number of patches per side that a message suggests."""
FINGERPRINT_KEYS = {"classes": list, "channels": int, "mean": list, "std": list}


@dataclass(frozen=True)
class ClassificationData:
    """Prepared data: training and validation images, names of the latter, and the number of skipped images."""

    folder: Path
    train: ImageDataset
    valid: ImageDataset
    names: list[str]
    preprocessing: ImagePreprocessing
    skipped: dict[str, int]


def prepare_data(folder: Path, recipe: ClassificationRecipe, progress: Progress, classes: Sequence[str] = ()) -> None:
    """Prepare the data in an empty folder, or link the folder to the shared store `data.store`.

    If the images have the given classes, their order is kept.
    """
    store = recipe.data.store
    if store is None:
        write_data(folder, recipe, progress, classes)
        return
    make_shared_store(
        store, lambda fresh: write_data(fresh, recipe, progress, classes), "images", data_settings(recipe), progress
    )
    check_images(store, recipe, f"the store {store}")
    for name in (FINGERPRINTS, NAMES):
        shutil.copy(store / name, folder / name)


def write_data(folder: Path, recipe: ClassificationRecipe, progress: Progress, classes: Sequence[str] = ()) -> None:
    """Decode all images into an empty folder."""
    sets = open_sets(recipe, progress)
    _check_size(recipe, sets["train"])
    if set(classes) == set(sets["train"].classes):
        sets = {name: images.with_classes(classes) for name, images in sets.items()}
    skipped = {}
    for name in SETS:
        (folder / name).mkdir()
        skipped[name] = _write_store(folder / name, sets[name], recipe, progress)
    train = open_image_store(folder / "train", sets["train"])
    (folder / NAMES).write_text(json.dumps(stored_names(folder / "valid", sets["valid"]), ensure_ascii=False))
    measured = measure_normalisation(train)
    fingerprints: Fingerprints = {
        "files": {name: images.fingerprint() for name, images in sets.items()},
        "settings": data_settings(recipe),
        "skipped": skipped,
        "classes": list(train.classes),
        "channels": train.shape[0],
        "mean": list(recipe.data.mean or measured.mean),
        "std": list(recipe.data.std or measured.std),
    }
    write_fingerprints(folder, fingerprints)


def open_sets(recipe: ClassificationRecipe, progress: Progress | None = None) -> dict[str, ImageSet]:
    """Open the training and validation images."""
    data = recipe.data
    if data.valid is None:
        splits = open_splits(data.images, data)
        if progress is not None and splits.validation != "given":
            held_out = splits.validation == "held out"
            substitute = "some images of each class are held out" if held_out else "the test images are used"
            progress.print(f"no validation images: {substitute}")
        return {"train": splits.train, "valid": splits.valid}
    train = _open_training_images(recipe)
    valid = open_images(data.valid, data.changed(channels=train.channels))
    return {"train": train, "valid": valid.with_classes(train.classes)}


def _check_size(recipe: ClassificationRecipe, images: ImageSet) -> None:
    """Raise a `UserError` if a preset would enlarge the images to more than twice their size.

    This would rarely be intended: it multiplies the time of training and adds no information.
    """
    size = recipe.resize.size
    side = images.median_side(size)
    if recipe.data.size is not None or side is None or size <= MAX_ENLARGEMENT * side:
        return
    kept = side - side % 4 or side
    patch = max(n for n in range(1, kept + 1) if kept % n == 0 and (n == 1 or kept // n >= MIN_GRID))
    advice = f"data.size={kept}" + (f" and model.patch={patch}" if recipe.kind == "vit" else "")
    raise UserError(
        f"{recipe.data.images}: images of {side} pixels would be enlarged to {size}, the image size of the preset "
        f"{recipe.preset}; set {advice}, or data.size={size} to enlarge them"
    )


def _open_training_images(recipe: ClassificationRecipe) -> ImageSet:
    """Open the training split, or all images if there are no splits."""
    data = recipe.data
    try:
        images = open_images(data.images, data, "train")
    except UserError:  # no splits
        images = open_images(data.images, data)
    if len(images.classes) < 2:
        raise UserError(f"{data.images}: only one class, {images.classes[0]}; there must be two")
    return images


def data_settings(recipe: ClassificationRecipe) -> Fingerprints:
    """Return the settings that determine the decoded images, as they are read back from JSON."""
    data = recipe.data
    values = data.model_dump(mode="json")
    keys = ("channels", "columns", "fit", "max_bad", "max_pixels", "mean", "std")
    settings = {f"data.{key}": values[key] for key in keys}
    return settings | {"data.size": recipe.resize.size, "data.hold_out": None if data.valid else data.hold_out}


def check_images(folder: Path, recipe: ClassificationRecipe, owner: str) -> None:
    """Check that the images are those that the data in a folder was made from; their location does not matter."""
    fingerprints = read_fingerprints(folder, **FINGERPRINT_KEYS)
    for name, images in open_sets(recipe).items():
        if set(images.classes) == set(fingerprints["classes"]):
            images = images.with_classes(fingerprints["classes"])
        if images.fingerprint() != fingerprints["files"].get(name):
            path = recipe.data.valid if name == "valid" and recipe.data.valid else recipe.data.images
            raise UserError(
                f"{path}: the images have changed since {owner} was created; restore them or choose another --out"
            )


def open_data(folder: Path, recipe: ClassificationRecipe, progress: Progress) -> ClassificationData:
    """Open prepared data; recreate a store if it is damaged."""
    fingerprints = read_fingerprints(folder, **FINGERPRINT_KEYS)
    home = recipe.data.store or folder
    with lock_folder(home, lambda: progress.print(f"waiting for another run that checks {home}")):
        train, valid = (_open_store(home / name, recipe, fingerprints, progress) for name in SETS)
    try:
        names: list[str] = read_json(folder / NAMES)
    except UserError as error:
        raise UserError(f"{error}, so the run cannot be resumed; start a new one") from None
    values = {key: fingerprints[key] for key in FINGERPRINT_KEYS} | {"size": train.shape[1], "fit": recipe.data.fit}
    preprocessing = ImagePreprocessing.parse(values, str(folder))
    return ClassificationData(folder, train, valid, names, preprocessing, fingerprints["skipped"])


def _open_store(
    folder: Path, recipe: ClassificationRecipe, fingerprints: Fingerprints, progress: Progress
) -> ImageDataset:
    """Open a store; recreate it from unchanged images if it is damaged."""

    def open_set() -> ImageSet:
        return open_sets(recipe)[folder.name].with_classes(fingerprints["classes"])

    def recreate(fresh: Path) -> None:
        images = open_set()
        if images.fingerprint() != fingerprints["files"].get(folder.name):
            raise UserError(f"{folder}: damaged, and the images have changed since it was made; start a new run")
        _write_store(fresh, images, recipe, progress)

    return open_or_recreate(
        folder, lambda path: open_image_store(path, None if has_pixels(path) else open_set()), recreate, progress
    )


def _write_store(folder: Path, images: ImageSet, recipe: ClassificationRecipe, progress: Progress) -> int:
    """Decode images into a store and return the number of skipped ones."""
    return write_image_store(
        folder,
        images,
        recipe.resize,
        max_bad=recipe.data.max_bad,
        store_pixels=should_store(images, recipe.resize, folder),
        on_progress=progress.counter("decoding", "images"),
    )
