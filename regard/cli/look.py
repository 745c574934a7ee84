"""`regard look`: shows the attention of a model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Beam, Device, Iterations, Run, SearchOptions, SearchOverrides
from regard.errors import UserError
from regard.files import replace_file

if TYPE_CHECKING:
    from PIL import Image

    from regard.pipelines.translator import Translator

LARGEST_BIAS = 100
INPUTS = {"images": "one image", "pairs": "two images, the views of a scene", "text": "one sentence, in quotes"}


def look(
    run: Run,
    inputs: Annotated[list[str], typer.Argument(help="a sentence, an image, or two views of a scene")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="self-contained page (.html) or figure (.png, .svg); replaced if it exists",
            show_default="look.html; look.png for image models",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="only this module, such as decoder.1.cross")
    ] = None,
    head: Annotated[
        list[int] | None, typer.Option(metavar="NUMBER", min=0, help="images: only this head, from 0")
    ] = None,
    patch: Annotated[
        tuple[int, int] | None, typer.Option(metavar="ROW COLUMN", help="images: patch to show, from 0 0")
    ] = None,
    sentence: Annotated[
        int | None, typer.Option(metavar="NUMBER", min=1, help="text of several sentences: the one to show, from 1")
    ] = None,
    split: Annotated[
        bool, typer.Option("--split/--no-split", help="split a text into sentences, or show it as one sequence")
    ] = True,
    why: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="explain a word of the translation: the word, a position counted from 1, END, or all"
        ),
    ] = None,
    contrast: Annotated[
        str | None, typer.Option("--not", metavar="WORD", help="with --why: explain why it is not this word")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="SENTENCE", help="with --why: find the states that differ from this sentence's"),
    ] = None,
    bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD=NUMBER", help="add a number to the cross-attention scores of a source word; may be repeated"
        ),
    ] = None,
    beam: Beam = None,
    iterations: Iterations = None,
    search: SearchOverrides = None,
    device: Device = "auto",
) -> None:
    """Show the attention of a model's layers and heads while it translates, classifies or matches views."""
    from regard.inspection.attention_scene import check_output
    from regard.models.folder import find_model_folder, model_input_type

    settings = SearchOptions({"beam": beam, "iterations": iterations}, search).settings(run)
    folder = find_model_folder(run)
    input_type = model_input_type(folder)
    is_image = input_type in ("images", "pairs")
    out = out or Path("look.png" if is_image else "look.html")
    check_output(out)
    if len(inputs) != (2 if input_type == "pairs" else 1):
        raise UserError(f"{run}: give {INPUTS.get(input_type, INPUTS['text'])}, not {len(inputs)} arguments")
    if head and input_type != "images":
        raise UserError(f"--head is for models that classify images; {run} does not")
    if patch is not None and not is_image:
        raise UserError(f"--patch is for image models; {run} is not one")
    if is_image and (sentence is not None or not split):
        raise UserError(f"--sentence and --no-split are for translators; {run} is not one")
    if why is None and (contrast, against) != (None, None):
        raise UserError("--not and --against belong to a word of the translation; name it with --why WORD")
    if is_image and (why is not None or bias):
        raise UserError(f"--why and --bias are for translators; {run} is not one")
    if is_image:
        if out.suffix.lower() != ".png":
            raise UserError(f"{out}: attention over images is written as .png; choose a name that ends in .png")
        if input_type == "images":
            result, picture = _draw_image(run, Path(inputs[0]), device, only, head, patch)
        else:
            result, picture = _draw_views(folder, [Path(path) for path in inputs], device, only, patch)
        with replace_file(out) as temporary:
            picture.save(temporary, "png")
    else:
        text = _choose_sentence(inputs[0], split, sentence)
        options = {"why": why, "contrast": contrast, "against": against, "names": only} | dict(settings)
        result = _draw_translation(run, text, device, out, bias or [], options)
    typer.echo(result)
    typer.echo(out)


