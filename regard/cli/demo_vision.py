"""From nothing to a classifier and a picture of its attention, on rendered shapes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from PIL import Image

from regard.data.builtin.shapes import render_shapes
from regard.errors import UserError
from regard.evaluation.classification_report import evaluate, open_test_set
from regard.inspection.overlay import draw_image_attention
from regard.inspection.probe import probe
from regard.models.folder import replace_folder
from regard.pipelines.classifier import Classifier
from regard.training.resume import is_run
from regard.training.run import run_recipe
from regard.training.tasks.classification.recipe import ClassificationRecipe

SPLITS = {"train": 12000, "valid": 500, "test": 1000}
SHOWN = ("star", "crescent", "arrow")


def run_vision_demo(out: Path, changes: Sequence[str]) -> None:
    """Draws shapes into files, trains the recipe `shapes` on them, scores it on others, draws what it looks at."""
    images = out.with_name(f"{out.name}-images")
    recipe = ClassificationRecipe.load(Path("shapes"), changes, {"data.images": str(images)})
    with drawn(images, out):
        print("Training a small Vision Transformer on them.")
        outcome = run_recipe(recipe, out)
    print(f"Trained in {outcome.seconds:.0f} s.\n")
    classifier = Classifier.load(out)
    test = open_test_set(images, classifier, "test")
    print("\n".join(evaluate(classifier, test, str(images)).lines()), "\n")
    chosen = [min((images / "test" / name).iterdir()) for name in SHOWN]
    for path in chosen:
        print(f"  {path}  →  " + ", ".join(f"{label} {100 * p:.0f}%" for label, p in classifier(path, top=3)))
    picture = out / "attention.png"
    pixels = classifier.preprocessing.open(chosen[0])
    with probe(classifier.model) as records:
        classifier.predict([pixels])
    draw_image_attention(classifier.model, records, pixels).save(picture)
    print(f"\nThe model is in {out}/best; what it looked at is drawn in {picture}.\nNext, try:")
    print(f"  regard classify {out} {images}/test/heart --top 3")
    print(f"  regard evaluate {out} --data {images} --pictures {out}/pictures")
    print("  regard train --data FOLDER-OF-CLASS-FOLDERS --out runs/mine")


@contextmanager
def drawn(images: Path, out: Path) -> Iterator[None]:
    """Draws the images unless they are there; takes away what it drew where the run in `out` is refused."""
    missing = [folder for folder in (images, *images.parents) if not folder.exists()]
    if images in missing:
        print(f"Drawing {sum(SPLITS.values()):,} small images of ten shapes into {images}.")
        draw_shapes(images)
    try:
        yield
    except UserError:
        if images in missing and not is_run(out):  # a run that began needs them to go on
            shutil.rmtree(images)
            with suppress(OSError):  # a folder that holds something else by now
                for folder in missing[1:]:
                    folder.rmdir()
        raise


def draw_shapes(folder: Path) -> None:
    """Renders shapes into a folder of splits with class folders, as one would have photographs; all or nothing."""
    with replace_folder(folder) as fresh:
        for seed, (split, number) in enumerate(SPLITS.items()):
            shapes = render_shapes(number, seed)
            for name in shapes.classes:
                (fresh / split / name).mkdir(parents=True)
            for i, (pixels, label) in enumerate(zip(shapes.pixels, shapes.labels.tolist(), strict=True)):
                path = fresh / split / shapes.classes[label] / f"{i:05}.png"
                Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path, compress_level=1)
