"""`regard demo`: from nothing to a trained model and a picture of its attention."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import Overrides, exit_on_interruption
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.pipelines.translator import Translator

SENTENCES = ("I love apples", "I am human", "Yesterday my older brother bought three books at the market.")
SPLITS = {"train": 12000, "valid": 500, "test": 1000}
SHAPES = ("star", "crescent", "arrow")


def demo(
    out: Annotated[Path | None, typer.Option(help="folder for the model; by default runs/demo or runs/vision")] = None,
    vision: Annotated[bool, typer.Option("--vision", help="train an image classifier instead of a translator")] = False,
    overrides: Overrides = None,
) -> None:
    """Train a translator on the built-in corpus or a classifier on shapes, score it, and draw its attention."""
    with exit_on_interruption():
        if vision:
            run_vision_demo(out or Path("runs/vision"), overrides or [])
        else:
            run_translation_demo(out or Path("runs/demo"), overrides or [])


def run_translation_demo(out: Path, overrides: Sequence[str]) -> None:
    """Train the recipe `demo`, score it on held-out sentences, and translate and draw examples."""
    from regard.inspection.translation import translation_scene
    from regard.pipelines.translator import Translator
    from regard.training.run import run_recipe
    from regard.training.tasks.registry import load_recipe

    print("Training a small Transformer on the built-in English-Chinese corpus.")
    outcome = run_recipe(load_recipe(Path("demo"), overrides), out)
    print(f"Trained in {outcome.seconds:.0f} s.\n")
    translator = Translator.load(out)
    score_held_out(translator)
    print()
    for sentence in SENTENCES:
        print(f"  {sentence}  →  {translator(sentence)}")
    picture = out / "attention.svg"
    last_layer = f"decoder.{translator.model.config.decoder_layers - 1}.cross"
    translation_scene(translator, SENTENCES[-1], [last_layer]).save(picture)
    print(f"\nThe model is in {out}/best; its cross-attention is drawn in {picture}.\nNext, try:")
    print(f'  regard translate {out} "Where did you buy that book?"')
    print(f'  regard look {out} "I love apples" --out look.html')
    print(f'  regard translate {out} "Is your younger sister taller than Mary?" --beam 1')
    print("  regard train --src train.en --tgt train.de --out runs/en-de")


def score_held_out(translator: Translator) -> None:
    """Print BLEU and exact matches on the test set, and on its sentences with word combinations new to the model."""
    from regard.data.builtin.corpus import load_examples
    from regard.evaluation.metrics import bleu, exact_match

    test = load_examples("test")
    sources, references = [d.pair.source for d in test], [d.pair.target for d in test]
    translations = translator(sources, beam=1, split=False)
    novel = [i for i, d in enumerate(test) if d.novel]
    search = "non-autoregressive decoding" if translator.model.config.kind == "nat" else "greedy search"
    print(f"{len(test)} held-out sentences, {search}:")
    print(f"  {bleu(translations, references, 'zh')}")
    print(f"  {exact_match(translations, references):.1f}% exact matches; ", end="")
    share = exact_match([translations[i] for i in novel], [references[i] for i in novel])
    print(f"{share:.1f}% on the {len(novel)} with combinations of words that are not in the training data")


def run_vision_demo(out: Path, overrides: Sequence[str]) -> None:
    """Render shapes to files, train the recipe `shapes` on them, score it on a test set, and draw examples."""
    from regard.evaluation.classification import evaluate, open_test_set
    from regard.inspection.overlay import draw_image_attention
    from regard.inspection.probe import probe
    from regard.pipelines.classifier import Classifier
    from regard.training.run import run_recipe
    from regard.training.tasks.classification.recipe import ClassificationRecipe
    from regard.training.tasks.registry import load_recipe

    images = out.with_name(f"{out.name}-images")
    recipe = load_recipe(Path("shapes"), overrides, {"data.images": str(images)}, expected=ClassificationRecipe)
    with rendered_shapes(images, out):
        print("Training a small Vision Transformer on them.")
        outcome = run_recipe(recipe, out)
    print(f"Trained in {outcome.seconds:.0f} s.\n")
    classifier = Classifier.load(out)
    test = open_test_set(images, classifier, "test")
    print("\n".join(evaluate(classifier, test, str(images)).lines()), "\n")
    examples = [min((images / "test" / name).iterdir()) for name in SHAPES]
    for path in examples:
        print(f"  {path}  →  " + ", ".join(f"{label} {100 * p:.0f}%" for label, p in classifier(path, top=3)))
    picture = out / "attention.png"
    pixels = classifier.preprocessing.open(examples[0])
    with probe(classifier.model) as records:
        classifier.predict([pixels])
    draw_image_attention(classifier.model, records, pixels).save(picture)
    print(f"\nThe model is in {out}/best; its attention is drawn in {picture}.\nNext, try:")
    print(f"  regard classify {out} {images}/test/heart --top 3")
    print(f"  regard evaluate {out} --data {images} --pictures {out}/pictures")
    print("  regard train --data FOLDER-OF-CLASS-FOLDERS --out runs/mine")


@contextmanager
def rendered_shapes(images: Path, out: Path) -> Iterator[None]:
    """Render the images unless they exist; remove them again if the run in `out` is rejected before it starts."""
    from regard.training.run_folder import is_run

    missing = [folder for folder in (images, *images.parents) if not folder.exists()]
    if images in missing:
        print(f"Drawing {sum(SPLITS.values()):,} small images of ten shapes into {images}.")
        render_splits(images)
    try:
        yield
    except UserError:
        if images in missing and not is_run(out):  # a run that has started needs them to resume
            shutil.rmtree(images)
            with suppress(OSError):  # not empty any more
                for folder in missing[1:]:
                    folder.rmdir()
        raise


def render_splits(folder: Path) -> None:
    """Render shapes into class folders below train/, valid/ and test/, atomically."""
    from PIL import Image

    from regard.data.builtin.rendered_shapes import render_shapes
    from regard.models.folder import replace_folder

    with replace_folder(folder) as fresh:
        for seed, (split, number) in enumerate(SPLITS.items()):
            shapes = render_shapes(number, seed)
            for name in shapes.classes:
                (fresh / split / name).mkdir(parents=True)
            for i, (pixels, label) in enumerate(zip(shapes.pixels, shapes.labels.tolist(), strict=True)):
                path = fresh / split / shapes.classes[label] / f"{i:05}.png"
                Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path, compress_level=1)