def _choose_sentence(text: str, split: bool, number: int | None) -> str:
    """Return the sentence of a text to show, or without `split` the text."""
    from regard.data.text.sentences import split_sentences

    sentences = [sentence.text for sentence in split_sentences(text).sentences] if split else [text]
    if number is None and len(sentences) > 1:
        raise UserError(
            f"the text has {len(sentences)} sentences; choose one with --sentence 1 to {len(sentences)}, or show them "
            f"as one sequence with --no-split"
        )
    if number is not None and number > len(sentences):
        raise UserError(f"--sentence {number}: the last sentence of the text is {len(sentences)}")
    return text if len(sentences) <= 1 else sentences[(number or 1) - 1]


def _draw_translation(
    run: Path, sentence: str, device: str, out: Path, bias: list[str], options: dict[str, Any]
) -> str:
    """Translate a sentence, save the attention over it, and return the translation with the explanations of words.

    `options` are those of `regard.look`.
    """
    from regard.inspection.look import look as create_scene
    from regard.ops.dispatch import choose_device
    from regard.pipelines.translator import Translator

    translator = Translator.load(run, device=choose_device(device))
    # The output may be passed on: it names the run, but not where it is on this machine.
    parts = run.resolve().parts
    name = "/".join(parts[-2:]) if parts[-1] in ("best", "last") else parts[-1]
    scene = create_scene(translator, sentence, bias=_parse_bias(translator, sentence, bias), **options)
    replace(scene, about=f"{name} · {scene.about}").save(out)
    if scene.warning:
        typer.echo(f"regard: {scene.warning}", err=True)
    return "\n".join([scene.translation, *map(str, scene.explanations)])


def _parse_bias(translator: Translator, sentence: str, options: list[str]) -> dict[int, float]:
    """Return the numbers of options WORD=NUMBER by the position of the source token."""
    from regard.inspection.explain.target_word import find_source_tokens

    bias: dict[int, float] = {}
    for option in options:
        word, _, number = option.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not word or not abs(value) <= LARGEST_BIAS:
            raise UserError(
                f"--bias {option}: write WORD=NUMBER with -{LARGEST_BIAS} to {LARGEST_BIAS}, such as old=-5"
            )
        bias |= dict.fromkeys(find_source_tokens(translator, sentence, word), value)
    return bias


def _draw_image(
    run: Path, path: Path, device: str, names: list[str] | None, heads: list[int] | None, patch: tuple[int, int] | None
) -> tuple[str, Image.Image]:
    """Classify an image; return the three most likely classes, and the attention drawn over the image."""
    from regard.inspection.overlay import draw_image_attention
    from regard.inspection.probe import probe
    from regard.ops.dispatch import choose_device
    from regard.pipelines.classifier import Classifier

    classifier = Classifier.load(run, device=choose_device(device))
    pixels = classifier.preprocessing.open(path)
    with probe(classifier.model) as records:
        probabilities = classifier.predict([pixels])
    picture = draw_image_attention(classifier.model, records, pixels, patch, names, heads)
    (classes,) = classifier.rank(probabilities, 3)
    return ", ".join(f"{name} {probability:.1%}" for name, probability in classes), picture


def _draw_views(
    folder: Path, paths: list[Path], device: str, names: list[str] | None, patch: tuple[int, int] | None
) -> tuple[str, Image.Image]:
    """Match two views; return the name of the attention module, and a drawing of the matches."""
    from regard.data.images.preprocessing import open_view, view_size
    from regard.inspection.two_view import draw_peaks
    from regard.models.croco import CroCo
    from regard.models.folder import CONFIG, load_model
    from regard.ops.dispatch import choose_device

    model, metadata = load_model(folder, choose_device(device))
    assert isinstance(model, CroCo)
    size = view_size(metadata, model.config.patch, str(folder / CONFIG))
    view1, view2 = (open_view(path, size).to(choose_device(device)) for path in paths)
    picture, name = draw_peaks(model, view1, view2, names, patch)
    return f"the peaks of {name}", picture
