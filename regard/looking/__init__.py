"""Looking at a model at work: what it is given becomes a scene to be drawn. One file for each kind of input."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from regard.decoding.settings import AnySettings
from regard.errors import UserError
from regard.inspection.output import check_picture, replacing_file, save_scene
from regard.inspection.scene import Scene
from regard.models.folder import expect_reader, find_model, what_is_read


def look(
    run: Path,
    given: str,
    out: Path,
    names: Collection[str] | None = None,
    settings: AnySettings | None = None,
    device: str = "auto",
    patch: tuple[int, int] | None = None,
) -> str:
    """Gives a run's model a sentence or the path of an image, draws what it looked at, and returns what it said.

    Args:
        run: a model folder, or a training run that holds one.
        given: what it works on.
        out: the page or picture; an existing one is replaced.
        names: which attentions of a translator, such as "decoder.3.cross"; all unless given.
        settings: how a translator searches.
        device: where it works.
        patch: row and column of the patch of an image whose attention is shown, in place of the answer's.

    Raises:
        UserError: there is no model, it cannot work on what is given, or the file cannot be written.
    """
    check_picture(out)
    if what_is_read(find_model(run)) != "images":
        if patch is not None:
            raise UserError(f"--patch is for image models; {run} is none")
        scene = look_at(run, given, names, settings, device)
        save_scene(scene, out)
        return scene.translation
    if names:
        raise UserError(f"--only is for translators; {run} is an image model, of which everything is shown")
    return _look_at_image(run, Path(given), out, device, patch)


def look_at(
    run: Path,
    given: str,
    names: Collection[str] | None = None,
    settings: AnySettings | None = None,
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
    from regard.decoding.translator import Translator
    from regard.devices import choose_device
    from regard.looking.translation import look_at_translation

    folder = find_model(run)
    expect_reader(folder, "text")
    translator = Translator.load(folder, device=choose_device(device))
    about = f"{run} · {' → '.join(translator.languages)}"
    return look_at_translation(translator, given, names, settings, about)


def _look_at_image(run: Path, image: Path, out: Path, device: str, patch: tuple[int, int] | None) -> str:
    from regard.devices import choose_device
    from regard.looking.image import draw_image
    from regard.recognition.classifier import Classifier

    if out.suffix.lower() != ".png":
        raise UserError(f"{out}: what an image model sees is written as .png; choose such a name")
    classifier = Classifier.load(run, device=choose_device(device))
    with replacing_file(out) as part:
        draw_image(classifier, image, patch).save(part, "png")
    return ", ".join(f"{name} {share:.1%}" for name, share in classifier(image, top=3))
