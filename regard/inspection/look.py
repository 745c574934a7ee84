"""Looking at a model at work: what it is given becomes a scene to be drawn. One file for each kind of input."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from regard.decoding.config import DecodingSettings
from regard.errors import UserError
from regard.inspection.output import atomic_write, check_output, save_scene
from regard.inspection.scene import Scene
from regard.models.folder import check_input_type, find_model_folder, model_input_type


def look(
    run: Path,
    given: Sequence[str],
    out: Path | None = None,
    names: Collection[str] | None = None,
    settings: DecodingSettings | None = None,
    device: str = "auto",
    patch: tuple[int, int] | None = None,
    heads: Collection[int] | None = None,
) -> tuple[str, Path]:
    """Gives a run's model what it works on, draws what it looked at, and returns what it said and where that is drawn.

    Args:
        run: a model folder, or a training run that holds one.
        given: a sentence, the path of an image, or those of two views of a scene.
        out: the page or picture; an existing one is replaced. Unless given, look.html for a sentence, else look.png.
        names: which attentions, such as "decoder.3.cross"; all unless given.
        settings: how a translator searches.
        device: where it works.
        patch: row and column of the patch of an image whose attention is shown, in place of the answer's.
        heads: which heads of an image model; all unless given.

    Raises:
        UserError: there is no model, it cannot work on what is given, or the file cannot be written.
    """
    reads = model_input_type(find_model_folder(run))
    out = out or Path("look.png" if reads in ("images", "pairs") else "look.html")
    check_output(out)
    wanted = 2 if reads == "pairs" else 1
    if len(given) != wanted:
        what = {"images": "an image", "pairs": "two images, the views of a scene,"}.get(reads, "a sentence, in quotes,")
        raise UserError(f"{run} looks at {what} at a time; {len(given)} arguments were given")
    if heads and reads != "images":
        raise UserError(f"--head is for models that classify images; {run} is none")
    if reads == "images":
        return _look_at_image(run, Path(given[0]), out, names, device, patch, heads), out
    if reads == "pairs":
        return _look_at_views(run, (Path(given[0]), Path(given[1])), out, names, device, patch), out
    if patch is not None:
        raise UserError(f"--patch is for image models; {run} is none")
    scene = look_at(run, given[0], names, settings, device)
    save_scene(scene, out)
    return scene.translation, out


def look_at(
    run: Path,
    given: str,
    names: Collection[str] | None = None,
    settings: DecodingSettings | None = None,
    device: str = "auto",
) -> Scene:
    """Gives a run's translator a sentence, and shows what its attentions looked at.

    Args:
        run: a model folder, or a training run that holds one.
        given: the sentence.
        names: which attentions, such as "decoder.3.cross"; all unless given.
        settings: how a translator searches.
        device: where it works.

    Raises:
        UserError: there is no model, or none that reads text, or it cannot work on what is given.
    """
    from regard.inspection.look_translation import translation_scene
    from regard.pipelines.translator import Translator
    from regard.runtime import choose_device

    folder = find_model_folder(run)
    check_input_type(folder, "text")
    translator = Translator.load(folder, device=choose_device(device))
    about = f"{run} · {' → '.join(translator.languages)}"
    return translation_scene(translator, given, names, settings, about)


def _look_at_image(
    run: Path,
    image: Path,
    out: Path,
    names: Collection[str] | None,
    device: str,
    patch: tuple[int, int] | None,
    heads: Collection[int] | None,
) -> str:
    from regard.inspection.look_image import draw_image_attention
    from regard.pipelines.classifier import Classifier
    from regard.runtime import choose_device

    _expect_png(out)
    classifier = Classifier.load(run, device=choose_device(device))
    with atomic_write(out) as part:
        draw_image_attention(classifier, image, patch, names, heads).save(part, "png")
    return ", ".join(f"{name} {share:.1%}" for name, share in classifier(image, top=3))


def _look_at_views(
    run: Path,
    views: tuple[Path, Path],
    out: Path,
    names: Collection[str] | None,
    device: str,
    patch: tuple[int, int] | None,
) -> str:
    from regard.inspection.look_views import draw_views
    from regard.runtime import choose_device

    _expect_png(out)
    picture, name = draw_views(find_model_folder(run), views, choose_device(device), names, patch)
    with atomic_write(out) as part:
        picture.save(part, "png")
    return f"the peaks of {name}"


def _expect_png(out: Path) -> None:
    if out.suffix.lower() != ".png":
        raise UserError(f"{out}: what an image model sees is written as .png; choose such a name")
